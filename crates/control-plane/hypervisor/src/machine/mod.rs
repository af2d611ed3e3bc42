//! The description of a virtual machine, and the directory of its sockets.

mod arguments;
mod connection;
mod options;
mod run_directory;
mod validate;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
pub use strongroom_vm::{
    Board, Cpus, Growth, InterfaceName, Link, MacAddress, MachineType, MemorySize, Network, Nic, VlanId,
};
use uuid::Uuid;

pub(crate) use self::arguments::{
    DiskConnection, HostFacts, SPARE_PORT_PREFIX, arguments, disk_device, first_disk, first_nic,
    memory_backend, nic_device, plugged_netdev, reconnect,
};
pub(crate) use self::connection::Connection;
pub use self::run_directory::{RunDirectory, RunDirectoryError};
pub(crate) use self::validate::path as validate_path;
pub use self::validate::{NAME_BYTES_MAX, SpecError};

/// A machine for QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// The VM's id; the guest sees it as the machine's UUID (SMBIOS type 1).
    pub vm: VmId,
    /// A name for people, shown in process lists: any text of at most 255 bytes without a zero
    /// byte.
    pub name: String,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// Processors.
    pub cpus: Cpus,
    /// Guest memory.
    pub memory: MemorySize,
    /// How far processors and memory grow while it runs.
    pub growth: Growth,
    /// The firmware.
    pub firmware: Firmware,
    /// Disks.
    pub disks: Vec<DiskAttachment>,
    /// Network cards.
    pub nics: Vec<Nic>,
    /// The image in its CD-ROM drive, if it has one.
    #[serde(skip)]
    pub cdrom: Option<CdromImage>,
    /// The source of the operating system.
    pub boot: Boot,
    /// The devices that the firmware boots from, in this order, and no others. If it is empty: the
    /// CD-ROM drive, then all disks.
    pub boot_order: Vec<BootFrom>,
    /// A TPM 2.0, emulated by a running [`Swtpm`](crate::Swtpm).
    pub tpm: Option<TpmSocket>,
    /// Whether it has a source of randomness (virtio-rng).
    pub rng: bool,
    /// What tells a guest that it is another one than before: a new one for each start of a copy or
    /// an older state.
    pub generation_id: Uuid,
    /// The accelerator.
    pub accelerator: Accelerator,
}

/// The firmware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// OVMF.
    Uefi {
        /// The volume with its variables, of the size and first content of
        /// [`Ovmf::variables`](crate::firmware::Ovmf). Without one, variables are lost when the
        /// machine stops.
        nvram: Option<NbdExport>,
    },
}

/// An NBD server's export on a unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdExport {
    /// The server's socket.
    pub socket: PathBuf,
    /// The export's name, which may be empty.
    pub export: String,
}

/// A disk, by its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskAttachment {
    /// A vhost-user-blk server, which shares the guest's memory. The server decides the serial
    /// number and whether the disk is read-only.
    VhostUser {
        /// The server's socket. QEMU reconnects when the server comes back.
        socket: PathBuf,
        /// The number of queues, from 1 to the server's maximum.
        queues: u16,
    },
    /// An NBD server.
    Nbd {
        /// The server.
        #[serde(flatten)]
        server: NbdExport,
        /// The serial number that the guest sees, at most 20 bytes.
        serial: String,
        /// Whether the guest may only read it.
        read_only: bool,
    },
}

impl DiskAttachment {
    /// The server's socket.
    pub fn socket(&self) -> &Path {
        match self {
            Self::VhostUser { socket, .. } | Self::Nbd { server: NbdExport { socket, .. }, .. } => socket,
        }
    }
}

/// The source of the operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boot {
    /// The firmware finds it on a disk.
    #[default]
    Disk,
    /// QEMU loads a kernel.
    DirectKernel {
        /// A Linux kernel.
        kernel: PathBuf,
        /// Its initial ram disk.
        initrd: Option<PathBuf>,
        /// Its command line.
        arguments: String,
    },
}

/// A device that the firmware boots from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BootFrom {
    /// The CD-ROM drive.
    Cdrom,
    /// The disk with this index.
    Disk(usize),
    /// The network card with this index, by PXE.
    Nic(usize),
}

/// The image in a CD-ROM drive: a regular file, open for reading.
#[derive(Clone, Debug)]
pub struct CdromImage(Arc<OwnedFd>);

impl CdromImage {
    /// The image in this file.
    pub fn new(file: impl Into<OwnedFd>) -> Self {
        Self(Arc::new(file.into()))
    }

    /// Another descriptor of the same open file.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl PartialEq for CdromImage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CdromImage {}

/// The socket on which swtpm serves one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TpmSocket(pub PathBuf);

/// The accelerator of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// KVM if it works, otherwise TCG.
    #[default]
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's emulator.
    Tcg,
}

impl MachineSpec {
    /// The sockets of servers that QEMU connects to.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Path> {
        let nvram = match &self.firmware {
            Firmware::Uefi { nvram: Some(nvram) } => Some(nvram.socket.as_path()),
            _ => None,
        };
        self.disks.iter().map(DiskAttachment::socket).chain(nvram)
    }

    /// A small machine without disks, network or boot source, as a base for others.
    pub fn minimal(vm: VmId, name: impl Into<String>, memory: MemorySize) -> Self {
        Self {
            vm,
            name: name.into(),
            board: Board::bare(MachineType::default()),
            cpus: Cpus::default(),
            memory,
            growth: Growth::default(),
            firmware: Firmware::Bios,
            disks: Vec::new(),
            nics: Vec::new(),
            cdrom: None,
            boot: Boot::Disk,
            boot_order: Vec::new(),
            tpm: None,
            rng: true,
            generation_id: Uuid::new_v4(),
            accelerator: Accelerator::Auto,
        }
    }
}
