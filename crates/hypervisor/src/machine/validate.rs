//! What a machine may be made of.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{Boot, DiskAttachment, Firmware, MachineSpec};

/// Processors of a machine: fewer than 255, beyond which a guest needs an interrupt-remapping IOMMU.
pub const CPUS_MAX: u16 = 240;
/// Disks of a machine when it starts: on pc each takes one of a bus's 32 slots, of which some are left for later.
pub const DISKS_MAX: usize = 16;
/// Network cards of a machine, for the same reason.
pub const NICS_MAX: usize = 4;
/// NUMA nodes of a machine (QEMU's own limit is 128): more than hosts have.
pub const NODES_MAX: usize = 8;
/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest kernel command line of x86-64 (`COMMAND_LINE_SIZE` less its zero byte).
pub const KERNEL_ARGUMENTS_BYTES_MAX: usize = 2047;
/// VIRTIO_BLK_ID_BYTES.
pub const SERIAL_BYTES_MAX: usize = 20;
/// The longest name of an NBD export that QEMU takes (NBD_MAX_STRING_SIZE).
pub const EXPORT_BYTES_MAX: usize = 4096;
/// What fits into a socket's address (`sun_path` less its zero byte).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Queues of a disk: more than that help no device, and each costs descriptors.
pub const QUEUES_MAX: u16 = 64;

/// Why a machine cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// Too many processors, or none.
    #[error("a machine has 1 to {CPUS_MAX} processors: {sockets} x {cores} x {threads} is not possible")]
    Cpus {
        /// Sockets asked for.
        sockets: u16,
        /// Cores of each.
        cores: u16,
        /// Threads of each.
        threads: u16,
    },
    /// Nodes that do not add up.
    #[error("NUMA node {node}: {reason}")]
    Numa {
        /// Which.
        node: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Too many of something.
    #[error("a machine has at most {most} {what}, and {count} were asked for")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are possible.
        most: usize,
        /// How many there are.
        count: usize,
    },
    /// A text that is too long or has a zero byte.
    #[error("{what} must have at most {most} bytes, and none that is zero")]
    Text {
        /// Which.
        what: &'static str,
        /// The longest.
        most: usize,
    },
    /// A path that QEMU cannot be told.
    #[error(
        "{path:?} cannot be used: a path must be absolute, without '..', and UTF-8 without control characters"
    )]
    Path {
        /// Which.
        path: PathBuf,
    },
    /// A path that is no address.
    #[error("{path} is too long for a socket; it takes {SOCKET_PATH_BYTES_MAX} bytes")]
    SocketPath {
        /// Which.
        path: PathBuf,
    },
    /// What QEMU would let run into each other: the log of a TPM lies where it puts an initial root file system, and the
    /// guest would lose its ACPI tables (seen with 7.2; `acpi_data_size` in QEMU's `hw/i386/pc.c` knows nothing of it).
    #[error("a machine with a TPM, a kernel that QEMU loads and an initial root file system takes UEFI")]
    TpmBelowInitrd,
    /// A number of queues.
    #[error("a disk has 1 to {QUEUES_MAX} queues, not {0}")]
    Queues(u16),
}

impl MachineSpec {
    /// Whether such a machine can be.
    pub fn validate(&self) -> Result<(), SpecError> {
        text("the name", &self.name, NAME_BYTES_MAX)?;
        self.validate_processors()?;
        bounded("disks", self.disks.len(), DISKS_MAX)?;
        bounded("network cards", self.nics.len(), NICS_MAX)?;
        for disk in &self.disks {
            disk.validate()?;
        }
        if let Firmware::Uefi { nvram: Some(nvram) } = &self.firmware {
            socket_path(&nvram.socket)?;
            text("an export's name", &nvram.export, EXPORT_BYTES_MAX)?;
        }
        if let Boot::DirectKernel { kernel, initrd, arguments } = &self.boot {
            path(kernel)?;
            initrd.as_deref().map_or(Ok(()), path)?;
            text("the kernel's arguments", arguments, KERNEL_ARGUMENTS_BYTES_MAX)?;
            if self.tpm.is_some() && initrd.is_some() && self.firmware == Firmware::Bios {
                return Err(SpecError::TpmBelowInitrd);
            }
        }
        self.tpm.as_ref().map_or(Ok(()), |tpm| socket_path(&tpm.0))
    }

    fn validate_processors(&self) -> Result<(), SpecError> {
        let super::CpuTopology { sockets, cores, threads } = self.cpus;
        let impossible = SpecError::Cpus { sockets, cores, threads };
        let count = self.cpus.count().filter(|count| (1..=CPUS_MAX).contains(count)).ok_or(impossible)?;
        bounded("NUMA nodes", self.numa.len(), NODES_MAX)?;
        if self.numa.is_empty() {
            return Ok(());
        }
        let (mut next_cpu, mut memory_bytes) = (0_u16, 0_u64);
        for (node, part) in self.numa.iter().enumerate() {
            let wrong = |reason| SpecError::Numa { node, reason };
            if part.first_cpu != next_cpu || part.cpus == 0 {
                return Err(wrong("its processors do not follow those of the node before"));
            }
            next_cpu = next_cpu.checked_add(part.cpus).ok_or(wrong("it has too many processors"))?;
            memory_bytes = memory_bytes.saturating_add(part.memory.bytes());
        }
        let wrong = |reason| SpecError::Numa { node: self.numa.len() - 1, reason };
        if next_cpu != count {
            return Err(wrong("the nodes do not have all processors of the machine, each once"));
        }
        if memory_bytes != self.memory.bytes() {
            return Err(wrong("the memory of the nodes is not that of the machine"));
        }
        Ok(())
    }
}

impl DiskAttachment {
    /// Whether there can be such a disk.
    pub fn validate(&self) -> Result<(), SpecError> {
        socket_path(self.socket())?;
        match self {
            Self::VhostUser { queues, .. } if !(1..=QUEUES_MAX).contains(queues) => {
                Err(SpecError::Queues(*queues))
            }
            Self::VhostUser { .. } => Ok(()),
            Self::Nbd { server, serial, .. } => {
                text("a disk's serial number", serial, SERIAL_BYTES_MAX)?;
                text("an export's name", &server.export, EXPORT_BYTES_MAX)
            }
        }
    }
}

fn bounded(what: &'static str, count: usize, most: usize) -> Result<(), SpecError> {
    if count <= most { Ok(()) } else { Err(SpecError::TooMany { what, most, count }) }
}

fn text(what: &'static str, text: &str, most: usize) -> Result<(), SpecError> {
    if text.len() <= most && !text.contains('\0') { Ok(()) } else { Err(SpecError::Text { what, most }) }
}

/// A path that says the same inside of the sandbox as outside, and reads as one in a log.
pub(crate) fn path(path: &Path) -> Result<(), SpecError> {
    let plain = path.is_absolute()
        && path.components().all(|part| part != std::path::Component::ParentDir)
        && path.to_str().is_some_and(|text| !text.contains(char::is_control));
    if plain { Ok(()) } else { Err(SpecError::Path { path: path.to_owned() }) }
}

/// A path that a socket can have.
pub(crate) fn socket_path(socket: &Path) -> Result<(), SpecError> {
    path(socket)?;
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        Ok(())
    } else {
        Err(SpecError::SocketPath { path: socket.to_owned() })
    }
}
