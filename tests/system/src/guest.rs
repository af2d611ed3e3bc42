//! QEMU guests, booted by `scripts/run-guest` from the files that `scripts/build-guest` made.

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

/// The most emulated guests that run at once in a test program: each takes one of CI's two
/// processors. Test programs run one after another.
const GUESTS_AT_ONCE: usize = 2;

/// Timeout from QEMU's start to its first connection.
const QEMU_STARTS_WITHIN: Duration = Duration::from_secs(60);
/// From the last byte of a migration to the guest's first step in its new place.
const ARRIVAL_DEADLINE: Duration = Duration::from_secs(120);
/// From the end of the session to the end of QEMU, with every file system unmounted.
const POWER_OFF_DEADLINE: Duration = Duration::from_secs(120);

/// The machine type.
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

/// A guest before its boot.
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

    /// Uses this machine type.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.run_guest.args(["--machine", machine.name()]);
        self
    }

    /// Adds a disk on the NBD server at this socket. The first disk is `/dev/vda`.
    pub fn nbd(mut self, socket: &Path) -> Self {
        self.run_guest.arg("--disk").arg(socket);
        self
    }

    /// Adds a disk on the vhost-user server at this socket.
    pub fn vhost_user(mut self, socket: &Path) -> Self {
        self.run_guest.arg("--vhost-user").arg(socket);
        self
    }

    /// Adds a disk by QEMU arguments, as `volume expose` prints them for a shell.
    pub fn pasted(mut self, arguments: &str) -> Self {
        self.run_guest.args(["--paste", arguments]);
        self
    }

    /// Boots it. Waits for a place first if too many guests run. Returns when it is ready for
    /// commands.
    #[track_caller]
    pub fn boot(self) -> Guest {
        let started = Instant::now();
        let mut guest = self.start();
        guest.session.wait_until_ready();
        guest.boot_time = started.elapsed();
        guest
    }

    /// Starts QEMU without booting: a guest will arrive by migration.
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
    // Fields drop in this order: QEMU is gone before its place is free.
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

    /// As [`Guest::boot`], with vhost-user servers, which share the guest's memory.
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

    /// Both sessions, for QMP commands while a command runs in the guest.
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

/// A QEMU that waits for a guest.
pub struct AwaitedGuest {
    guest: Guest,
}

impl AwaitedGuest {
    /// Begins to receive the guest at a migration URI (QEMU `qapi/migration.json`,
    /// `migrate-incoming`).
    #[track_caller]
    pub fn receive_from(&mut self, uri: &str) {
        self.guest.qmp.execute("migrate-incoming", json!({ "uri": uri }));
    }

    /// Waits until the guest runs in this QEMU.
    #[track_caller]
    pub fn arrived(mut self) -> Guest {
        self.guest.qmp.wait_for_event("RESUME", ARRIVAL_DEADLINE);
        self.guest
    }
}

/// A place among the guests that may run at once.
pub(crate) struct Place;

static PLACES_TAKEN: Mutex<usize> = Mutex::new(0);
static PLACE_FREED: Condvar = Condvar::new();

impl Place {
    pub(crate) fn take() -> Self {
        let mut taken = PLACES_TAKEN.lock();
        // Without a timeout: the holder of a place has timeouts, and releases it even if it fails.
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
