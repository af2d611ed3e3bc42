//! QEMU, as its VM's supervisor has it: from the VM's configuration to a machine, and its events.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::protocol::{self, DiskFrontend, OwnVolume, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::served::index_of;
use strongroom_hypervisor::machine::{Accelerator, Boot, DiskAttachment, Firmware, MachineSpec, NbdExport};
use strongroom_hypervisor::monitor::{Loss, NotGreeted};
use strongroom_hypervisor::qmp::RunStatus;
use strongroom_hypervisor::{PowerEvent, Qemu, QmpError};
use uuid::Uuid;

use crate::starter::Starter;

/// Queues of a vhost-user disk: as many as the guest has processors, up to this.
const QUEUES_MAX: u32 = 4;
/// How long to wait for an event before it is looked whether there is still anyone to tell.
const EVENT_WAIT: Duration = Duration::from_secs(3600);
/// A monitor that was there for so long was not lost because of what the one before it was.
const MONITOR_LASTS: Duration = Duration::from_secs(60);
/// So many monitors may be lost, one soon after the other: what QEMU says ends each of them then.
const MONITORS_LOST_MAX: u32 = 3;
/// Before a monitor that could not be started is started again: the host may have no process or
/// user to spare.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// From the end of QEMU's words to the end of its process.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A machine that runs, or stands still.
#[derive(Clone, Debug)]
pub struct Machine {
    qemu: Arc<Qemu>,
}

/// What a machine says.
#[derive(Debug)]
pub enum MachineNews {
    /// Something happened. It is never [`PowerEvent::Missed`].
    Event(PowerEvent),
    /// Something happened that nobody heard; how the machine is now, if it says so.
    Missed(Result<RunStatus, QmpError>),
    /// QEMU has ended by itself, or was killed by another; what it said last.
    Ended(String),
    /// QEMU was killed, because nobody could speak with it any more; why.
    CutOff(String),
}

impl Machine {
    /// Listens to a QEMU, by its monitor, of which `starter` starts others. `tell` is called on a
    /// thread of its own, and no more is listened to before it returns: what QEMU says meanwhile is
    /// bounded by the monitor's connection.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn of(
        qemu: Qemu,
        starter: Starter,
        tell: impl Fn(MachineNews) + Send + 'static,
    ) -> std::io::Result<Self> {
        let qemu = Arc::new(qemu);
        let theirs = Arc::clone(&qemu);
        thread::Builder::new().name("machine".to_owned()).spawn(move || {
            let mut monitors = Monitors { starter, since: Instant::now(), lost: 0 };
            let missed = || tell(MachineNews::Missed(theirs.monitor().status()));
            let why = loop {
                match theirs.monitor().next_event(EVENT_WAIT) {
                    Ok(Some(PowerEvent::Missed)) => missed(),
                    Ok(Some(event)) => tell(MachineNews::Event(event)),
                    Ok(None) => {}
                    Err(over) => match monitors.replace(&theirs, &over) {
                        // What happened meanwhile was told to nobody.
                        Ok(()) => missed(),
                        Err(why) => break why,
                    },
                }
            };
            // Without its QMP a machine cannot be looked after: it is off, or it is switched off.
            if theirs.wait(ENDS_WITHIN) {
                tell(MachineNews::Ended(theirs.said()));
            } else {
                theirs.send_kill();
                theirs.wait(ENDS_WITHIN);
                tell(MachineNews::CutOff(why));
            }
        })?;
        Ok(Self { qemu })
    }

    /// It.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Cuts its power. That it has ended is told as news.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn cut_off(&self) -> std::io::Result<()> {
        let qemu = Arc::clone(&self.qemu);
        thread::Builder::new().name("power".to_owned()).spawn(move || {
            let asked = qemu.monitor().quit().is_ok();
            if !(asked && qemu.wait(ENDS_WITHIN)) {
                qemu.send_kill();
            }
        })?;
        Ok(())
    }
}

/// The monitors of a machine, one after the other.
struct Monitors {
    starter: Starter,
    /// When the one that is there now was started.
    since: Instant,
    /// How many were lost, one soon after the other.
    lost: u32,
}

impl Monitors {
    /// Replaces a monitor that is lost under a machine that runs. Where QEMU itself has ended, or
    /// is not understood, another one would not help: then it says why nobody speaks with that QEMU
    /// any more. One that is slow is waited for.
    fn replace(&mut self, qemu: &Qemu, over: &QmpError) -> Result<(), String> {
        if qemu.monitor().lost() != Some(Loss::Monitor) {
            return Err(over.to_string());
        }
        self.count_loss(&over.to_string())?;
        while !qemu.wait(Duration::ZERO) {
            self.since = Instant::now();
            let not_yet = match self.starter.start_monitor() {
                Ok(other) => match qemu.replace_monitor(other) {
                    Ok(()) => return Ok(()),
                    Err(NotGreeted { loss: None, error }) => error.to_string(),
                    Err(NotGreeted { loss: Some(Loss::Monitor), error }) => {
                        self.count_loss(&error.to_string())?;
                        continue;
                    }
                    Err(NotGreeted { loss: Some(Loss::Qemu), error }) => return Err(error.to_string()),
                },
                Err(problem) => problem.to_string(),
            };
            tracing::error!("there is no other monitor of QEMU yet: {not_yet}");
            qemu.wait(TRY_AGAIN);
        }
        Err(over.to_string())
    }

    /// Counts a monitor that is lost, and refuses another one if too many were.
    fn count_loss(&mut self, why: &str) -> Result<(), String> {
        if self.since.elapsed() > MONITOR_LASTS {
            self.lost = 0;
        }
        self.lost += 1;
        if self.lost > MONITORS_LOST_MAX {
            return Err(format!("its monitor was lost {} times, one soon after the other: {why}", self.lost));
        }
        tracing::error!("the monitor of QEMU is lost, and another one is started: {why}");
        Ok(())
    }
}

/// The machine that a VM is, without its TPM, which has to be started first, what is in its CD-ROM
/// drive, which hostd opens, and with a generation id that was never used. Its disks are served
/// where `run` says.
pub fn machine_spec(spec: &VmSpec, run: &VmRunDirectory) -> MachineSpec {
    let boot = match &spec.kernel {
        None => Boot::Disk,
        Some(kernel) => Boot::DirectKernel {
            kernel: run.kernel(),
            initrd: kernel.initrd.as_ref().map(|_| run.initrd()),
            arguments: kernel.arguments.clone(),
        },
    };
    MachineSpec {
        vm: spec.id,
        name: spec.name.to_string(),
        board: spec.board,
        cpus: spec.cpus,
        memory: spec.memory_bytes,
        firmware: firmware(spec, run),
        disks: disks(spec, run),
        nics: spec.nics.clone(),
        cdrom: None,
        boot,
        tpm: None,
        rng: true,
        generation_id: Uuid::new_v4(),
        accelerator: Accelerator::Auto,
    }
}

/// UEFI's variables are on NBD: QEMU waits for a worker that is replaced, and its guest meanwhile
/// for an answer.
fn firmware(spec: &VmSpec, run: &VmRunDirectory) -> Firmware {
    match spec.firmware {
        protocol::Firmware::Bios => Firmware::Bios,
        protocol::Firmware::Uefi => Firmware::Uefi {
            nvram: index_of(spec, OwnVolume::Nvram)
                .map(|index| NbdExport { socket: run.disk_socket(index), export: OwnVolume::Nvram.name() }),
        },
    }
}

/// A disk that is served at the socket of that number, as QEMU is told of it.
pub fn attachment(
    spec: &VmSpec,
    run: &VmRunDirectory,
    number: usize,
    disk: &protocol::Disk,
) -> DiskAttachment {
    let socket: PathBuf = run.disk_socket(number);
    match disk.frontend {
        DiskFrontend::VhostUser => {
            let queues = spec.cpus.count().clamp(1, QUEUES_MAX);
            DiskAttachment::VhostUser { socket, queues: u16::try_from(queues).unwrap_or(1) }
        }
        DiskFrontend::Nbd => {
            let mut serial = disk.name.to_string();
            serial.truncate(20);
            let server = NbdExport { socket, export: disk.name.to_string() };
            DiskAttachment::Nbd { server, serial, read_only: false }
        }
    }
}

fn disks(spec: &VmSpec, run: &VmRunDirectory) -> Vec<DiskAttachment> {
    let attach = |(number, disk): (usize, &protocol::Disk)| attachment(spec, run, number, disk);
    let seed = index_of(spec, OwnVolume::Seed).map(|index| {
        let name = OwnVolume::Seed.name();
        let server = NbdExport { socket: run.disk_socket(index), export: name.clone() };
        DiskAttachment::Nbd { server, serial: name, read_only: true }
    });
    spec.disks.iter().enumerate().map(attach).chain(seed).collect()
}
