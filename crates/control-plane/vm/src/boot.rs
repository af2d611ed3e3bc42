//! Direct kernels, and host files that a VM boots from.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::board::Firmware;
use crate::disk::DiskKind;
use crate::limits::{BOOT_DEVICES_MAX, HOST_PATH_BYTES_MAX, KERNEL_ARGUMENTS_BYTES_MAX};
use crate::name::DiskName;

/// A kernel that QEMU starts without a boot loader. Its files are the host's, and only from the
/// directories in the host's configuration (`boot_directories`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectKernel {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial ram disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// The kernel's command line. It must not hold a secret: every process of the host can read it.
    #[serde(default)]
    pub arguments: String,
}

/// A device that a VM is booted from: `cdrom`, `nic0` and so on for its network cards, or the name
/// of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BootDevice {
    /// The CD-ROM drive.
    Cdrom,
    /// The network card with this number, from 0.
    Nic(usize),
    /// A disk.
    Disk(DiskName),
}

/// How the CD-ROM drive is called.
const CDROM: &str = "cdrom";
/// How network cards are called, before their numbers.
const NIC: &str = "nic";

impl FromStr for BootDevice {
    type Err = BootError;

    fn from_str(text: &str) -> Result<Self, BootError> {
        if text == CDROM {
            return Ok(Self::Cdrom);
        }
        let number = text.strip_prefix(NIC).and_then(|number| number.parse().ok());
        // One card has one name.
        if let Some(number) = number.filter(|number| format!("{NIC}{number}") == text) {
            return Ok(Self::Nic(number));
        }
        text.parse().map(Self::Disk).map_err(|_| BootError::Device(text.to_owned()))
    }
}

impl TryFrom<String> for BootDevice {
    type Error = BootError;

    fn try_from(text: String) -> Result<Self, BootError> {
        text.parse()
    }
}

impl From<BootDevice> for String {
    fn from(device: BootDevice) -> Self {
        device.to_string()
    }
}

impl fmt::Display for BootDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cdrom => f.pad(CDROM),
            Self::Nic(number) => write!(f, "{NIC}{number}"),
            Self::Disk(name) => f.pad(name.as_str()),
        }
    }
}

/// What a VM has that it could be booted from. A CD-ROM drive may come and go.
#[derive(Clone, Debug)]
pub struct Bootable<'a> {
    /// Its disks.
    pub disks: Vec<(&'a DiskName, DiskKind)>,
    /// The number of its network cards.
    pub nics: usize,
}

impl Bootable<'_> {
    /// Checks the order in which a VM is booted from its devices.
    ///
    /// # Errors
    /// If a device is not there, is there twice, or is a swap disk, or if there are too many.
    pub fn check(&self, order: &[BootDevice]) -> Result<(), BootError> {
        if order.len() > BOOT_DEVICES_MAX {
            return Err(BootError::TooManyDevices(order.len()));
        }
        for (at, device) in order.iter().enumerate() {
            let is_there = match device {
                BootDevice::Cdrom => true,
                BootDevice::Nic(number) => *number < self.nics,
                BootDevice::Disk(name) => match self.disks.iter().find(|(known, _)| *known == name) {
                    Some((_, DiskKind::Data)) => true,
                    Some((_, DiskKind::Swap)) => return Err(BootError::Swap(name.clone())),
                    None => false,
                },
            };
            if !is_there {
                return Err(BootError::NoDevice(device.clone()));
            }
            if order[..at].contains(device) {
                return Err(BootError::Twice(device.clone()));
            }
        }
        Ok(())
    }
}

/// Takes a disk out of an order, because the VM loses it.
pub fn boot_without_disk(order: &mut Vec<BootDevice>, disk: &DiskName) {
    order.retain(|device| !matches!(device, BootDevice::Disk(name) if name == disk));
}

/// Why a VM cannot start from a kernel or an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BootError {
    /// A path that some program would read differently.
    #[error(
        "'{}' is no path of a host's file: it must be absolute, without '..', a comma or control characters, \
         and of at most {HOST_PATH_BYTES_MAX} bytes", .0.display()
    )]
    Path(PathBuf),
    /// A command line that is too long, or has more than one line.
    #[error("a kernel's arguments are one line of at most {KERNEL_ARGUMENTS_BYTES_MAX} bytes")]
    Arguments,
    /// A text that names no device.
    #[error(
        "'{0}' is no device to boot from; write cdrom, a disk such as disk0, or a network card such as nic0"
    )]
    Device(String),
    /// A device that the VM does not have.
    #[error("it has no {0} to boot from")]
    NoDevice(BootDevice),
    /// A device that is named twice.
    #[error("{0} is there twice")]
    Twice(BootDevice),
    /// A swap disk, which is empty at each start.
    #[error("{0} is for swap and empty at each start")]
    Swap(DiskName),
    /// Too many devices.
    #[error("a VM is booted from at most {BOOT_DEVICES_MAX} devices, and these are {0}")]
    TooManyDevices(usize),
    /// An order beside a kernel.
    #[error("a kernel is started, so nothing is booted from a device")]
    OrderBesideKernel,
    /// An initial ram disk beside a TPM: QEMU loads the ram disk over the TPM's log, and the guest
    /// loses its ACPI tables (seen with 7.2; `acpi_data_size` in QEMU's `hw/i386/pc.c` leaves no
    /// room for the log).
    #[error("a VM with a TPM that starts a kernel with an initial ram disk takes UEFI")]
    InitrdBesideTpm,
}

impl DirectKernel {
    /// Checks whether a machine can boot it.
    ///
    /// # Errors
    /// The first invalid part.
    pub fn check(&self) -> Result<(), BootError> {
        check_host_path(&self.kernel)?;
        self.initrd.as_deref().map_or(Ok(()), check_host_path)?;
        let is_one_line = !self.arguments.contains(char::is_control);
        if self.arguments.len() > KERNEL_ARGUMENTS_BYTES_MAX || !is_one_line {
            return Err(BootError::Arguments);
        }
        Ok(())
    }
}

/// Checks whether one machine with this firmware can have an initial ram disk and a TPM.
///
/// # Errors
/// [`BootError::InitrdBesideTpm`].
pub fn check_initrd_beside_tpm(
    kernel: &DirectKernel,
    tpm: bool,
    firmware: Firmware,
) -> Result<(), BootError> {
    if tpm && firmware == Firmware::Bios && kernel.initrd.is_some() {
        return Err(BootError::InitrdBesideTpm);
    }
    Ok(())
}

/// Checks that a path is absolute, has no `..`, and has no comma or line end, which QEMU and people
/// would misread.
///
/// # Errors
/// [`BootError::Path`].
pub fn check_host_path(path: &Path) -> Result<(), BootError> {
    let has_way_up = !path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let is_plain = path.to_str().is_some_and(|text| !text.contains(|c: char| c.is_control() || c == ','));
    let is_short = path.as_os_str().len() <= HOST_PATH_BYTES_MAX;
    if path.is_absolute() && !has_way_up && is_plain && is_short {
        return Ok(());
    }
    Err(BootError::Path(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(arguments: String) -> DirectKernel {
        DirectKernel { kernel: "/boot/vmlinuz".into(), initrd: Some("/boot/initrd".into()), arguments }
    }

    #[test]
    fn a_kernel_and_its_files_are_plain() {
        assert_eq!(kernel("x".repeat(KERNEL_ARGUMENTS_BYTES_MAX)).check(), Ok(()));
        for arguments in ["quiet\n".to_owned(), "x".repeat(KERNEL_ARGUMENTS_BYTES_MAX + 1)] {
            assert_eq!(kernel(arguments).check(), Err(BootError::Arguments));
        }
        let long = format!("/{}", "a".repeat(HOST_PATH_BYTES_MAX));
        for path in ["vmlinuz", "/boot/../etc/shadow", "/boot/a,b", "/boot/a\nb", &long] {
            let wrong = DirectKernel { initrd: Some(path.into()), ..kernel(String::new()) };
            assert_eq!(wrong.check(), Err(BootError::Path(path.into())));
        }
    }

    #[test]
    fn an_order_is_of_devices_that_are_there() {
        let [disk0, swap0] = ["disk0", "swap0"].map(|name| name.parse::<DiskName>().unwrap());
        let has = Bootable { disks: vec![(&disk0, DiskKind::Data), (&swap0, DiskKind::Swap)], nics: 2 };
        let check = |text: &str| -> Result<(), BootError> {
            let order: Vec<BootDevice> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
            assert_eq!(order.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), text);
            has.check(&order)
        };
        for good in ["cdrom", "disk0", "nic1,cdrom,disk0,nic0"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        assert_eq!(check("disk0,disk0"), Err(BootError::Twice(BootDevice::Disk(disk0.clone()))));
        assert_eq!(check("swap0"), Err(BootError::Swap(swap0.clone())));
        assert_eq!(check("nic2"), Err(BootError::NoDevice(BootDevice::Nic(2))));
        assert_eq!(check("nic00"), Err(BootError::NoDevice(BootDevice::Disk("nic00".parse().unwrap()))));
        for bad in ["", "a b", "-"] {
            assert_eq!(check(bad), Err(BootError::Device(bad.to_owned())));
        }
        let many = vec![BootDevice::Cdrom; BOOT_DEVICES_MAX + 1];
        assert_eq!(has.check(&many), Err(BootError::TooManyDevices(many.len())));
    }

    #[test]
    fn a_tpm_and_an_initial_ram_disk_take_uefi() {
        let kernel = kernel(String::new());
        assert!(check_initrd_beside_tpm(&kernel, true, Firmware::Bios).is_err());
        assert!(check_initrd_beside_tpm(&kernel, true, Firmware::Uefi).is_ok());
        assert!(check_initrd_beside_tpm(&kernel, false, Firmware::Bios).is_ok());
    }
}
