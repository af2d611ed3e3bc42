//! Machines for tests, and the launcher that starts them.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use strongroom_hypervisor::launch::process_main;
use strongroom_hypervisor::machine::{Accelerator, MachineSpec, MachineType};
use strongroom_hypervisor::qemu::DEFAULT_PROGRAM;
use strongroom_hypervisor::{Isolation, Launcher, PowerEvent, Qemu, QemuProgram, Qmp, RunDirectory};
use strongroom_types::VmId;
use tempfile::TempDir;

/// The argument with which this program is a launcher.
const LAUNCH: &str = "launch-for-test";
/// For what happens at once, on a machine where much happens.
pub const SOON: Duration = Duration::from_secs(60);
/// A user for a machine, where tests run as root: no other test or service has it.
const USER: u32 = 0x7100_0000;

/// The tests of a program, or what it was called for by one of them.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(LAUNCH) {
        eprintln!("{}", process_main());
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A test that fails by panicking.
pub fn trial(name: &str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// What machines of a test are made with.
pub struct Lab {
    pub directory: TempDir,
    pub program: QemuProgram,
    pub launcher: Launcher,
    pub user: Option<(u32, u32)>,
}

impl Lab {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Not as other users' programs see it, if the machine's user is not ours.
        let user = rustix::process::geteuid().is_root().then_some((USER, USER));
        let program = QemuProgram::probe(Path::new(DEFAULT_PROGRAM)).unwrap();
        Self { directory, program, launcher: Launcher::this_program([LAUNCH]), user }
    }

    pub fn run_directory(&self) -> RunDirectory {
        RunDirectory::create(self.directory.path(), self.user).unwrap()
    }

    pub fn isolation(&self) -> Isolation<'_> {
        Isolation { user: self.user, ..Isolation::of_caller(&self.launcher) }
    }

    #[track_caller]
    pub fn start(&self, spec: &MachineSpec) -> Machine {
        match Qemu::start(&self.program, spec, &self.run_directory(), &self.isolation()) {
            Ok(qemu) => Machine(qemu),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A small machine under TCG.
pub fn small(machine: MachineType) -> MachineSpec {
    let memory = "32M".parse().unwrap();
    MachineSpec {
        machine,
        accelerator: Accelerator::Tcg,
        ..MachineSpec::minimal(VmId::random(), "test", memory)
    }
}

/// A machine that ends with its test.
pub struct Machine(pub Qemu);

impl std::ops::Deref for Machine {
    type Target = Qemu;

    fn deref(&self) -> &Qemu {
        &self.0
    }
}

impl std::ops::DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Qemu {
        &mut self.0
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Waits for an event.
#[track_caller]
pub fn await_event(qmp: &Qmp, is_it: impl Fn(&PowerEvent) -> bool) -> PowerEvent {
    let until = Instant::now() + SOON;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match qmp.next_event(left) {
            Ok(Some(event)) if is_it(&event) => return event,
            Ok(Some(_)) => {}
            other => panic!("the event did not come: {other:?}"),
        }
    }
}
