//! A user of the embedded key server.

use std::fs;
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::command_line::CommandLine;
use crate::process::Process;
use crate::scratch::Scratch;

/// Timeout of the server's start, which derives a root key from a passphrase in a second on an idle
/// processor.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// A user with a state in the test's directory, and their key server.
pub struct KeyServerUser<'test> {
    /// The program.
    pub strongroom: CommandLine<'test>,
    /// The first words of every command.
    first: Vec<&'static str>,
    /// The server's KMIP address.
    pub kmip: String,
    /// The server's address for enrolment and administration.
    pub enrolment: String,
}

impl<'test> KeyServerUser<'test> {
    /// A user who has set up nothing.
    #[track_caller]
    pub fn new(scratch: &'test Scratch) -> Self {
        let (kmip, enrolment) = free_addresses();
        Self { strongroom: CommandLine::new(scratch), first: Vec::new(), kmip, enrolment }
    }

    /// Makes every command log at the most verbose level.
    pub fn logs_everything(&mut self) {
        self.first = vec!["--log", "trace"];
    }

    /// The command line for a shell.
    pub fn script(arguments: &[&str]) -> String {
        format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {}", arguments.join(" "))
    }

    /// Starts the server, and waits until it serves.
    #[track_caller]
    pub fn serve(&self, name: &str) -> Process {
        self.serve_with(name, &[])
    }

    /// As [`serve`](Self::serve), with more arguments.
    #[track_caller]
    pub fn serve_with(&self, name: &str, more: &[&str]) -> Process {
        let mut server = self.start_server(name, more);
        server.wait_for_line("that it serves", STARTS_WITHIN, |line| line.contains("serves keys until"));
        server
    }

    /// Starts the server.
    #[track_caller]
    pub fn start_server(&self, name: &str, more: &[&str]) -> Process {
        let run = ["keyserver", "run", "--listen", &self.kmip, "--listen-enrolment", &self.enrolment];
        self.start(name, &[&run[..], more].concat())
    }

    /// Starts a command, and leaves it running.
    #[track_caller]
    pub fn start(&self, name: &str, arguments: &[&str]) -> Process {
        self.strongroom.start_shell(name, &self.call(arguments))
    }

    /// Adds the key server as the key provider `name`, with this machine's client certificate.
    #[track_caller]
    pub fn add_provider(&self, name: &str, more: &[&str]) {
        let files = ["ca", "cert", "key"].map(|file| format!("home/key-providers/embedded/{file}.pem"));
        let [ca, certificate, key] = files.each_ref().map(String::as_str);
        let server = ["key-provider", "add", name, "--embedded", &self.kmip, "--server-name", "localhost"];
        let tls = ["--ca", ca, "--cert", certificate, "--key", key];
        self.runs(&[&server[..], &tls, more].concat());
    }

    /// Exposes a volume at `vm.sock`, and waits until it is ready. Its stderr is merged into
    /// stdout.
    #[track_caller]
    pub fn expose(&self, volume: &str) -> Process {
        let expose = ["volume", "expose", volume, "--nbd", "unix:vm.sock", "2>&1"];
        let mut exposed = self.start("expose", &expose);
        exposed
            .wait_for_line("that it is exposed", STARTS_WITHIN, |line| line.contains("is exposed by worker"));
        exposed
    }

    fn call(&self, arguments: &[&str]) -> String {
        Self::script(&[&self.first[..], arguments].concat())
    }

    /// Returns the output of a command that must succeed.
    #[track_caller]
    pub fn runs(&self, arguments: &[&str]) -> String {
        self.strongroom.run_shell(&self.call(arguments)).success()
    }

    /// As [`runs`](Self::runs), with the JSON output.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let said = self.runs(&[&["--json"], arguments].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"))
    }

    /// Returns the message of a command that must fail.
    #[track_caller]
    pub fn is_refused(&self, arguments: &[&str]) -> String {
        self.strongroom.run_shell(&self.call(arguments)).failure()
    }

    /// A file of this machine's client certificate directory.
    pub fn client_file(&self, name: &str) -> PathBuf {
        self.strongroom.path(&format!("home/key-providers/embedded/{name}"))
    }

    /// Every complete line of the audit log, in order.
    #[track_caller]
    pub fn audit(&self) -> Vec<Value> {
        audit_lines(&self.strongroom.path("home/keyserver/audit"))
    }
}

/// Two free addresses. Their ports are below those that the kernel gives to connections and to
/// listeners that ask for none, so nothing takes one before a server of the test does.
#[track_caller]
pub fn free_addresses() -> (String, String) {
    (free_address(), free_address())
}

#[track_caller]
fn free_address() -> String {
    const PORTS: RangeInclusive<u16> = 10_000..=32_000;
    static USED: AtomicUsize = AtomicUsize::new(0);
    // Test programs that run at once begin at ports of their own.
    let first = std::process::id() as usize * 128;
    let mut ports = (0..PORTS.len()).map(|_| {
        let port = (first + USED.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        format!("127.0.0.1:{}", usize::from(*PORTS.start()) + port)
    });
    ports.find(|address| TcpListener::bind(address).is_ok()).expect("there is a free port")
}

/// The files of an audit log, in order.
#[track_caller]
pub fn audit_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.expect("a directory is read").path());
    let mut files: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    files
}

/// Every complete line of an audit log, in order.
#[track_caller]
pub fn audit_lines(directory: &Path) -> Vec<Value> {
    let read = |file: &PathBuf| {
        let bytes = fs::read(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let text: String = audit_files(directory).iter().map(read).collect();
    // The file is preallocated with zeroes.
    text.lines().filter_map(|line| serde_json::from_str(line.trim_matches('\0')).ok()).collect()
}
