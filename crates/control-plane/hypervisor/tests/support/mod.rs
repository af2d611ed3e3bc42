//! Machines for tests, and the launcher that starts them.

#![allow(dead_code, reason = "each test program uses a part")]

pub mod guest;
pub mod servers;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;
use strongroom_hypervisor::launch::Measure;
use strongroom_hypervisor::machine::{Accelerator, Board, MachineSpec, MachineType};
use strongroom_hypervisor::qemu::DEFAULT_PROGRAM;
use strongroom_hypervisor::swtpm::{Notice, StateGate};
use strongroom_hypervisor::{
    Isolation, Launcher, Monitor, PowerEvent, Qemu, QemuIdentity, QemuProgram, RunDirectory, process_main,
};
use strongroom_types::VmId;
use tempfile::TempDir;

/// The argument that makes this program a launcher.
const LAUNCH: &str = "launch-for-test";
/// Timeout of steps that take no time, on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);
/// The user of a machine when tests run as root. No other test or service uses it.
const USER: u32 = 0x7100_0000;

/// The argument that makes this program a supervisor, which starts a machine in the directory that
/// follows.
const SUPERVISE: &str = "supervise-for-test";

/// The argument that makes this program run the test that follows in its present network.
const IN_OWN_NETWORK: &str = "in-own-network-for-test";

/// Runs a test of this program's `own_network` in an empty network of its own. This needs root.
pub fn in_own_network(test: &str) {
    let mut command = Command::new("unshare");
    command.arg("--net").arg(std::env::current_exe().unwrap()).args([IN_OWN_NETWORK, test]);
    let status = command.status().unwrap();
    assert!(status.success(), "{test}: {status}");
}

/// Runs the tests of a program, or the role that one of them started it for.
pub fn run(trials: Vec<(&'static str, fn())>) -> ExitCode {
    run_with(trials, &[])
}

/// As [`run`]; `own_network` are tests for [`in_own_network`].
pub fn run_with(trials: Vec<(&'static str, fn())>, own_network: &[(&str, fn())]) -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some(LAUNCH) => {
            eprintln!("{}", process_main());
            return ExitCode::FAILURE;
        }
        Some(IN_OWN_NETWORK) => {
            let name = std::env::args().nth(2).unwrap();
            let test = own_network.iter().find(|(known, _)| *known == name).unwrap().1;
            test();
            return ExitCode::SUCCESS;
        }
        Some(SUPERVISE) => {
            let directory = std::env::args().nth(2).unwrap();
            supervise(Path::new(&directory));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let trials = trials.into_iter().map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The parts that a test's machines are made with.
pub struct Lab {
    path: PathBuf,
    _directory: Option<TempDir>,
    pub program: QemuProgram,
    pub launcher: Launcher,
    pub user: Option<(u32, u32)>,
}

impl Lab {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lab = Self::in_directory(directory.path());
        Self { _directory: Some(directory), ..lab }
    }

    fn in_directory(path: &Path) -> Self {
        let user = rustix::process::geteuid().is_root().then_some((USER, USER));
        let program = std::env::var_os("STRONGROOM_QEMU").unwrap_or_else(|| DEFAULT_PROGRAM.into());
        let program = QemuProgram::probe(Path::new(&program)).unwrap();
        let launcher = Launcher::this_program([LAUNCH]);
        // Modes are set whatever the umask is: QEMU enters these directories as another user.
        make_directory(path, 0o755);
        make_directory(&path.join("disks"), 0o711);
        Self { path: path.to_owned(), _directory: None, program, launcher, user }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in the directory of disks' sockets.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.run_directory().disks().join(name)
    }

    pub fn run_directory(&self) -> RunDirectory {
        RunDirectory::create(&self.path, self.user).unwrap()
    }

    /// The walls that are missing: an ordinary user cannot assign other users.
    pub fn shortfalls(&self) -> Vec<Measure> {
        if self.user.is_some() { Vec::new() } else { vec![Measure::OwnUser] }
    }

    pub fn isolation(&self) -> Isolation<'_> {
        Isolation { user: self.user, ..Isolation::of_caller(&self.launcher) }
    }

    /// A copy of this program that another user can run. The original may be below a private
    /// directory.
    fn program_for_all(&self) -> PathBuf {
        let program = self.path.join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        program
    }

    #[track_caller]
    pub fn start(&self, spec: &MachineSpec) -> Machine {
        match Qemu::start(&self.program, spec, &self.run_directory(), &self.isolation()) {
            Ok(qemu) => Machine::of(qemu),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes a directory with this mode under any umask; an existing one is kept.
pub fn make_directory(path: &Path, mode: u32) {
    std::fs::create_dir_all(path).unwrap();
    // The directory of another supervisor, which took over the lab, already has its mode.
    if rustix::process::geteuid().as_raw() == std::fs::metadata(path).unwrap().uid() {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
}

/// A small machine under TCG.
pub fn small(machine: MachineType) -> MachineSpec {
    let memory = "32M".parse().unwrap();
    MachineSpec {
        board: Board::bare(machine),
        accelerator: Accelerator::Tcg,
        ..MachineSpec::minimal(VmId::random(), "test", memory)
    }
}

/// Starts a machine like a separate supervisor, prints its identity, and waits.
fn supervise(directory: &Path) {
    let lab = Lab::in_directory(directory);
    let qemu =
        Qemu::start(&lab.program, &small(MachineType::Q35), &lab.run_directory(), &lab.isolation()).unwrap();
    serde_json::to_writer(std::io::stdout(), &qemu.identity()).unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A supervisor in a process of its own.
pub struct OtherSupervisor {
    child: Child,
    pub qemu: QemuIdentity,
}

impl OtherSupervisor {
    /// Starts one as this user, or as the user of this process.
    pub fn start(lab: &Lab, user: Option<u32>) -> Self {
        let mut command = match user {
            None => Command::new(std::env::current_exe().unwrap()),
            Some(_) => Command::new(lab.program_for_all()),
        };
        command.arg(SUPERVISE).arg(lab.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            std::os::unix::fs::chown(lab.path(), Some(user), Some(user)).unwrap();
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let qemu = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { child, qemu }
    }

    /// The monitor that it started.
    pub fn monitor(&self) -> Pid {
        monitors_of(self.child.id())[0]
    }

    pub fn kill(mut self) -> QemuIdentity {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.qemu
    }
}

/// A machine that ends with its test.
pub struct Machine(Option<Qemu>);

impl Machine {
    pub fn of(qemu: Qemu) -> Self {
        Self(Some(qemu))
    }

    /// Returns the machine, which then no longer ends with its test.
    pub fn released(mut self) -> Qemu {
        self.0.take().unwrap()
    }
}

impl std::ops::Deref for Machine {
    type Target = Qemu;

    fn deref(&self) -> &Qemu {
        self.0.as_ref().unwrap()
    }
}

impl std::ops::DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Qemu {
        self.0.as_mut().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.0 {
            qemu.kill();
        }
    }
}

/// The monitors that a process has started, found by their process name.
pub fn monitors_of(starter: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("Name:\tstrongroom-qmp") && status.contains(&format!("PPid:\t{starter}\n"))
    };
    pids.filter(is_one).filter_map(Pid::from_raw).collect()
}

/// A pipe with a key in it.
pub fn key(byte: u8) -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[byte; 32]).unwrap();
    reader.into()
}

/// A directory for a TPM's state.
pub fn state_directory(lab: &Lab) -> PathBuf {
    let state = lab.path().join("vtpm");
    std::fs::create_dir_all(&state).unwrap();
    state
}

/// Answers for the states of a TPM that has just started, as the supervisor of a VM does that has
/// recorded them.
pub fn accept_states(lab: &Lab) {
    let gate = StateGate::connect(&lab.run_directory().tpm_states()).unwrap().unwrap();
    std::thread::spawn(move || {
        loop {
            poll(&mut [PollFd::new(&gate, PollFlags::IN)], None).unwrap();
            match gate.notice().unwrap() {
                Notice::NewState => drop(gate.recorded()),
                Notice::Nothing => {}
                Notice::Gone => return,
            }
        }
    });
}

/// Waits for an event.
#[track_caller]
pub fn await_event(monitor: &Monitor, is_it: impl Fn(&PowerEvent) -> bool) -> PowerEvent {
    let until = Instant::now() + SOON;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match monitor.next_event(left) {
            Ok(Some(event)) if is_it(&event) => return event,
            Ok(Some(_)) => {}
            other => panic!("the event did not come: {other:?}"),
        }
    }
}
