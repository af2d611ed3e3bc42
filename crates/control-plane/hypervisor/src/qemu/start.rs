//! Starts a machine, with its parts in the order in which they are needed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, lchown};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::socket::{connect_to, connect_within, expect_peer};
use super::{Qemu, QemuError, QemuIdentity, QemuProgram, STARTS_WITHIN, handed_over};
use crate::firmware::Ovmf;
use crate::kvm;
use crate::launch::{
    Become, Files, Isolation, Kills, Plan, Process, ProcessFiles, Shortfall, Visible, launch,
};
use crate::machine::{
    Accelerator, Boot, CdromImage, Firmware, HostFacts, MachineSpec, RunDirectory, arguments,
};
use crate::monitor::{Loss, Monitor, MonitorProcess, NotGreeted};
use crate::network::{NetworkParts, NetworkState, OpenNetwork};

/// The interval between checks for QEMU's socket.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Timeout from the end of QEMU's connection to its exit.
const HANGS_UP_BEFORE: Duration = Duration::from_secs(1);

/// How many monitors are tried on a running QEMU before it is given up.
const MONITORS_MAX: u32 = 3;

/// The pause before another monitor is tried: the host may be short of processes or users.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Qemu {
    /// Starts a machine. Its processors are paused until [`Monitor::cont`].
    ///
    /// The disks' servers must be listening, and swtpm if the machine has a TPM. If this process is
    /// root, the sockets of the disks are given to the VM's user.
    pub fn start(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        Self::started(Self::launch(program, spec, run, isolation, false)?)
    }

    /// As [`start`](Self::start), for a machine that must load its memory and device state with
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

    /// Starts QEMU for [`Self::take_up`]. `waiting` is as in [`Self::start_waiting`].
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
            let network = OpenNetwork::open(&nic.network, isolation)?;
            networks.push(network.state().clone());
            let state = network.state().clone();
            let NetworkParts { file, processes } = network.into_parts();
            companions.0.extend(processes.0);
            connections.push(state.connection(file.map(|file| files.add(file).to_string())));
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
        // Only QEMU has the files now, so their other ends notice when it ends.
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

    /// Waits until a started QEMU has greeted its monitor. A QEMU that does not is killed.
    pub fn take_up(machine: MachineProcess, networks: Vec<NetworkState>) -> Result<Self, QemuError> {
        Self::greeted(machine, networks, greet)
    }

    /// Waits until an adopted QEMU has greeted its monitor. Since it runs a guest, a lost or slow
    /// monitor is replaced by `another`, a few times. A QEMU that closes the connection, or that no
    /// monitor could connect to, is killed.
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

/// Greets a running QEMU with this monitor, or with one of its replacements.
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

/// A QEMU that was started, but has not been greeted.
#[derive(Debug)]
pub struct LaunchedQemu {
    /// Its process.
    pub machine: MachineProcess,
    /// The networks of its cards.
    pub networks: Vec<NetworkState>,
    /// The processes of its network cards; its starter reaps them.
    companions: Vec<Process>,
}

/// The process of a machine, with its monitor.
#[derive(Debug)]
pub struct MachineProcess {
    pub(super) process: Process,
    pub(super) identity: QemuIdentity,
    /// The process of its monitor, if this process started it.
    pub(super) monitors_process: Option<MonitorProcess>,
    /// The connection to its monitor, unless another process has it.
    pub(super) connection: Option<OwnedFd>,
}

/// The descriptors of a machine for another process ([`MachineProcess::elsewhere`]).
#[derive(Debug)]
pub struct MachineFiles {
    /// The descriptors of its process.
    pub process: ProcessFiles,
    /// The connection to its monitor.
    pub monitor: OwnedFd,
}

impl MachineProcess {
    /// A machine that another Strongroom process started or found on behalf of this one.
    pub fn elsewhere(
        identity: QemuIdentity,
        files: MachineFiles,
        shortfalls: Vec<Shortfall>,
        killer: Arc<dyn Kills>,
    ) -> io::Result<Self> {
        let process = Process::elsewhere(identity, files.process, shortfalls, killer)?;
        Ok(Self { process, identity, monitors_process: None, connection: Some(files.monitor) })
    }

    /// Finds a running QEMU: the process with this identity, which listens in `run`. Starts a
    /// monitor for it.
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

    /// Keeps a monitor in place of a former one. Returns the connection to it.
    pub fn keep(&mut self, monitor: NewMonitor) -> OwnedFd {
        let NewMonitor { process, connection } = monitor;
        self.monitors_process = Some(process);
        connection
    }

    /// The process id of its monitor, if this process started it.
    pub fn monitor_process(&self) -> Option<u32> {
        self.monitors_process.as_ref().map(MonitorProcess::pid)
    }

    /// Ends its monitor, if this process started it.
    pub fn end_monitor(&mut self) {
        drop(self.monitors_process.take());
    }

    /// Its identity.
    pub fn identity(&self) -> QemuIdentity {
        self.identity
    }

    /// The walls that it lacks.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.process.shortfalls()
    }

    /// Kills it. Returns whether it is gone.
    pub fn kill(&mut self) -> bool {
        self.process.kill()
    }

    /// Returns the descriptors that another process needs. That process then owns the connection to
    /// the monitor.
    pub fn hand_over(&mut self) -> io::Result<MachineFiles> {
        let given = || io::Error::other("its monitor was given away already");
        Ok(MachineFiles {
            process: self.process.files()?,
            monitor: self.connection.take().ok_or_else(given)?,
        })
    }
}

/// A new monitor of a running machine, for [`MachineProcess::keep`]. The former one was ended
/// before ([`MachineProcess::end_monitor`]), since QEMU serves one at a time.
#[derive(Debug)]
pub struct NewMonitor {
    process: MonitorProcess,
    connection: OwnedFd,
}

impl NewMonitor {
    /// Starts a monitor for the QEMU with this identity, which listens in `run`.
    ///
    /// # Errors
    /// If that QEMU does not listen there, or the monitor cannot be started.
    pub fn start(
        run: &RunDirectory,
        identity: QemuIdentity,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        let qmp = connect_to(&run.qmp(), identity)?;
        let (process, connection) = MonitorProcess::start(isolation, Become::Monitor, qmp)?;
        Ok(Self { process, connection })
    }
}

/// Starts a monitor of the guest agent of the QEMU with this identity, which listens in `run`. QEMU
/// serves one at a time. Returns it with the supervisor's side of its connection.
///
/// # Errors
/// If that QEMU does not listen there, or the monitor cannot be started.
pub fn start_agent_monitor(
    run: &RunDirectory,
    identity: QemuIdentity,
    isolation: &Isolation<'_>,
) -> Result<(MonitorProcess, OwnedFd), QemuError> {
    let channel = connect_to(&run.guest_agent(), identity)?;
    Ok(MonitorProcess::start(isolation, Become::AgentMonitor, channel)?)
}

/// Processes beside QEMU, which are killed if its start fails.
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

/// Removes sockets that a killed QEMU has left, which would otherwise be mistaken for the new ones.
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

/// Gives the disks' sockets to QEMU's user, so that only that user and root can connect.
fn give_sockets(spec: &MachineSpec, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    spec.sockets().try_for_each(|path| give_socket(path, isolation))
}

/// As [`give_sockets`], for the socket of a disk that is plugged in later.
///
/// # Errors
/// Also if the socket does not exist.
pub fn give_disk_socket(path: &Path, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    give_socket(path, isolation)
}

/// As [`give_sockets`], for one socket that must exist: QEMU, and its guest, would wait for a
/// missing one for ever.
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

/// The host files that the machine needs. The directories of sockets are visible rather than the
/// sockets, so that a server can replace its socket; access to a socket depends on its owner.
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

/// A listening QEMU, with the monitor that will speak with it.
struct Reached {
    identity: QemuIdentity,
    monitor: MonitorProcess,
    connection: OwnedFd,
}

/// Waits for the QMP socket, checks the listener, and starts a monitor.
fn reach(process: &Process, run: &RunDirectory, isolation: &Isolation<'_>) -> Result<Reached, QemuError> {
    let until = Instant::now() + STARTS_WITHIN;
    let qmp = loop {
        // A QEMU that does not accept the connection gets no more time than one that does not
        // listen.
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
    let (monitor, connection) = MonitorProcess::start(isolation, Become::Monitor, qmp)?;
    Ok(Reached { identity, monitor, connection })
}

/// Waits until QEMU has greeted its monitor.
fn greet(process: &Process, connection: OwnedFd) -> Result<Monitor, QemuError> {
    match Monitor::greet(connection, STARTS_WITHIN) {
        Ok(monitor) => Ok(monitor),
        // QEMU listens before it has checked all of its arguments.
        Err(_) if process.wait(HANGS_UP_BEFORE) => Err(QemuError::Failed { said: process.said() }),
        Err(not) => Err(not.error.into()),
    }
}
