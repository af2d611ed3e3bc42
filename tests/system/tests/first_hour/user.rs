//! A new user: an empty home directory, a shell, and perhaps a running `strongroom serve`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use strongroom_system_tests::key_server::free_addresses;
use strongroom_system_tests::{CommandLine, Finished, Process, Scratch, Terminal, end_vms};

/// Timeout of the first start.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
pub const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// Timeout of a command that is refused.
const ANSWERS_WITHIN_S: u32 = 60;

/// The user's home in transcripts.
pub const SHOWN_HOME: &str = "/home/ada";

/// Extra options of `serve`: a test shares its machine's ports and `/run` with others, and the
/// machine may well have swap.
const MACHINE: &str = "--crypto-safe advised --run \"$STRONGROOM_RUN\"";

/// The places in the user's home that replace those that texts name.
const OWN_PLACES: [(&str, &str); 6] = [
    ("/srv/vms", "$HOME/srv/vms"),
    ("/srv/fast", "$HOME/srv/fast"),
    ("/mnt/safe", "$HOME/safe"),
    ("unix:/run/", "unix:$HOME/"),
    ("/var/lib/strongroom", "$HOME/.strongroom"),
    ("/etc/strongroom", "$HOME/etc"),
];

pub struct User<'test> {
    scratch: &'test Scratch,
    strongroom: CommandLine<'test>,
    addresses: [(String, &'static str); 3],
    serve: Option<Process>,
    processes: u32,
}

/// Everything that a mistake must not change.
#[derive(Debug, PartialEq, Eq)]
pub struct Belongings {
    /// Files of the working directory: path, mode, size.
    files: Vec<(PathBuf, u32, u64)>,
    /// The lists of the control plane and the key server; empty while they are not running.
    objects: Vec<(&'static str, Vec<String>)>,
}

impl Belongings {
    /// Returns the differences.
    pub fn beside(&self, before: &Self) -> Vec<String> {
        let files = self.files.iter().filter(|file| !before.files.contains(file));
        let lost = before.files.iter().filter(|file| !self.files.contains(file));
        let mut changed: Vec<String> =
            files.map(|(path, ..)| format!("{} is left", path.display())).collect();
        changed.extend(lost.map(|(path, ..)| format!("{} is not as it was", path.display())));
        let lists = self.objects.iter().zip(&before.objects).filter(|(now, before)| now != before);
        changed
            .extend(lists.map(|((list, now), (_, before))| format!("{list}: {now:?} instead of {before:?}")));
        changed
    }
}

impl<'test> User<'test> {
    pub fn new(scratch: &'test Scratch) -> Self {
        let ((kmip, enrolment), (api, _)) = (free_addresses(), free_addresses());
        let addresses = [(api, "127.0.0.1:5690"), (kmip, "127.0.0.1:5696"), (enrolment, "127.0.0.1:5697")];
        scratch.make_directory("ada");
        let bin = scratch.make_directory("bin");
        let strongroom = CommandLine::new(scratch);
        std::os::unix::fs::symlink(strongroom.program(), bin.join("strongroom")).unwrap();
        Self { scratch, strongroom, addresses, serve: None, processes: 0 }
    }

    /// Starts `strongroom serve`, with one datastore.
    pub fn serves(&mut self) {
        assert!(self.serve.is_none(), "it runs");
        self.scratch.make_directory("ada/vms");
        self.serve = Some(self.starts("strongroom serve --name host1 --datastore vms=vms", "https://"));
    }

    /// Ends it.
    pub fn ends(&mut self) {
        let status = self.serve.take().unwrap().terminate(ENDS_WITHIN);
        assert!(status.success(), "{status}");
    }

    /// Runs a line of shell without a terminal.
    #[track_caller]
    pub fn runs(&self, line: &str) -> Finished {
        // A command that waits for ever is an error, and the test must not wait for it.
        let line = line.replace('\'', "'\\''");
        self.strongroom.run_shell(&self.script(&format!("exec timeout {ANSWERS_WITHIN_S} sh -euc '{line}'")))
    }

    /// Runs a line of shell at a terminal.
    #[track_caller]
    pub fn runs_at_terminal(&mut self, line: &str) -> Terminal {
        self.processes += 1;
        let name = format!("terminal-{}", self.processes);
        Terminal::start(self.scratch, &self.scratch.path("."), &name, &self.script(line))
    }

    /// Starts a command that keeps running, and waits until it prints a line with this beginning.
    #[track_caller]
    pub fn starts(&mut self, line: &str, ready: &str) -> Process {
        self.processes += 1;
        let script = self.script(&format!("exec 2>&1; exec {line}"));
        let mut process = self.strongroom.start_shell(&format!("process-{}", self.processes), &script);
        process.wait_for_line(ready, STARTS_WITHIN, |line| line.starts_with(ready));
        process
    }

    /// The line for the user's shell. `serve` gets the extra options.
    fn script(&self, line: &str) -> String {
        let [(api, _), (kmip, _), (enrolment, _)] = &self.addresses;
        let ports = format!("--listen {api} --listen-kmip {kmip} --listen-enrolment {enrolment} {MACHINE}");
        let serve = "strongroom serve";
        // A machine's directories are replaced by the user's own.
        let line = &OWN_PLACES.iter().fold(self.meant(line), |line, (usual, own)| line.replace(usual, own));
        let line = match line.contains(&format!("{serve} --")) {
            true => line.replacen(serve, &format!("{serve} {ports}"), 1),
            false => line.to_owned(),
        };
        format!(
            "root=\"$PWD\"; export PATH=\"$root/bin:$PATH\" HOME=\"$root/ada\" STRONGROOM_HOME=\"$root/ada/.strongroom\" \
             STRONGROOM_RUN=\"$root/run\"; umask 022; cd \"$HOME\"; {line}"
        )
    }

    /// Replaces a transcript's home and ports by this test's.
    pub fn meant(&self, text: &str) -> String {
        let home = self.scratch.path("ada").display().to_string();
        let ours = text.replace(SHOWN_HOME, &home);
        self.addresses.iter().fold(ours, |text, (ours, usual)| text.replace(usual, ours))
    }

    /// Replaces this test's home and ports by a transcript's.
    pub fn shown(&self, text: &str) -> String {
        let home = self.scratch.path("ada").display().to_string();
        let run = self.scratch.path("run").display().to_string();
        let mut text = text
            .replace("\r\n", "\n")
            .replace(&format!("{home}/srv"), "/srv")
            .replace(&home, SHOWN_HOME)
            .replace(&run, "/run/strongroom");
        for (ours, usual) in &self.addresses {
            text = text.replace(ours, usual);
        }
        text
    }

    /// The user's present belongings.
    pub fn belongings(&self) -> Belongings {
        let mut files = Vec::new();
        collect(&self.scratch.path("ada"), &mut files);
        files.sort();
        let objects = match self.serve {
            Some(_) => ["vm list", "datastore list", "policy list", "key list", "key-provider list"].to_vec(),
            None => Vec::new(),
        };
        let objects = objects.into_iter().map(|list| (list, self.names(list))).collect();
        Belongings { files, objects }
    }

    fn names(&self, list: &str) -> Vec<String> {
        // The list counts, even if the command also reports another problem.
        let answer = self.runs(&format!("strongroom --json {list}"));
        let answer: Value = serde_json::from_str(&answer.stdout)
            .unwrap_or_else(|error| panic!("{list}: {error}: {answer:?}"));
        let lists = answer.as_object().unwrap().values().filter_map(Value::as_array).flatten();
        let name = |item: &Value| {
            let named = ["name", "key", "id"].iter().find_map(|field| item[*field].as_str());
            format!("{} {}", named.unwrap_or_default(), item["power"].as_str().unwrap_or_default())
        };
        lists.map(name).collect()
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        drop(self.serve.take());
        end_vms(self.scratch);
    }
}

/// Collects the files under a directory, except those that `serve` writes all the time.
fn collect(directory: &Path, files: &mut Vec<(PathBuf, u32, u64)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with(".strongroom") {
            continue;
        }
        // A temporary file of a running process may be gone by now.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            collect(&path, files);
        }
        let size = if metadata.is_file() { metadata.size() } else { 0 };
        files.push((path, metadata.permissions().mode(), size));
    }
}
