//! Machines, each in a network namespace of its own, that are one site.

use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Process, Scratch, end_vms, end_vms_in};

/// Timeout of whatever the site does by itself.
pub const WITHIN: Duration = Duration::from_secs(120);

pub const FIRST: &str = "10.77.0.1";
pub const SECOND: &str = "10.77.0.2";

/// A machine: a network namespace, a home and a run directory.
pub struct Machine<'test> {
    pub program: CommandLine<'test>,
    namespace: String,
    home: &'static str,
}

impl<'test> Machine<'test> {
    pub fn new(scratch: &'test Scratch, namespace: String, home: &'static str) -> Self {
        Self { program: CommandLine::new(scratch), namespace, home }
    }

    fn script(&self, arguments: &str) -> String {
        let Self { namespace, home, .. } = self;
        format!("exec ip netns exec {namespace} env STRONGROOM_HOME=\"$PWD/{home}\" {arguments}")
    }

    pub fn tries(&self, arguments: &str) -> Finished {
        self.program.run_shell(&self.script(&format!("\"$STRONGROOM\" {arguments}")))
    }

    #[track_caller]
    pub fn runs(&self, arguments: &str) -> String {
        self.tries(arguments).success()
    }

    #[track_caller]
    pub fn is_refused(&self, arguments: &str) -> String {
        self.tries(arguments).failure()
    }

    #[track_caller]
    pub fn json(&self, arguments: &str) -> Value {
        let said = self.runs(&format!("--json {arguments}"));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments}: {error}: {said}"))
    }

    /// Waits until the answer to a command satisfies `is_so`.
    #[track_caller]
    pub fn wait_until(&self, arguments: &str, awaited: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + WITHIN;
        loop {
            let told = self.tries(&format!("--json {arguments}"));
            match serde_json::from_str(&told.stdout) {
                Ok(answer) if told.status.success() && is_so(&answer) => return answer,
                _ => {
                    assert!(Instant::now() < until, "{arguments}: {awaited}: not within {WITHIN:?}: {told:?}")
                }
            }
        }
    }

    /// Runs a shell script in its network.
    pub fn shell(&self, script: &str) -> Finished {
        let quoted = script.replace('\'', "'\\''");
        self.program.run_shell(&self.script(&format!("sh -c '{quoted}'")))
    }

    fn serves(&self, name: &str, arguments: &str) -> Process {
        let script = self.script(&format!("\"$STRONGROOM\" {arguments} --run \"$PWD/{}\"", self.run()));
        self.program.start_shell(name, &script)
    }

    fn run(&self) -> &'static str {
        if self.home == "home" { "run" } else { "first-run" }
    }

    /// The first machine: key server, hostd and control plane.
    pub fn starts_site(&self) -> Process {
        self.starts_site_with("")
    }

    /// The same, with more options.
    pub fn starts_site_with(&self, more: &str) -> Process {
        let mut serve = self.serves(
            "first",
            &format!(
                "serve --name host1 --listen-kmip {FIRST}:5696 --listen-enrolment {FIRST}:5697 --crypto-safe advised {more}"
            ),
        );
        serve.wait_for_line("where its API is", WITHIN, |line| line.starts_with("https://"));
        serve
    }

    /// The second machine: hostd alone.
    pub fn starts_host(&self, more: &str) -> Process {
        let mut serve = self.serves("second", &format!("serve --role host --crypto-safe advised {more}"));
        serve.wait_for_line("that it serves", WITHIN, |line| line.starts_with("host host2 takes orders"));
        serve
    }

    /// Has the second machine join, and waits until it answers.
    pub fn lets_join(&self, second: &Machine<'_>) -> Process {
        self.runs(&format!("host token host2 --address {SECOND}:5691 > token && chmod 600 token"));
        let host = second.starts_host(&format!("--join {FIRST}:5697 --token-file token"));
        self.wait_until("host show host2", "answers", |host| host["state"] == "connected");
        host
    }

    /// Asks hostd of the second machine with the certificate in a directory, through curl.
    pub fn asks_second(&self, identity: &str) -> Finished {
        self.program.run_shell(&self.script(&format!(
            "curl --silent --show-error --max-time 20 --insecure --cert {identity}/cert.pem --key {identity}/key.pem \
             https://{SECOND}:5691/v1/host"
        )))
    }
}

/// A cable between two network namespaces.
pub struct Cable {
    pub ends: [String; 2],
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}: {done}");
}

impl Cable {
    pub fn lay() -> Self {
        // The tests of this program run side by side.
        static LAID: AtomicU32 = AtomicU32::new(0);
        let number = LAID.fetch_add(1, Ordering::Relaxed);
        let ends = ["a", "b"].map(|end| format!("sr-{end}-{}-{number}", id()));
        for end in &ends {
            ip(&format!("netns add {end}"));
            ip(&format!("-n {end} link set lo up"));
        }
        let [one, other] = &ends;
        ip(&format!("-n {one} link add wire type veth peer name wire netns {other}"));
        for (end, address) in ends.iter().zip([FIRST, SECOND]) {
            ip(&format!("-n {end} address add {address}/24 dev wire"));
            ip(&format!("-n {end} link set wire up"));
        }
        Self { ends }
    }

    pub fn cut(&self) {
        ip(&format!("-n {} link set wire down", self.ends[1]));
    }

    pub fn mend(&self) {
        ip(&format!("-n {} link set wire up", self.ends[1]));
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = std::process::Command::new("ip").args(["netns", "delete", end]).status();
        }
    }
}

/// Ends the VMs before the machines' processes are known to be gone.
pub struct Guests<'test>(pub &'test Scratch);

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        end_vms_in(self.0, "first-run");
        end_vms(self.0);
    }
}

/// The QEMU of a VM, as the machine with this run directory has recorded it.
pub fn qemus_of(scratch: &Scratch, run: &str, vm: &str) -> Vec<u64> {
    let text = std::fs::read(scratch.path(&format!("{run}/vms/{vm}/state.json"))).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    state["qemu"]["pid"].as_u64().into_iter().collect()
}
