//! QEMU, as its VM's supervisor has it: from the VM's configuration to a machine, and its events.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use strongroom_hypervisor::machine::{
    Accelerator, Boot, CpuTopology, DiskAttachment, Firmware, MachineSpec, MachineType, MemorySize,
    NbdExport, Nic, NicBackend,
};
use strongroom_hypervisor::{PowerEvent, Qemu};
use uuid::Uuid;

use super::served::index_of;
use crate::process::ProcessIdentity;
use crate::protocol::{self, DiskFrontend, Network, OwnVolume, Problem, VmSpec};
use crate::run_directory::VmRunDirectory;

/// Queues of a vhost-user disk: as many as the guest has processors, up to this.
const QUEUES_MAX: u32 = 4;
/// How long to wait for an event before it is looked whether there is still anyone to tell.
const EVENT_WAIT: Duration = Duration::from_secs(3600);
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
    /// Something happened.
    Event(PowerEvent),
    /// QEMU has ended; what it said last.
    Ended(String),
}

impl Machine {
    /// Listens to a QEMU. `tell` is called on a thread of its own.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn of(qemu: Qemu, tell: impl Fn(MachineNews) + Send + 'static) -> std::io::Result<Self> {
        let qemu = Arc::new(qemu);
        let theirs = Arc::clone(&qemu);
        thread::Builder::new().name("qmp".to_owned()).spawn(move || {
            loop {
                match theirs.qmp().next_event(EVENT_WAIT) {
                    Ok(Some(event)) => tell(MachineNews::Event(event)),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            // Without its QMP a machine cannot be looked after: it is off, or it is switched off.
            if !theirs.wait(ENDS_WITHIN) {
                let identity = theirs.identity();
                let identity = ProcessIdentity { pid: identity.pid, start_ticks: identity.start_time_ticks };
                let _ = identity.kill();
                theirs.wait(ENDS_WITHIN);
            }
            tell(MachineNews::Ended(theirs.said()));
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
            let asked = qemu.qmp().quit().is_ok();
            if !(asked && qemu.wait(ENDS_WITHIN)) {
                let identity = qemu.identity();
                let identity = ProcessIdentity { pid: identity.pid, start_ticks: identity.start_time_ticks };
                let _ = identity.kill();
            }
        })?;
        Ok(())
    }
}

/// The machine that a VM is, without its TPM, which has to be started first, and what is in its CD-ROM drive, which hostd opens. Its disks are served where `run` says.
///
/// # Errors
/// If it is none.
pub fn machine_spec(spec: &VmSpec, run: &VmRunDirectory) -> Result<MachineSpec, Problem> {
    let refused = |error: String| Problem::new("bad_spec", error);
    let number = |count: u32| u16::try_from(count).map_err(|_| refused("too many processors".to_owned()));
    let cpus = CpuTopology {
        sockets: number(spec.cpus.sockets)?,
        cores: number(spec.cpus.cores)?,
        threads: number(spec.cpus.threads)?,
    };
    let memory = MemorySize::new(spec.memory_bytes).map_err(|error| refused(error.to_string()))?;
    let boot = match &spec.kernel {
        None => Boot::Disk,
        Some(kernel) => Boot::DirectKernel {
            kernel: run.kernel(),
            initrd: kernel.initrd.as_ref().map(|_| run.initrd()),
            arguments: kernel.arguments.clone(),
        },
    };
    Ok(MachineSpec {
        vm: spec.id,
        name: spec.name.to_string(),
        machine: match spec.machine {
            protocol::MachineType::Q35 => MachineType::Q35,
            protocol::MachineType::Pc => MachineType::Pc,
        },
        cpus,
        numa: Vec::new(),
        memory,
        firmware: firmware(spec, run),
        disks: disks(spec, run),
        nics: spec.nics.iter().map(nic).collect::<Result<_, _>>()?,
        cdrom: None,
        boot,
        tpm: None,
        rng: true,
        guest_agent: spec.guest_agent,
        vnc: spec.vnc,
        generation_id: Uuid::new_v4(),
        accelerator: Accelerator::Auto,
    })
}

/// UEFI's variables are on NBD: QEMU waits for a worker that is replaced, and its guest meanwhile for an answer.
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
    (number, disk): (usize, &protocol::Disk),
) -> DiskAttachment {
    let socket: PathBuf = run.disk_socket(number);
    match disk.frontend {
        DiskFrontend::VhostUser => {
            let queues = spec.cpus.count().unwrap_or(1).min(QUEUES_MAX);
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
    let attach = |numbered: (usize, &protocol::Disk)| attachment(spec, run, numbered);
    let seed = index_of(spec, OwnVolume::Seed).map(|index| {
        let name = OwnVolume::Seed.name();
        let server = NbdExport { socket: run.disk_socket(index), export: name.clone() };
        DiskAttachment::Nbd { server, serial: name, read_only: true }
    });
    spec.disks.iter().enumerate().map(attach).chain(seed).collect()
}

fn nic(nic: &protocol::Nic) -> Result<Nic, Problem> {
    let refused = |error: &dyn std::fmt::Display| Problem::new("bad_spec", error.to_string());
    let mac = nic.mac.parse().map_err(|error| refused(&error))?;
    let backend = match &nic.network {
        Network::User => NicBackend::User,
        Network::Tap { device } => {
            NicBackend::Tap { device: device.parse().map_err(|error| refused(&error))? }
        }
        Network::Bridge { bridge, vlan } => NicBackend::Bridge {
            bridge: bridge.parse().map_err(|error| refused(&error))?,
            vlan: vlan.map(TryInto::try_into).transpose().map_err(|error| refused(&error))?,
        },
    };
    Ok(Nic { mac, backend })
}
