//! Checks that a machine is possible.

use std::path::{Path, PathBuf};

use strongroom_vm::limits::{DISKS_MAX, KERNEL_ARGUMENTS_BYTES_MAX, NICS_MAX};
use strongroom_vm::{BoardError, CpuError, GrowthError};
use thiserror::Error;

use super::{Boot, BootFrom, DiskAttachment, Firmware, MachineSpec};

/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// VIRTIO_BLK_ID_BYTES.
pub const SERIAL_BYTES_MAX: usize = 20;
/// The longest name of an NBD export that QEMU takes (NBD_MAX_STRING_SIZE).
pub const EXPORT_BYTES_MAX: usize = 4096;
/// The longest path of a socket (`sun_path` less its zero byte).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Most queues of a disk: more do not help any device, and each costs descriptors.
pub const QUEUES_MAX: u16 = 64;

/// Why a machine is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// Too many processors, or none.
    #[error(transparent)]
    Cpus(#[from] CpuError),
    /// A version of another main board.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// It cannot grow so far.
    #[error(transparent)]
    Growth(#[from] GrowthError),
    /// Too many of something.
    #[error("a machine has at most {most} {what}, and {count} were asked for")]
    TooMany {
        /// The kind of part.
        what: &'static str,
        /// The most that are possible.
        most: usize,
        /// The number in the machine.
        count: usize,
    },
    /// A text that is too long or has a zero byte.
    #[error("{what} must have at most {most} bytes, and none that is zero")]
    Text {
        /// The name of the field.
        what: &'static str,
        /// The greatest length, in bytes.
        most: usize,
    },
    /// A path that cannot be passed to QEMU.
    #[error(
        "{path:?} cannot be used: a path must be absolute, without '..', and UTF-8 without control characters"
    )]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// A path that is not valid as a socket address.
    #[error("{path} is too long for a socket; it takes {SOCKET_PATH_BYTES_MAX} bytes")]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// An initial ram disk beside a TPM: QEMU loads the ram disk over the TPM's log, and the guest
    /// loses its ACPI tables (seen with 7.2; `acpi_data_size` in QEMU's `hw/i386/pc.c` leaves no
    /// room for the log).
    #[error("a machine with a TPM, a kernel that QEMU loads and an initial root file system takes UEFI")]
    TpmBelowInitrd,
    /// An order of booting with a device that is not there.
    #[error("it is to boot from a device that it does not have")]
    BootOrder,
    /// An invalid number of queues.
    #[error("a disk has 1 to {QUEUES_MAX} queues, not {0}")]
    Queues(u16),
}

impl MachineSpec {
    /// Checks the whole machine.
    pub fn validate(&self) -> Result<(), SpecError> {
        text("the name", &self.name, NAME_BYTES_MAX)?;
        self.board.check()?;
        self.cpus.check()?;
        self.growth.check(self.cpus, self.memory)?;
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
        let is_there = |from: &BootFrom| match from {
            BootFrom::Cdrom => true,
            BootFrom::Disk(index) => *index < self.disks.len(),
            BootFrom::Nic(index) => *index < self.nics.len(),
        };
        if !self.boot_order.iter().all(is_there) {
            return Err(SpecError::BootOrder);
        }
        self.tpm.as_ref().map_or(Ok(()), |tpm| socket_path(&tpm.0))
    }
}

impl DiskAttachment {
    /// Checks a disk.
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

/// Checks that a path means the same inside and outside the sandbox, and is readable in a log.
pub(crate) fn path(path: &Path) -> Result<(), SpecError> {
    let plain = path.is_absolute()
        && path.components().all(|part| part != std::path::Component::ParentDir)
        && path.to_str().is_some_and(|text| !text.contains(char::is_control));
    if plain { Ok(()) } else { Err(SpecError::Path { path: path.to_owned() }) }
}

/// Checks that a path is valid as a socket address.
pub(crate) fn socket_path(socket: &Path) -> Result<(), SpecError> {
    path(socket)?;
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        Ok(())
    } else {
        Err(SpecError::SocketPath { path: socket.to_owned() })
    }
}
