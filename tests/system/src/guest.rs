//! QEMU guests, booted by `scripts/run-guest` from what `scripts/build-guest` made.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::json;

use crate::build;
use crate::process::Process;
use crate::qmp::Qmp;
use crate::scratch::Scratch;
use crate::session::{Output, RunningCommand, Session};
use crate::socket::Listener;

/// Emulated guests run at once, in one test program; each takes a whole processor of the two that
/// CI has. Test programs run one after another.
const GUESTS_AT_ONCE: usize = 2;

/// From starting QEMU to its first connection.
const QEMU_STARTS_WITHIN: Duration = Duration::from_secs(60);
/// From the last byte of a migration to the guest's first step in its new place.
const ARRIVAL_DEADLINE: Duration = Duration::from_secs(120);
/// From the end of the session to the end of QEMU, with every file system unmounted.
const POWER_OFF_DEADLINE: Duration = Duration::from_secs(120);

/// What kind of computer QEMU makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// With a PCI bus.
    #[default]
    Pc,
    /// With PCI Express; devices are plugged into the root ports `plug0` and `plug1`.
    Q35,
}

impl Machine {
    /// QEMU's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pc => "pc",
            Self::Q35 => "q35",
        }
    }

    /// The bus that a device is plugged into while the guest runs.
    pub fn plug(self) -> &'static str {
        match self {
            Self::Pc => "pci.0",
            Self::Q35 => "plug0",
        }
    }
}

/// A guest that is to be.
pub struct GuestPlan<'test> {
    scratch: &'test Scratch,
    name: String,
    run_guest: Command,
}

impl<'test> GuestPlan<'test> {
    /// A guest on a machine of type pc, without disks.
    pub fn new(scratch: &'test Scratch, name: &str) -> Self {
        let mut run_guest = Command::new(build::script("run-guest"));
        run_guest.env("STRONGROOM_GUEST_DIR", build::guest_directory());
        run_guest.arg("--console").arg(scratch.path(&format!("{name}.console")));
        Self { scratch, name: name.to_owned(), run_guest }
    }

    /// On a machine of this type.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.run_guest.args(["--machine", machine.name()]);
        self
    }

    /// With a disk that is the NBD server on this socket. The first disk is `/dev/vda`.
    pub fn nbd(mut self, socket: &Path) -> Self {
        self.run_guest.arg("--disk").arg(socket);
        self
    }

    /// With a disk that is the vhost-user server on this socket.
    pub fn vhost_user(mut self, socket: &Path) -> Self {
        self.run_guest.arg("--vhost-user").arg(socket);
        self
    }

    /// With a disk by QEMU's arguments, as `volume expose` prints them to be pasted into a shell.
    pub fn pasted(mut self, arguments: &str) -> Self {
        self.run_guest.args(["--paste", arguments]);
        self
    }

    /// Boots it. Returns when it is ready for commands. Waits for a place first when too many
    /// guests run.
    #[track_caller]
    pub fn boot(self) -> Guest {
        let started = Instant::now();
        let mut guest = self.start();
        guest.session.wait_until_ready();
        guest.boot_time = started.elapsed();
        guest
    }

    /// Starts QEMU and no guest: one will come by migration.
    #[track_caller]
    pub fn await_migration(mut self) -> AwaitedGuest {
        self.run_guest.arg("--incoming");
        AwaitedGuest { guest: self.start() }
    }

    #[track_caller]
    fn start(self) -> Guest {
        let Self { scratch, name, mut run_guest } = self;
        let place = Place::take();
        let serial = Listener::new(scratch, &name, "session");
        let monitor = Listener::new(scratch, &name, "qmp");
        run_guest.arg("--serial").arg(serial.path()).arg("--qmp").arg(monitor.path());
        let qemu = Process::start(scratch, &format!("qemu-{name}"), &run_guest);
        let accept = |listener: &Listener| listener.accept(QEMU_STARTS_WITHIN, qemu.stderr_log());
        let session = Session::new(accept(&serial), &serial.path().with_extension("log"));
        let qmp = Qmp::negotiate(accept(&monitor), &monitor.path().with_extension("log"));
        Guest { session, qmp, boot_time: Duration::ZERO, qemu, _place: place }
    }
}

/// A running guest.
pub struct Guest {
    session: Session,
    qmp: Qmp,
    boot_time: Duration,
    // Fields drop in this order: QEMU is gone before the place it took is free.
    qemu: Process,
    _place: Place,
}

impl Guest {
    /// Boots a guest whose disks are the NBD servers on `sockets`, as [`GuestPlan::boot`] does.
    #[track_caller]
    pub fn boot(scratch: &Scratch, name: &str, sockets: &[&Path]) -> Self {
        let plan = GuestPlan::new(scratch, name);
        sockets.iter().fold(plan, |plan, socket| plan.nbd(socket)).boot()
    }

    /// As [`Guest::boot`], of vhost-user servers, which share the guest's memory.
    #[track_caller]
    pub fn boot_vhost_user(scratch: &Scratch, name: &str, sockets: &[&Path]) -> Self {
        let plan = GuestPlan::new(scratch, name);
        sockets.iter().fold(plan, |plan, socket| plan.vhost_user(socket)).boot()
    }

    /// From starting QEMU to the guest being ready for commands.
    pub fn boot_time(&self) -> Duration {
        self.boot_time
    }

    /// As [`Session::run`].
    #[track_caller]
    pub fn run(&mut self, command: &str) -> String {
        self.session.run(command)
    }

    /// As [`Session::try_run`].
    #[track_caller]
    pub fn try_run(&mut self, command: &str, deadline: Duration) -> Output {
        self.session.try_run(command, deadline)
    }

    /// As [`Session::start`].
    pub fn start(&mut self, command: &str) -> RunningCommand<'_> {
        self.session.start(command)
    }

    /// Commands in this guest.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The QMP session with this guest's QEMU.
    pub fn qmp(&mut self) -> &mut Qmp {
        &mut self.qmp
    }

    /// Both, for what QEMU is told while a command runs in the guest.
    pub fn session_and_qmp(&mut self) -> (&mut Session, &mut Qmp) {
        (&mut self.session, &mut self.qmp)
    }

    /// Ends the session: the guest unmounts, flushes and powers off. Returns when QEMU has ended,
    /// successfully.
    #[track_caller]
    pub fn power_off(mut self) {
        self.session.begin("exit");
        let status = self.qemu.wait(POWER_OFF_DEADLINE);
        assert!(status.success(), "QEMU: {status}; its stderr is in {}", self.qemu.stderr_log().display());
    }

    /// Cuts the guest's power: it has no chance to flush anything.
    #[track_caller]
    pub fn cut_power(self) {
        self.qemu.kill();
    }
}

/// QEMU, waiting for a guest.
pub struct AwaitedGuest {
    guest: Guest,
}

impl AwaitedGuest {
    /// Begins to receive the guest from a migration URI (QEMU `qapi/migration.json`,
    /// `migrate-incoming`).
    #[track_caller]
    pub fn receive_from(&mut self, uri: &str) {
        self.guest.qmp.execute("migrate-incoming", json!({ "uri": uri }));
    }

    /// Waits until the guest runs here.
    #[track_caller]
    pub fn arrived(mut self) -> Guest {
        self.guest.qmp.wait_for_event("RESUME", ARRIVAL_DEADLINE);
        self.guest
    }
}

/// A guest's place among those that may run at once.
pub(crate) struct Place;

static PLACES_TAKEN: Mutex<usize> = Mutex::new(0);
static PLACE_FREED: Condvar = Condvar::new();

impl Place {
    pub(crate) fn take() -> Self {
        let mut taken = PLACES_TAKEN.lock();
        // Without a deadline: whoever has a place is bound by deadlines, and frees it even by
        // failing.
        PLACE_FREED.wait_while(&mut taken, |taken| *taken >= GUESTS_AT_ONCE);
        *taken += 1;
        Self
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *PLACES_TAKEN.lock() -= 1;
        PLACE_FREED.notify_one();
    }
}
