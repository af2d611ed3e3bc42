//! Machines, each in a network namespace of its own, that are one site.

use std::process::{Command, id};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_lab::link::{End, Link, Slowness};
use strongroom_system_tests::{CommandLine, Console, Finished, Process, Scratch, datastore, end_vms_in};

/// Timeout of whatever the site does by itself.
pub const WITHIN: Duration = Duration::from_secs(120);

/// The library of Debian's package, for programs with threads.
const FAKED_CLOCK: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// Where the machines are, in order.
const ADDRESSES: [&str; 3] = ["10.77.0.1", "10.77.0.2", "10.77.0.3"];
const HOMES: [&str; 3] = ["first-home", "home", "third-home"];
const RUNS: [&str; 3] = ["first-run", "run", "third-run"];
pub const FIRST: &str = ADDRESSES[0];
pub const SECOND: &str = ADDRESSES[1];
/// What is at the switch itself, such as a storage cluster.
pub const AT_THE_SWITCH: &str = "10.77.0.100";

/// A machine: a network namespace, a home and a run directory.
pub struct Machine<'test> {
    pub program: CommandLine<'test>,
    namespace: String,
    number: usize,
    /// Whether it has files for its identity and its start.
    is_known: bool,
}

impl<'test> Machine<'test> {
    /// The machine at one of the cables. The first one is the site's.
    pub fn new(scratch: &'test Scratch, cables: &Cables, number: usize) -> Self {
        let namespace = cables.ends[number].clone();
        Self { program: CommandLine::new(scratch), namespace, number, is_known: false }
    }

    /// As [`new`](Self::new), with a `machine-id` and a `boot_id` of its own, which its processes
    /// see in the place of those of this machine.
    pub fn with_identity(scratch: &'test Scratch, cables: &Cables, number: usize) -> Self {
        let machine = Self { is_known: true, ..Self::new(scratch, cables, number) };
        std::fs::write(machine.identity("machine-id"), new_uuid().replace('-', "")).unwrap();
        machine.boots();
        machine
    }

    /// What it starts from now on belongs to another start of the machine. Processes of the former
    /// one that still run are the test's to end, or to leave.
    pub fn boots(&self) {
        assert!(self.is_known, "it has the boot id of this machine");
        // A new file: those of the former start keep theirs.
        let _ = std::fs::remove_file(self.identity("boot_id"));
        std::fs::write(self.identity("boot_id"), new_uuid()).unwrap();
    }

    fn identity(&self, file: &str) -> std::path::PathBuf {
        self.program.path(&format!("{}-{file}", self.run()))
    }

    /// Its name as a host.
    pub fn host(&self) -> String {
        format!("host{}", self.number + 1)
    }

    fn script(&self, arguments: &str) -> String {
        let (namespace, home) = (&self.namespace, HOMES[self.number]);
        let within = format!("exec ip netns exec {namespace} env STRONGROOM_HOME=\"$PWD/{home}\"");
        if !self.is_known {
            return format!("{within} {arguments}");
        }
        // `ip netns exec` has made a mount namespace.
        let bound = [("machine-id", "/etc/machine-id"), ("boot_id", "/proc/sys/kernel/random/boot_id")]
            .map(|(file, over)| format!("mount --bind {} {over}", self.identity(file).display()));
        let script = format!("{} && exec {arguments}", bound.join(" && ")).replace('\'', "'\\''");
        format!("{within} sh -c '{script}'")
    }

    /// As [`runs`](Self::runs), with a clock that is ahead.
    #[track_caller]
    pub fn runs_at(&self, clock: &str, arguments: &str) -> String {
        let script = self.script(&format!("{} \"$STRONGROOM\" {arguments}", faked(clock)));
        self.program.run_shell(&script).success()
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

    /// Opens the console of a VM that runs the test guest.
    #[track_caller]
    pub fn console(&self, vm: &str) -> Console {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "setsid", "sh", "-c"]);
        command.arg(self.script(&format!("\"$STRONGROOM\" vm console {vm}")));
        let log = format!("console-{}-{vm}", self.run());
        Console::open(command, &self.program.path(""), &log)
    }

    /// Runs a shell script in its network.
    pub fn shell(&self, script: &str) -> Finished {
        let quoted = script.replace('\'', "'\\''");
        self.program.run_shell(&self.script(&format!("sh -c '{quoted}'")))
    }

    fn serves(&self, name: &str, clock: &str, arguments: &str) -> Process {
        let script =
            self.script(&format!("{clock} \"$STRONGROOM\" {arguments} --run \"$PWD/{}\" 2>&1", self.run()));
        self.program.start_shell(name, &script)
    }

    /// Waits until this machine has no QEMU of a VM.
    #[track_caller]
    pub fn wait_until_gone(&self, vm: &str) {
        let until = Instant::now() + WITHIN;
        let run = self.program.path(self.run()).display().to_string();
        let is_there = || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok()).any(|line| {
                let line = String::from_utf8_lossy(&line).into_owned();
                line.starts_with("/")
                    && line.contains("qemu-system")
                    && line.contains(&run)
                    && line.contains(vm)
            })
        };
        while is_there() {
            assert!(Instant::now() < until, "the QEMU of {vm} in {run} is still there after {WITHIN:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Its run directory.
    pub fn run(&self) -> &'static str {
        RUNS[self.number]
    }

    /// Has VMs take kernels from the directory with the test's guest, which the second machine's
    /// hostd has as its own.
    pub fn takes_guests_kernel(&self) {
        let (home, boot) = (self.program.path(HOMES[self.number]), self.program.path("home/hostd/boot"));
        let config = serde_json::json!({
            "format": 1, "name": self.host(), "boot_directories": [boot.display().to_string()]
        });
        std::fs::create_dir_all(home.join("hostd")).unwrap();
        std::fs::write(home.join("hostd/host.json"), config.to_string()).unwrap();
    }

    /// The first machine: key server, hostd and control plane.
    pub fn starts_site(&self) -> Process {
        self.starts_site_with("")
    }

    /// The same, with more options.
    pub fn starts_site_with(&self, more: &str) -> Process {
        self.starts_site_where("", more)
    }

    /// The same, with a clock that is ahead.
    pub fn starts_site_at(&self, clock: &str) -> Process {
        self.starts_site_where(&faked(clock), "")
    }

    fn starts_site_where(&self, clock: &str, more: &str) -> Process {
        let mut serve = self.serves(
            "first",
            clock,
            &format!(
                "serve --name host1 --listen-kmip {FIRST}:5696 --listen-enrolment {FIRST}:5697 --crypto-safe advised {more}"
            ),
        );
        serve.wait_for_line("where its API is", WITHIN, |line| line.starts_with("https://"));
        serve
    }

    /// Another machine: hostd alone.
    pub fn starts_host(&self, more: &str) -> Process {
        self.starts_host_where("", more)
    }

    /// The same, with a clock that is ahead.
    pub fn starts_host_at(&self, clock: &str, more: &str) -> Process {
        self.starts_host_where(&faked(clock), more)
    }

    fn starts_host_where(&self, clock: &str, more: &str) -> Process {
        let mut serve =
            self.serves(self.run(), clock, &format!("serve --role host --crypto-safe advised {more}"));
        let ready = format!("host {} takes orders", self.host());
        serve.wait_for_line("that it serves", WITHIN, |line| line.starts_with(&ready));
        serve
    }

    /// Has another machine join, and waits until it answers.
    pub fn lets_join(&self, other: &Machine<'_>) -> Process {
        let (host, address) = (other.host(), ADDRESSES[other.number]);
        let token = format!("token-{host}");
        self.runs(&format!("host token {host} --address {address}:5691 > {token} && chmod 600 {token}"));
        let process = other.starts_host(&format!("--join {FIRST}:5697 --token-file {token}"));
        self.wait_until(&format!("host show {host}"), "answers", |host| host["state"] == "connected");
        process
    }

    /// Asks hostd of the second machine with the certificate in a directory, through curl.
    pub fn asks_second(&self, identity: &str) -> Finished {
        self.program.run_shell(&self.script(&format!(
            "curl --silent --show-error --max-time 20 --insecure --cert {identity}/cert.pem --key {identity}/key.pem \
             https://{SECOND}:5691/v1/host"
        )))
    }
}

/// The environment of a process whose clock is ahead by this much (libfaketime); its timers are
/// not.
fn faked(clock: &str) -> String {
    format!("FAKETIME='{clock}' FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD={FAKED_CLOCK}")
}

/// Cables between a switch and machines, each of which has a network namespace.
pub struct Cables {
    pub switch: String,
    pub ends: Vec<String>,
    _slow: Vec<Link>,
}

/// A random UUID, and a newline.
fn new_uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap()
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}: {done}");
}

impl Cables {
    pub fn lay(machines: usize) -> Self {
        Self::lay_where(machines, |_| None)
    }

    /// The same, of which some are long or thin: `slowness` says it for each number.
    pub fn lay_where(machines: usize, slowness: impl Fn(usize) -> Option<Slowness>) -> Self {
        static LAID: AtomicUsize = AtomicUsize::new(0);
        let own = format!("{}-{}", id(), LAID.fetch_add(1, Ordering::Relaxed));
        let switch = format!("sr-switch-{own}");
        let ends: Vec<String> = (1..=machines).map(|end| format!("sr-{end}-{own}")).collect();
        let mut cables = Self { switch, ends, _slow: Vec::new() };
        let Self { switch, ends, _slow: slow } = &mut cables;
        for namespace in ends.iter().chain([&*switch]) {
            ip(&format!("netns add {namespace}"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        ip(&format!("-n {switch} link add ports type bridge"));
        ip(&format!("-n {switch} address add {AT_THE_SWITCH}/24 dev ports"));
        ip(&format!("-n {switch} link set ports up"));
        for (number, (end, address)) in ends.iter().zip(ADDRESSES).enumerate() {
            match slowness(number) {
                None => {
                    ip(&format!("-n {end} link add wire type veth peer name wire{number} netns {switch}"))
                }
                Some(slowness) => {
                    let device = &format!("wire{number}");
                    let [there, here] = [(end, "wire"), (switch, device.as_str())]
                        .map(|(namespace, device)| End { namespace, device });
                    slow.push(Link::lay([there, here], slowness).unwrap());
                }
            }
            ip(&format!("-n {switch} link set wire{number} master ports up"));
            ip(&format!("-n {end} address add {address}/24 dev wire"));
            ip(&format!("-n {end} link set wire up"));
        }
        cables
    }

    /// Cuts a machine off.
    pub fn cut(&self, number: usize) {
        ip(&format!("-n {} link set wire{number} down", self.switch));
    }

    pub fn mend(&self, number: usize) {
        ip(&format!("-n {} link set wire{number} up", self.switch));
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for namespace in self.ends.iter().chain([&self.switch]) {
            let _ = std::process::Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

/// Ends the VMs before the machines' processes are known to be gone.
pub struct Guests<'test>(pub &'test Scratch);

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        for run in RUNS {
            end_vms_in(self.0, run);
        }
    }
}

/// The QEMU of a VM, as the machine with this run directory has recorded it.
pub fn qemus_of(scratch: &Scratch, run: &str, vm: &str) -> Vec<u64> {
    let text = std::fs::read(scratch.path(&format!("{run}/vms/{vm}/state.json"))).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    state["qemu"]["pid"].as_u64().into_iter().collect()
}

/// The same, unless it has ended: its number may be another process's by now.
pub fn living_qemus_of(scratch: &Scratch, run: &str, vm: &str) -> Vec<u64> {
    let mut qemus = qemus_of(scratch, run, vm);
    qemus.retain(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(vm)
    });
    qemus
}

/// Kills the processes in these network namespaces whose command lines have this.
pub fn kill_all(ends: &[String], words: &str) {
    for end in ends {
        let listed = Command::new("ip").args(["netns", "pids", end]).output().unwrap();
        for pid in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let pid = pid.parse().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| line.contains(words)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Writes every packet of the switch to a file.
pub struct Recorder {
    process: Process,
    file: std::path::PathBuf,
}

/// What a recorder has seen.
#[derive(Debug)]
pub struct Recorded {
    pub packets: u64,
    file: std::path::PathBuf,
}

/// Says how many packets it has seen, and that none was lost.
const RECORDER: &str = r#"
import signal, socket, struct, sys
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
with open(sys.argv[1], "wb") as file, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as packets:
    packets.setsockopt(socket.SOL_SOCKET, 33, 512 << 20)
    packets.settimeout(0.2)
    print("records", flush=True)
    seen, buffer = 0, memoryview(bytearray(1 << 18))
    while True:
        try:
            length = packets.recv_into(buffer)
        except TimeoutError:
            if ended:
                break
            continue
        file.write(buffer[:length])
        seen += 1
    lost = struct.unpack("II", packets.getsockopt(263, 6, 8))[1]
print(f"{seen} packets, {lost} lost", flush=True)
"#;
/// What passes in plain text, so that a recorder is known to see what there is.
const PLAIN: &str = "strongroom-plain-marker-77aa";

impl Recorder {
    pub fn start(scratch: &Scratch, cables: &Cables, name: &str) -> Self {
        let file = scratch.path(name);
        std::fs::write(scratch.path("recorder.py"), RECORDER).unwrap();
        let script =
            format!("exec ip netns exec {} python3 recorder.py {} 2>&1", cables.switch, file.display());
        let mut process = CommandLine::new(scratch).start_shell(name, &script);
        process.wait_for_line("that it records", WITHIN, |line| line == "records");
        Self { process, file }
    }

    /// Has a machine send something that the recorder must find.
    pub fn sees_what_is_plain(&self, machine: &Machine<'_>) {
        let send = format!(
            "python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\\\"{PLAIN}\\\", (\\\"{SECOND}\\\", 9))\""
        );
        machine.shell(&send).success();
    }

    #[track_caller]
    pub fn end(mut self) -> Recorded {
        self.process.signal(Signal::TERM);
        let line = self.process.wait_for_line("what was lost", WITHIN, |line| line.ends_with(" lost"));
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [packets, lost] = numbers[..] else { panic!("{line}") };
        assert_eq!(lost, 0, "{line}");
        let recorded = Recorded { packets, file: self.file };
        assert!(recorded.occurrences(PLAIN) > 0, "it does not see what is plain");
        recorded
    }
}

impl Recorded {
    pub fn occurrences(&self, text: &str) -> usize {
        datastore::occurrences_in(&self.file, text.as_bytes())
    }
}
