//! Starting a machine: what it needs, in the order in which it is needed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, lchown};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::socket::{connect_to, connect_within, expect_peer};
use super::{Qemu, QemuError, QemuIdentity, QemuProgram, RunDirectory, STARTS_WITHIN, handed_over};
use crate::firmware::Ovmf;
use crate::kvm;
use crate::launch::{
    Become, Files, Isolation, Kills, Plan, Process, ProcessFiles, Shortfall, Visible, launch,
};
use crate::machine::{
    Accelerator, Boot, CdromImage, Connection, Firmware, HostFacts, MachineSpec, arguments,
};
use crate::monitor::{Loss, Monitor, MonitorProcess, NotGreeted};
use crate::network::{self, NetworkState};

/// How long to wait before the socket that QEMU is to make is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// From QEMU's hanging up to its end.
const HANGS_UP_BEFORE: Duration = Duration::from_secs(1);

/// How many monitors are tried on a QEMU that runs before it is given up.
const MONITORS_MAX: u32 = 3;

/// Before another monitor is tried: the host may have no process or user to spare.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Qemu {
    /// Starts a machine. Its processors stand still until [`Monitor::cont`].
    ///
    /// The disks' servers must listen, and swtpm if there is to be a TPM. As root, the sockets of
    /// the disks are given to the VM's user.
    pub fn start(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        Self::started(Self::launch(program, spec, run, isolation, false)?)
    }

    /// The same, for a machine that gets its memory and its devices' state by
    /// [`Monitor::load_memory`] before it can run.
    pub fn start_waiting(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        Self::started(Self::launch(program, spec, run, isolation, true)?)
    }

    fn started(launched: LaunchedQemu) -> Result<Self, QemuError> {
        let LaunchedQemu { machine, networks, companions } = launched;
        let mut companions = Companions(companions);
        let mut qemu = Self::take_up(machine, networks)?;
        qemu.companions = companions.take();
        Ok(qemu)
    }

    /// Starts QEMU, for [`Self::take_up`]. It is `waiting` as with [`Self::start_waiting`].
    pub fn launch(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
        waiting: bool,
    ) -> Result<LaunchedQemu, QemuError> {
        spec.validate()?;
        let kvm = runs_on_kvm(spec.accelerator, program)?;
        let ovmf = match spec.firmware {
            Firmware::Bios => None,
            Firmware::Uefi { .. } => Some(Ovmf::find()?),
        };
        remove_old_sockets(run)?;
        give_sockets(spec, isolation)?;
        let mut files = Files::default();
        let (mut networks, mut connections, mut companions) = (Vec::new(), Vec::new(), Companions::default());
        for nic in &spec.nics {
            let ready = network::prepare(&nic.network, isolation)?;
            companions.0.extend(ready.processes);
            let file = ready.file.map(|file| files.add(file).to_string());
            connections.push(connection(&ready.state, file));
            networks.push(ready.state);
        }
        let cdrom = spec.cdrom.as_ref().map(CdromImage::duplicate).transpose();
        let cdrom = cdrom.map_err(|error| QemuError::System {
            action: "hand over the image in its CD-ROM drive",
            error,
        })?;
        let host = HostFacts {
            version: program.version(),
            kvm,
            connections,
            ovmf_code: ovmf.map(|ovmf| ovmf.code),
            cdrom: cdrom.map(|image| files.add(image)),
        };
        let mut arguments = arguments(spec, run, &host);
        if waiting {
            arguments.extend(["-incoming", "defer"].map(str::to_owned));
        }
        let plan = Plan {
            becomes: Become::Program(program.path().to_owned()),
            arguments,
            groups: if kvm { kvm::group().into_iter().collect() } else { Vec::new() },
            visible: visible(spec, run, kvm),
            ..Plan::of(isolation)
        };
        let mut process = launch(isolation, &plan, &files)?;
        // QEMU has them now, and alone: that it is gone is seen at their other ends.
        drop(files);
        match reach(&process, run, isolation) {
            Ok(reached) => Ok(LaunchedQemu {
                machine: MachineProcess {
                    process,
                    identity: reached.identity,
                    monitors_process: Some(reached.monitor),
                    connection: Some(reached.connection),
                },
                networks,
                companions: companions.take(),
            }),
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }

    /// Waits until a QEMU that was started has greeted its monitor. One that does not is killed.
    pub fn take_up(machine: MachineProcess, networks: Vec<NetworkState>) -> Result<Self, QemuError> {
        Self::greeted(machine, networks, greet)
    }

    /// Waits until a QEMU that was found again has greeted its monitor. A guest runs in it, so a
    /// monitor that is lost, or slow, is replaced by `another`, a few times. A QEMU that hangs up,
    /// or that no monitor has come to speak with, is killed.
    pub fn take_over(
        machine: MachineProcess,
        mut another: impl FnMut() -> Result<OwnedFd, String>,
    ) -> Result<Self, QemuError> {
        Self::greeted(machine, Vec::new(), |process, connection| {
            greet_again(process, connection, &mut another)
        })
    }

    fn greeted(
        machine: MachineProcess,
        networks: Vec<NetworkState>,
        greet: impl FnOnce(&Process, OwnedFd) -> Result<Monitor, QemuError>,
    ) -> Result<Self, QemuError> {
        let MachineProcess { mut process, identity, monitors_process, connection } = machine;
        let greeted = connection.ok_or_else(handed_over).and_then(|connection| greet(&process, connection));
        match greeted {
            Ok(monitor) => {
                let companions = Vec::new();
                Ok(Self { process, identity, monitor, monitors_process, networks, companions })
            }
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }
}

/// Greets a QEMU that runs, by this monitor or one of those that replace it when they are lost.
fn greet_again(
    process: &Process,
    connection: OwnedFd,
    another: &mut dyn FnMut() -> Result<OwnedFd, String>,
) -> Result<Monitor, QemuError> {
    let mut connection = Ok(connection);
    let mut attempts = 1;
    loop {
        let why = match connection {
            Ok(connection) => match Monitor::greet(connection, STARTS_WITHIN) {
                Ok(monitor) => return Ok(monitor),
                Err(NotGreeted { loss: Some(Loss::Qemu), error }) => return Err(error.into()),
                Err(not) => not.error.to_string(),
            },
            Err(why) => why,
        };
        if process.wait(TRY_AGAIN) {
            return Err(QemuError::Failed { said: process.said() });
        }
        if attempts == MONITORS_MAX {
            return Err(QemuError::Unheard { why });
        }
        tracing::error!("a monitor of a QEMU that runs is lost, and another one is started: {why}");
        attempts += 1;
        connection = another();
    }
}

/// A QEMU that was started, and has not been spoken to.
#[derive(Debug)]
pub struct LaunchedQemu {
    /// Its process.
    pub machine: MachineProcess,
    /// What its network cards came to be connected to.
    pub networks: Vec<NetworkState>,
    /// What serves its network cards; its starter's to reap.
    companions: Vec<Process>,
}

/// The process of a machine, and the monitor that speaks with it.
#[derive(Debug)]
pub struct MachineProcess {
    pub(super) process: Process,
    pub(super) identity: QemuIdentity,
    /// Its monitor's process, if we have started it.
    pub(super) monitors_process: Option<MonitorProcess>,
    /// The connection to its monitor, unless it was given to another process.
    pub(super) connection: Option<OwnedFd>,
}

/// What of it another process is given ([`MachineProcess::elsewhere`]).
#[derive(Debug)]
pub struct MachineFiles {
    /// Of its process.
    pub process: ProcessFiles,
    /// The connection to its monitor.
    pub monitor: OwnedFd,
}

impl MachineProcess {
    /// One that another process of ours started or found for us.
    pub fn elsewhere(
        identity: QemuIdentity,
        files: MachineFiles,
        shortfalls: Vec<Shortfall>,
        killer: Arc<dyn Kills>,
    ) -> io::Result<Self> {
        let process = Process::elsewhere(identity, files.process, shortfalls, killer)?;
        Ok(Self { process, identity, monitors_process: None, connection: Some(files.monitor) })
    }

    /// A QEMU that runs: the process of that identity, which listens in `run`. It gets a monitor.
    pub fn find(
        run: &RunDirectory,
        identity: QemuIdentity,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        let process = Process::adopt(identity)
            .map_err(|error| QemuError::System { action: "read when QEMU began", error })?
            .ok_or(QemuError::Ended { pid: identity.pid })?;
        let mut found = Self { process, identity, monitors_process: None, connection: None };
        found.connection = Some(found.keep(NewMonitor::start(run, identity, isolation)?));
        Ok(found)
    }

    /// Keeps a monitor of this machine, in the place of a former one; the connection to it.
    pub fn keep(&mut self, monitor: NewMonitor) -> OwnedFd {
        let NewMonitor { process, connection } = monitor;
        self.monitors_process = Some(process);
        connection
    }

    /// The number of its monitor's process, if we have started it.
    pub fn monitor_process(&self) -> Option<u32> {
        self.monitors_process.as_ref().map(MonitorProcess::pid)
    }

    /// Ends its monitor, if we have started it.
    pub fn end_monitor(&mut self) {
        drop(self.monitors_process.take());
    }

    /// What it is known by.
    pub fn identity(&self) -> QemuIdentity {
        self.identity
    }

    /// Which walls it runs without.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.process.shortfalls()
    }

    /// Kills it; whether it is gone.
    pub fn kill(&mut self) -> bool {
        self.process.kill()
    }

    /// What another process needs of it. It has the connection to the monitor from now on.
    pub fn hand_over(&mut self) -> io::Result<MachineFiles> {
        let given = || io::Error::other("its monitor was given away already");
        Ok(MachineFiles {
            process: self.process.files()?,
            monitor: self.connection.take().ok_or_else(given)?,
        })
    }
}

/// A monitor of a machine that runs, for [`MachineProcess::keep`]: the former one was ended before
/// ([`MachineProcess::end_monitor`]), since QEMU speaks with one at a time.
#[derive(Debug)]
pub struct NewMonitor {
    process: MonitorProcess,
    connection: OwnedFd,
}

impl NewMonitor {
    /// Starts one for the QEMU of that identity, which listens in `run`.
    ///
    /// # Errors
    /// If that QEMU does not listen there, or there is no process.
    pub fn start(
        run: &RunDirectory,
        identity: QemuIdentity,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        let qmp = connect_to(&run.qmp(), identity)?;
        let (process, connection) = MonitorProcess::start(isolation, qmp)?;
        Ok(Self { process, connection })
    }
}

/// Processes beside QEMU, which are killed if it does not come to be.
#[derive(Default)]
struct Companions(Vec<Process>);

impl Companions {
    fn take(&mut self) -> Vec<Process> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        for process in &mut self.0 {
            process.kill();
        }
    }
}

fn runs_on_kvm(accelerator: Accelerator, program: &QemuProgram) -> Result<bool, QemuError> {
    match (accelerator, accelerator != Accelerator::Tcg && program.kvm().is_ok()) {
        (Accelerator::Kvm, false) => {
            Err(QemuError::NoKvm(program.kvm().err().unwrap_or_default().to_owned()))
        }
        (_, works) => Ok(works),
    }
}

/// How QEMU is told of a connection that it has under a number or name.
pub(crate) fn connection(state: &NetworkState, file: Option<String>) -> Connection {
    match (state, file) {
        (NetworkState::Passt, Some(file)) => Connection::Stream(file),
        (NetworkState::Tap(_), Some(file)) => Connection::Tap(file),
        _ => Connection::RestrictedUser,
    }
}

/// Sockets that a killed QEMU has left would be connected to in the place of the new ones.
fn remove_old_sockets(run: &RunDirectory) -> Result<(), QemuError> {
    for path in [run.qmp(), run.console(), run.vnc(), run.guest_agent()] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(QemuError::Prepare { path, error });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lets QEMU's user, and nobody else but root, connect to the disks.
fn give_sockets(spec: &MachineSpec, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    spec.sockets().try_for_each(|path| give_socket(path, isolation))
}

/// The same for the socket of a disk that is plugged in later.
///
/// # Errors
/// Also if it is not there.
pub fn give_disk_socket(path: &Path, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    give_socket(path, isolation)
}

/// The same for one, which has to be there: QEMU would wait for it without an end, and its guest
/// with it.
pub(super) fn give_socket(path: &Path, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    let failed = |error| QemuError::Prepare { path: path.to_owned(), error };
    if !std::fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(failed(io::Error::other("it is no socket")));
    }
    match isolation.user.filter(|_| geteuid().is_root()) {
        Some((uid, gid)) => lchown(path, Some(uid), Some(gid)).map_err(failed),
        None => Ok(()),
    }
}

/// What of the host's files the machine is made of. Sockets are seen by their directories, so that
/// a server may make a new one; whose they are is a wall of its own.
fn visible(spec: &MachineSpec, run: &RunDirectory, kvm: bool) -> Vec<Visible> {
    let mut visible = vec![Visible::write(run.path())];
    let disks = run.disks();
    if disks.is_dir() {
        visible.push(Visible::read(disks));
    }
    let tpm = spec.tpm.as_ref().map(|tpm| tpm.0.as_path());
    visible.extend(spec.sockets().chain(tpm).filter_map(|socket| socket.parent()).map(Visible::read));
    if kvm {
        visible.push(Visible::device(kvm::DEVICE));
    }
    if let Boot::DirectKernel { kernel, initrd, .. } = &spec.boot {
        visible.push(Visible::read(kernel));
        visible.extend(initrd.as_ref().map(Visible::read));
    }
    visible
}

/// A QEMU that listens, and who will speak with it.
struct Reached {
    identity: QemuIdentity,
    monitor: MonitorProcess,
    connection: OwnedFd,
}

/// Waits for QMP's socket, makes sure of who listens, and starts who will speak with it.
fn reach(process: &Process, run: &RunDirectory, isolation: &Isolation<'_>) -> Result<Reached, QemuError> {
    let until = Instant::now() + STARTS_WITHIN;
    let qmp = loop {
        // One that listens and accepts nobody takes no longer than one that does not listen.
        let left = until.saturating_duration_since(Instant::now());
        match connect_within(&run.qmp(), left) {
            Ok(socket) => break socket,
            Err(_) if process.wait(LOOK_AGAIN) => return Err(QemuError::Failed { said: process.said() }),
            Err(_) if left.is_zero() => {
                return Err(QemuError::Silent { within: STARTS_WITHIN, said: process.said() });
            }
            Err(_) => {}
        }
    };
    let identity = process
        .identity(isolation)
        .map_err(|error| QemuError::System { action: "read when QEMU began", error })?;
    expect_peer(&qmp, &run.qmp(), identity)?;
    let (monitor, connection) = MonitorProcess::start(isolation, qmp)?;
    Ok(Reached { identity, monitor, connection })
}

/// Waits until QEMU has greeted its monitor.
fn greet(process: &Process, connection: OwnedFd) -> Result<Monitor, QemuError> {
    match Monitor::greet(connection, STARTS_WITHIN) {
        Ok(monitor) => Ok(monitor),
        // It listens before it has looked at all that it was told.
        Err(_) if process.wait(HANGS_UP_BEFORE) => Err(QemuError::Failed { said: process.said() }),
        Err(not) => Err(not.error.into()),
    }
}
