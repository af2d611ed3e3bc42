//! A site for tests of grants: a key server, a control plane, hosts, each with a state of its own.

use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_keyserver::grant::VmId;
use strongroom_kmip::client::Client;
use strongroom_system_tests::key_server::{audit_lines, free_addresses};
use strongroom_system_tests::{CommandLine, Process, Scratch};

use crate::kmip_client;

/// Timeout of anything that is waited for.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The VM of all grants.
pub const VM: VmId = VmId::from_bytes([5; 16]);

/// Waits until a process has written this to stderr.
#[track_caller]
pub fn tells(process: &Process, what: &str) {
    let begun = Instant::now();
    loop {
        let told = std::fs::read_to_string(process.stderr_log()).unwrap();
        if told.contains(what) {
            return;
        }
        assert!(begun.elapsed() < DEADLINE, "it does not say '{what}': {told}");
        std::thread::yield_now();
    }
}

/// A key server, its enrolled clients, and their machines.
pub struct Site<'test> {
    pub strongroom: CommandLine<'test>,
    kmip: String,
    pub enrolment: String,
}

impl<'test> Site<'test> {
    pub fn new(scratch: &'test Scratch) -> Self {
        let (kmip, enrolment) = free_addresses();
        Self { strongroom: CommandLine::new(scratch), kmip, enrolment }
    }

    /// A command on the machine with this home.
    pub fn script(home: &str, arguments: &[&str]) -> String {
        format!("export STRONGROOM_HOME=\"$PWD/{home}\"; exec \"$STRONGROOM\" {}", arguments.join(" "))
    }

    /// Starts the key server.
    pub fn serve(&self, name: &str, more: &[&str]) -> Process {
        let arguments = ["keyserver", "run", "--listen", &self.kmip, "--listen-enrolment", &self.enrolment];
        let arguments = [&arguments[..], more].concat();
        let mut server = self.strongroom.start_shell(name, &Self::script("server", &arguments));
        server.wait_for_line("that it serves", DEADLINE, |line| line.contains("serves keys until"));
        server
    }

    #[track_caller]
    pub fn json(&self, home: &str, arguments: &[&str]) -> Value {
        let script = Self::script(home, &[&["--json"], arguments].concat());
        serde_json::from_str(&self.strongroom.run_shell(&script).success()).unwrap()
    }

    /// The message of a command that must fail.
    #[track_caller]
    pub fn is_refused(&self, home: &str, arguments: &[&str]) -> String {
        self.strongroom.run_shell(&Self::script(home, arguments)).failure()
    }

    /// Enrols a client with this role on a machine of its own, where the key server is the provider
    /// `kms`. Returns its id.
    pub fn enrol(&self, name: &str, role: &str) -> String {
        let made = self.json("server", &["keyserver", "token", "create", name, "--role", role]);
        std::fs::write(self.strongroom.path("token"), made["token"].as_str().unwrap()).unwrap();
        let from = ["keyserver", "enrol", "--server", &self.enrolment, "--token-fd", "3"];
        let enrolled = self.json(name, &[&from[..], &["--into", name, "3<token"]].concat());
        let [ca, certificate, key] = ["ca", "cert", "key"].map(|file| format!("{name}/{file}.pem"));
        let files = ["--ca", &ca, "--cert", &certificate, "--key", &key, "--server-name", "localhost"];
        let files = [&files[..], &["--renew", "1"]].concat();
        self.json(name, &[&["key-provider", "add", "kms", "--kmip", &self.kmip], &files[..]].concat());
        enrolled["client"].as_str().unwrap().to_owned()
    }

    /// A key that `control` makes and does not see.
    pub fn make_key(&self) -> String {
        let made = self.json("control", &["key-provider", "create-key", "kms"]);
        made["key"].as_str().unwrap().to_owned()
    }

    /// Makes `control` write a grant for a host into a file.
    pub fn grant(&self, host: &str, key: &str, generation: &str, file: &str) -> Value {
        let (vm, server) = (VM.to_string(), self.enrolment.as_str());
        let to = ["--host", host, "--vm", &vm, "--vm-generation", generation, "--key-id", key];
        let by = ["keyserver", "grant", "--identity", "control", "--server", server, "--into", file];
        self.json("control", &[&by[..], &to[..]].concat())
    }

    /// A KMIP client with these files.
    pub fn client(&self, name: &str) -> Client {
        kmip_client::client(&self.kmip, &self.strongroom.path(name))
    }

    /// Every line of the audit log, in order.
    pub fn audit(&self) -> Vec<Value> {
        audit_lines(&self.strongroom.path("server/keyserver/audit"))
    }
}
