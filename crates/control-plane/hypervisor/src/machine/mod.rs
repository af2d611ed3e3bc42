//! What a virtual machine is made of.

mod arguments;
mod connection;
mod options;
mod validate;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
pub use strongroom_vm::{
    Board, Cpus, InterfaceName, MacAddress, MachineType, MemorySize, Network, Nic, VlanId,
};
use uuid::Uuid;

pub(crate) use self::arguments::{
    DiskConnection, HostFacts, SPARE_PORT_PREFIX, arguments, disk_device, first_disk, netdev, nic_device,
    reconnect,
};
pub(crate) use self::connection::Connection;
pub use self::validate::{NAME_BYTES_MAX, SpecError};
pub(crate) use self::validate::{path as validate_path, socket_path as validate_socket};

/// A machine, as QEMU is to make it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// The VM's id; the guest sees it as the machine's UUID (SMBIOS type 1).
    pub vm: VmId,
    /// For people, in lists of processes: any text of at most 255 bytes without a zero byte.
    pub name: String,
    /// The main board and what is on it.
    #[serde(flatten)]
    pub board: Board,
    /// Processors.
    pub cpus: Cpus,
    /// The guest's memory.
    pub memory: MemorySize,
    /// What runs first.
    pub firmware: Firmware,
    /// Disks, in the order in which they are booted from.
    pub disks: Vec<DiskAttachment>,
    /// Network cards.
    pub nics: Vec<Nic>,
    /// What is in its CD-ROM drive, if it has one. It is booted from before all disks.
    #[serde(skip)]
    pub cdrom: Option<CdromImage>,
    /// Where the system comes from.
    pub boot: Boot,
    /// A TPM 2.0, emulated by a running [`Swtpm`](crate::Swtpm).
    pub tpm: Option<TpmSocket>,
    /// Whether it has a source of randomness (virtio-rng).
    pub rng: bool,
    /// What tells a guest that it is another one than before: a new one for each start of a copy or
    /// an older state.
    pub generation_id: Uuid,
    /// What runs the processors.
    pub accelerator: Accelerator,
}

/// What runs first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// SeaBIOS.
    #[default]
    Bios,
    /// OVMF.
    Uefi {
        /// Its variables: a volume of the size and first content of
        /// [`Ovmf::variables`](crate::firmware::Ovmf). Without one they are forgotten when the
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

/// A disk: who serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskAttachment {
    /// A vhost-user-blk server, which shares the guest's memory. Its serial number and whether it
    /// is read-only are the server's to say.
    VhostUser {
        /// The server's socket. QEMU connects again when the server comes back.
        socket: PathBuf,
        /// Queues, from 1; no more than the server has.
        queues: u16,
    },
    /// An NBD server.
    Nbd {
        /// The server.
        #[serde(flatten)]
        server: NbdExport,
        /// What the guest sees as the disk's serial number, at most 20 bytes.
        serial: String,
        /// Whether the guest may only read.
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

/// Where the system comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Boot {
    /// The firmware finds it on a disk.
    #[default]
    Disk,
    /// QEMU loads it.
    DirectKernel {
        /// A Linux kernel.
        kernel: PathBuf,
        /// Its initial root file system.
        initrd: Option<PathBuf>,
        /// Its arguments.
        arguments: String,
    },
}

/// The image in a CD-ROM drive: a regular file, open to be read.
#[derive(Clone, Debug)]
pub struct CdromImage(Arc<OwnedFd>);

impl CdromImage {
    /// The one in this file.
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

/// What runs the processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// KVM where it works, else TCG.
    #[default]
    Auto,
    /// The hardware.
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

    /// A small machine without disks or network, which boots nothing: the beginning of another one.
    pub fn minimal(vm: VmId, name: impl Into<String>, memory: MemorySize) -> Self {
        Self {
            vm,
            name: name.into(),
            board: Board::bare(MachineType::default()),
            cpus: Cpus::default(),
            memory,
            firmware: Firmware::Bios,
            disks: Vec::new(),
            nics: Vec::new(),
            cdrom: None,
            boot: Boot::Disk,
            tpm: None,
            rng: true,
            generation_id: Uuid::new_v4(),
            accelerator: Accelerator::Auto,
        }
    }
}
