//! The supervisor's view of QEMU: builds a machine from the VM's configuration, and receives its
//! events.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use strongroom_host::protocol::{self, DiskFrontend, OwnVolume, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::served::index_of;
use strongroom_hypervisor::machine::{
    Accelerator, Boot, BootFrom, DiskAttachment, Firmware, MachineSpec, NbdExport,
};
use strongroom_hypervisor::monitor::{Loss, NotGreeted};
use strongroom_hypervisor::qmp::RunStatus;
use strongroom_hypervisor::{PowerEvent, Qemu, QmpError};
use strongroom_vm::BootDevice;
use uuid::Uuid;

use crate::starter::Starter;

/// Most queues of a vhost-user disk; it has one for each processor up to this number.
const QUEUES_MAX: u32 = 4;
/// The interval after which the wait for an event is repeated.
const EVENT_WAIT: Duration = Duration::from_secs(3600);
/// A monitor that has lasted this long was not lost for the same reason as the one before it.
const MONITOR_LASTS: Duration = Duration::from_secs(60);
/// The most monitors that may be lost in quick succession: QEMU's messages are then what ends them.
const MONITORS_LOST_MAX: u32 = 3;
/// The pause before a monitor's start is tried again: the host may be short of processes or users.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Timeout from the end of QEMU's connection to the end of its process.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// A machine, running or paused.
#[derive(Clone, Debug)]
pub struct Machine {
    qemu: Arc<Qemu>,
}

/// News of a machine.
#[derive(Debug)]
pub enum MachineNews {
    /// An event, but never [`PowerEvent::Missed`].
    Event(PowerEvent),
    /// Events were missed. Has the machine's present state, if it could be queried.
    Missed(Result<RunStatus, QmpError>),
    /// QEMU has ended, with its last output.
    Ended(String),
    /// QEMU was killed, because no monitor could speak with it; with the reason.
    CutOff(String),
}

impl Machine {
    /// Listens to a QEMU through its monitor; `starter` starts replacements. `tell` is called on a
    /// thread of its own, and the next event is only taken when it returns. The monitor's
    /// connection bounds the events that are queued meanwhile.
    ///
    /// # Errors
    /// If the thread cannot be started.
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
                        // Events in between may have been missed.
                        Ok(()) => missed(),
                        Err(why) => break why,
                    },
                }
            };
            // A machine without QMP cannot be supervised: it has ended, or is killed.
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

    /// Its QEMU.
    pub fn qemu(&self) -> &Qemu {
        &self.qemu
    }

    /// Kills it: nothing of it is needed. The end is reported as news.
    pub fn kill(&self) {
        self.qemu.send_kill();
    }

    /// Cuts its power. The end is reported as news.
    ///
    /// # Errors
    /// If the thread cannot be started.
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

/// The successive monitors of a machine.
struct Monitors {
    starter: Starter,
    /// When the present one was started.
    since: Instant,
    /// How many were lost in quick succession.
    lost: u32,
}

impl Monitors {
    /// Replaces a lost monitor of a running machine. If QEMU itself has ended or sends invalid
    /// messages, a replacement would not help; returns the reason then. A slow monitor is waited
    /// for.
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

    /// Counts a lost monitor. Refuses a replacement if too many were lost.
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

/// Returns the machine of a VM, with a new generation id, and with its disks served in `run`. It
/// lacks the TPM, which must be started first, and the CD-ROM image, which hostd opens.
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
        board: spec.board.clone(),
        cpus: spec.cpus,
        memory: spec.memory_bytes,
        growth: spec.growth,
        firmware: firmware(spec, run),
        disks: disks(spec, run),
        nics: spec.nics.clone(),
        cdrom: None,
        boot,
        boot_order: boot_order(spec),
        tpm: None,
        rng: true,
        generation_id: Uuid::new_v4(),
        accelerator: Accelerator::Auto,
    }
}

fn boot_order(spec: &VmSpec) -> Vec<BootFrom> {
    let from = |device: &BootDevice| match device {
        BootDevice::Cdrom => Some(BootFrom::Cdrom),
        BootDevice::Nic(number) => Some(BootFrom::Nic(*number)),
        BootDevice::Disk(name) => spec.disks.iter().position(|disk| disk.name == *name).map(BootFrom::Disk),
    };
    spec.boot_order.iter().filter_map(from).collect()
}

/// UEFI's variables use NBD: while a worker is being replaced, QEMU waits for it, and the guest for
/// QEMU.
fn firmware(spec: &VmSpec, run: &VmRunDirectory) -> Firmware {
    match spec.firmware {
        protocol::Firmware::Bios => Firmware::Bios,
        protocol::Firmware::Uefi => Firmware::Uefi {
            nvram: index_of(spec, OwnVolume::Nvram)
                .map(|index| NbdExport { socket: run.disk_socket(index), export: OwnVolume::Nvram.name() }),
        },
    }
}

/// The machine's description of the disk that is served at the socket with this number.
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
