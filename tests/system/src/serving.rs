//! A user who runs all of Strongroom on this machine, and VMs.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::build;
use crate::command_line::CommandLine;
use crate::family::runs;
use crate::guest::Place;
use crate::key_server::free_addresses;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::session::Session;

/// Timeout of the first start: certificates are made, and three processes are started one after the
/// other.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Timeout from SIGTERM to the end of all processes.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// The test guest's kernel command line: see scripts/run-guest. Its only serial line is the VM's
/// console.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=0 panic=-1 mitigations=off nokaslr cryptomgr.notests audit=0 lsm= \
tsc=reliable no_timer_check init_on_alloc=0 session=protocol";

/// How curl asks the API.
const CURL: [&str; 5] = ["--silent", "--show-error", "--fail-with-body", "--cacert", "home/control/api.crt"];

/// A user with a state in the test's directory, and their Strongroom. On drop, running VMs are
/// stopped by force.
pub struct Serving<'test> {
    scratch: &'test Scratch,
    /// The program.
    pub strongroom: CommandLine<'test>,
    kmip: String,
    enrolment: String,
    api: String,
    serve: Option<Process>,
    starts: u32,
    log: &'static str,
    /// More options of `serve`.
    options: String,
}

impl<'test> Serving<'test> {
    /// Starts everything, with no previous setup.
    #[track_caller]
    pub fn start(scratch: &'test Scratch) -> Self {
        Self::start_logging(scratch, "info")
    }

    /// As [`start`](Self::start), with more options of `serve`.
    #[track_caller]
    pub fn start_with(scratch: &'test Scratch, options: &str) -> Self {
        let mut serving = Self::not_started(scratch, "info");
        options.clone_into(&mut serving.options);
        serving.start_again();
        serving
    }

    /// As [`start`](Self::start), with logs of this level.
    #[track_caller]
    pub fn start_logging(scratch: &'test Scratch, log: &'static str) -> Self {
        let mut serving = Self::not_started(scratch, log);
        serving.start_again();
        serving
    }

    /// A user who sets things up before the first start, which is
    /// [`start_again`](Self::start_again).
    #[track_caller]
    pub fn not_started_yet(scratch: &'test Scratch) -> Self {
        Self::not_started(scratch, "info")
    }

    /// The options of `keyserver init` for a key server where `serve` expects it.
    pub fn key_server_options(&self) -> String {
        format!("--unprotected --listen {} --listen-enrolment {}", self.kmip, self.enrolment)
    }

    #[track_caller]
    fn not_started(scratch: &'test Scratch, log: &'static str) -> Self {
        let ((kmip, enrolment), (api, _)) = (free_addresses(), free_addresses());
        let strongroom = CommandLine::new(scratch);
        std::fs::create_dir_all(scratch.path("ds")).expect("a scratch directory takes a directory");
        let options = String::new();
        Self { scratch, strongroom, kmip, enrolment, api, serve: None, starts: 0, log, options }
    }

    /// Starts it again after its end.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.serve.is_none(), "it runs");
        self.starts += 1;
        let Self { kmip, enrolment, api, log, options, .. } = self;
        let arguments = format!(
            // The machine that runs the tests may well have swap.
            "--log {log} serve --listen {api} --listen-kmip {kmip} --listen-enrolment {enrolment} --name host1 --run \"$PWD/run\" \
             --crypto-safe advised {options}"
        );
        let script = script(&arguments);
        let mut serve = self.strongroom.start_shell(&format!("serve-{}", self.starts), &script);
        serve.wait_for_line("where its API is", STARTS_WITHIN, |line| line.starts_with("https://"));
        self.serve = Some(serve);
    }

    /// Ends it in order. VMs keep running.
    #[track_caller]
    pub fn end(&mut self) {
        let serve = self.serve.take().expect("it runs");
        let status = serve.terminate(ENDS_WITHIN);
        assert!(status.success(), "{status}");
    }

    /// Kills it together with its processes. VMs keep running.
    #[track_caller]
    pub fn kill(&mut self) {
        self.serve.take().expect("it runs").kill();
    }

    /// The key server's enrolment address.
    pub fn key_server_questions(&self) -> &str {
        &self.enrolment
    }

    /// Returns the output of a command that must succeed.
    #[track_caller]
    pub fn runs(&self, arguments: &str) -> String {
        self.strongroom.run_shell(&script(arguments)).success()
    }

    /// As [`runs`](Self::runs), with the JSON output.
    #[track_caller]
    pub fn json(&self, arguments: &str) -> Value {
        let said = self.runs(&format!("--json {arguments}"));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments}: {error}: {said}"))
    }

    /// Where the API is, such as `https://127.0.0.1:5690`.
    pub fn api_url(&self) -> String {
        let path = self.scratch.path("home/control/api.json");
        let told = std::fs::read(&path).expect("a control plane that runs says where");
        let told: Value = serde_json::from_slice(&told).expect("it says it in JSON");
        told["url"].as_str().expect("it names its URL").trim_end_matches('/').to_owned()
    }

    /// Returns a page that the API gives to everyone.
    #[track_caller]
    pub fn gets(&self, path: &str) -> String {
        let url = format!("{}{path}", self.api_url());
        self.strongroom.peer("curl", &[&CURL[..], &[&url]].concat())
    }

    /// Posts a request to the API with the first token. Returns the answer.
    #[track_caller]
    pub fn posts(&self, path: &str, body: &Value) -> Value {
        self.asks(path, &["-d", &body.to_string()])
    }

    /// Reads what the API answers to the first token.
    #[track_caller]
    pub fn reads(&self, path: &str) -> Value {
        self.asks(path, &[])
    }

    #[track_caller]
    fn asks(&self, path: &str, more: &[&str]) -> Value {
        let url = format!("{}{path}", self.api_url());
        let token = std::fs::read_to_string(self.scratch.path("home/control/token")).expect("it is there");
        let headers = format!("Authorization: Bearer {}\nContent-Type: application/json\n", token.trim());
        std::fs::write(self.scratch.path("headers"), headers).expect("a scratch directory takes a file");
        let said = self.strongroom.peer("curl", &[&CURL[..], &["-H", "@headers"], more, &[&url]].concat());
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{path}: {error}: {said}"))
    }

    /// Returns the output of a command, or the error that it was refused with, as JSON.
    ///
    /// # Errors
    /// The `code` and `message` of the refusal.
    #[track_caller]
    pub fn answer(&self, arguments: &str) -> Result<String, Value> {
        let finished = self.strongroom.run_shell(&script(&format!("--json {arguments}")));
        if finished.status.success() {
            return Ok(finished.stdout);
        }
        let said = finished.failure();
        // A remark may come first.
        let last = said.lines().last().unwrap_or_default();
        let told: Value =
            serde_json::from_str(last).unwrap_or_else(|error| panic!("{arguments}: {error}: {said}"));
        Err(told["error"].clone())
    }

    /// Returns the message of a command that must fail.
    #[track_caller]
    pub fn is_refused(&self, arguments: &str) -> String {
        self.strongroom.run_shell(&script(arguments)).failure()
    }

    /// Returns the stdout of a command that must end with exit status 1.
    #[track_caller]
    pub fn finds(&self, arguments: &str) -> String {
        let finished = self.strongroom.run_shell(&script(arguments));
        assert_eq!(finished.status.code(), Some(1), "{}{}", finished.stdout, finished.stderr);
        finished.stdout
    }

    /// Puts the test guest into hostd's boot directory. Returns the options for `vm create`.
    #[track_caller]
    pub fn test_guest(&self) -> String {
        self.test_guest_with("vmlinux", &["initramfs.cpio"])
    }

    /// As [`test_guest`](Self::test_guest), for a guest that has the guest agent (`qemu-ga`).
    #[track_caller]
    pub fn test_guest_with_agent(&self) -> String {
        self.test_guest_with("vmlinux", &["initramfs.cpio", "agent.cpio"])
    }

    /// As [`test_guest`](Self::test_guest), for a VM with UEFI, which needs an unmodified kernel
    /// image.
    #[track_caller]
    pub fn test_guest_for_uefi(&self) -> String {
        put_test_guest_for_uefi(self.scratch)
    }

    #[track_caller]
    fn test_guest_with(&self, kernel: &str, archives: &[&str]) -> String {
        put_guest(self.scratch, kernel, archives)
    }

    /// Returns the output of `vm show` for a VM.
    #[track_caller]
    pub fn vm(&self, name: &str) -> Value {
        self.json(&format!("vm show {name}"))
    }

    /// Waits until the output of `vm show` satisfies `is_so`.
    #[track_caller]
    pub fn wait_until(&self, name: &str, awaited: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            // A control plane that was just killed may not answer yet.
            let told = self.strongroom.run_shell(&script(&format!("--json vm show {name}")));
            match serde_json::from_str(&told.stdout) {
                Ok(vm) if told.status.success() && is_so(&vm) => return vm,
                _ => assert!(
                    Instant::now() < until,
                    "{name} {awaited}: not within {STARTS_WITHIN:?}: {told:?}"
                ),
            }
        }
    }

    /// Waits until the output of a command contains `part`.
    #[track_caller]
    pub fn wait_until_told(&self, arguments: &str, part: &str) {
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            let told = self.strongroom.run_shell(&script(arguments));
            if told.status.success() && told.stdout.contains(part) {
                return;
            }
            assert!(Instant::now() < until, "{arguments}: no '{part}' within {STARTS_WITHIN:?}: {told:?}");
        }
    }

    /// Opens the console of a VM that runs the test guest.
    #[track_caller]
    pub fn console(&self, name: &str) -> Console {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "setsid"]).arg(build::program());
        command.args(["vm", "console", name]).env("STRONGROOM_HOME", self.scratch.path("home"));
        Console::open(command, &self.scratch.path(""), &format!("console-{name}"))
    }

    /// As [`console`](Self::console), for a VM whose supervisor was killed, once another has taken
    /// over.
    #[track_caller]
    pub fn console_when_taken_over(&self, name: &str, vm: &str) -> Console {
        self.wait_until(name, "is taken over", |told| {
            let supervisor = self.processes_of(vm).first().map(|pid| pid.as_raw_nonzero().get());
            told["power"] == "running" && supervisor.is_some_and(|pid| runs(pid.cast_unsigned()))
        });
        self.console(name)
    }

    /// Takes a place among the running guests.
    pub fn take_place(&self) -> impl Drop + use<> {
        Place::take()
    }

    /// The process with these words that `serve` started: `keyserver`, `serve --role host`, ...
    #[track_caller]
    pub fn process(&self, words: &[&str]) -> Pid {
        self.serve.as_ref().expect("it runs").child(words)
    }

    /// The processes that the test has started, without the consoles that it has open.
    pub fn processes(&self) -> Vec<(u32, String)> {
        processes_of_test(self.scratch)
    }

    /// The process ids in a VM's run directory: its supervisor, its QEMU and, if it has a TPM, its
    /// swtpm.
    pub fn processes_of(&self, vm: &str) -> Vec<Pid> {
        processes_of_vm(self.scratch, "run", vm)
    }

    /// The workers of a running VM.
    pub fn workers_of(&self, vm: &str) -> Vec<Pid> {
        self.started_for(vm, |word| word == b"worker")
    }

    /// The passt processes of a running VM.
    pub fn passts_of(&self, vm: &str) -> Vec<Pid> {
        self.started_for(vm, |word| word.starts_with(b"/usr/bin/passt"))
    }

    /// The QMP monitors of a running VM: one, unless it is being replaced.
    pub fn monitors_of(&self, vm: &str) -> Vec<Pid> {
        self.named_for(vm, b"strongroom-qmp")
    }

    /// The monitors of a running VM's guest agent: one during a conversation, otherwise none.
    pub fn agent_monitors_of(&self, vm: &str) -> Vec<Pid> {
        self.named_for(vm, b"strongroom-qga")
    }

    fn named_for(&self, vm: &str, name: &[u8]) -> Vec<Pid> {
        let read = |pid: &Pid| fs::read(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
        self.started_for(vm, |_| true).into_iter().filter(|pid| read(pid).starts_with(name)).collect()
    }

    /// The processes of a VM's starter with this word in their command line.
    fn started_for(&self, vm: &str, is_meant: impl Fn(&[u8]) -> bool) -> Vec<Pid> {
        let supervisor = self.processes_of(vm)[0];
        let read = |pid: Pid, file: &str| {
            fs::read(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default()
        };
        let parent = |pid: Pid| {
            let status = String::from_utf8_lossy(&read(pid, "status")).into_owned();
            let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            Pid::from_raw(line.trim().parse().ok()?)
        };
        let is_one = |pid: &Pid| {
            parent(*pid).and_then(parent) == Some(supervisor)
                && read(*pid, "cmdline").split(|byte| *byte == 0).any(&is_meant)
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter(is_one).collect()
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        drop(self.serve.take());
        end_vms(self.scratch);
    }
}

/// Puts the test guest into the boot directory of the hostd whose home is `home/hostd`. Returns the
/// options for `vm create`.
#[track_caller]
pub fn put_test_guest(scratch: &Scratch) -> String {
    put_guest(scratch, "vmlinux", &["initramfs.cpio"])
}

/// As [`Serving::test_guest_for_uefi`].
#[track_caller]
pub fn put_test_guest_for_uefi(scratch: &Scratch) -> String {
    put_guest(scratch, "vmlinuz", &["initramfs.cpio"])
}

#[track_caller]
fn put_guest(scratch: &Scratch, kernel: &str, archives: &[&str]) -> String {
    let boot = scratch.make_directory("home/hostd/boot");
    let read = |file: &str| {
        let read = fs::read(build::guest_directory().join(file));
        read.unwrap_or_else(|error| panic!("cannot read the guest's {file}: {error}"))
    };
    // The kernel unpacks one archive after the other.
    let initramfs: Vec<u8> = archives.iter().flat_map(|archive| read(archive)).collect();
    for (file, content) in [(kernel, read(kernel)), ("initramfs.cpio", initramfs)] {
        let written = fs::write(boot.join(file), content);
        written.unwrap_or_else(|error| panic!("cannot write the guest's {file}: {error}"));
    }
    let boot = boot.display();
    format!("--kernel {boot}/{kernel} --initrd {boot}/initramfs.cpio --append '{KERNEL_ARGUMENTS}'")
}

/// Takes a place among the running guests.
pub fn take_place() -> impl Drop {
    Place::take()
}

/// Stops by force the VMs whose run directory is `run` in a test's directory, when nothing can
/// start another.
pub fn end_vms(scratch: &Scratch) {
    end_vms_in(scratch, "run");
}

/// As [`end_vms`], for another run directory.
pub fn end_vms_in(scratch: &Scratch, run: &str) {
    let vms = fs::read_dir(scratch.path(&format!("{run}/vms"))).into_iter().flatten().flatten();
    for vm in vms {
        for pid in processes_of_vm(scratch, run, &vm.file_name().to_string_lossy()) {
            // The id alone could belong to another process by now.
            let ours = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            if [&b"qemu"[..], b"vm-supervisor", b"swtpm"].iter().any(|name| contains(&ours, name)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
    // A QEMU that was being started when its supervisor was killed, and was not recorded yet.
    let directory = scratch.path("").display().to_string();
    for (pid, line) in processes_of_test(scratch) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| line.contains("qemu-system") && line.contains(&directory)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn processes_of_vm(scratch: &Scratch, run: &str, vm: &str) -> Vec<Pid> {
    let text = fs::read(scratch.path(&format!("{run}/vms/{vm}/state.json"))).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    let pid = |of: &str| state[of]["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    ["supervisor", "qemu", "swtpm"].iter().filter_map(|of| pid(of)).collect()
}

/// All processes that have a test's directory in their command line, and those of this program that
/// have a file open there; without the consoles that the test has open. Other tests run beside it.
fn processes_of_test(scratch: &Scratch) -> Vec<(u32, String)> {
    let program = build::program().display().to_string();
    let directory = scratch.path("").display().to_string();
    let has_files = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target.to_string_lossy().contains(&directory))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // Whole words only: a shell with the program's name in its script does not count.
    let ours = |pid: u32, line: &str| {
        line.split('\0').any(|word| word.contains(&directory) || (word == program && has_files(pid)))
    };
    let found = pids.map(|pid| (pid, String::from_utf8_lossy(&line(pid)).into_owned()));
    found
        .filter(|(pid, line)| ours(*pid, line))
        .map(|(pid, line)| (pid, line.replace('\0', " ")))
        .filter(|(_, line)| !line.contains("vm console"))
        .collect()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn script(arguments: &str) -> String {
    format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {arguments}")
}

/// An open console.
pub struct Console {
    /// Commands in the guest.
    pub session: Session,
    child: std::process::Child,
}

impl Console {
    /// Starts a command that is connected with a console, in a test's directory; what it and the
    /// guest say goes to files there that have this name.
    #[track_caller]
    pub fn open(mut command: Command, directory: &Path, name: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("there are sockets");
        let theirs = OwnedFd::from(theirs);
        let stdin = theirs.try_clone().expect("a socket can be cloned");
        let stderr = fs::File::create(directory.join(format!("{name}.stderr")));
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(theirs)).current_dir(directory);
        command.env("STRONGROOM", build::program());
        command.stderr(Stdio::from(stderr.expect("the scratch directory can be written")));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start a console: {error}"));
        Self { session: Session::new(ours, &directory.join(format!("{name}.log"))), child }
    }

    /// Waits until the guest is ready for commands.
    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.session.wait_until_ready();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
