//! Direct kernels, and host files that a VM boots from.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::board::Firmware;
use crate::limits::{HOST_PATH_BYTES_MAX, KERNEL_ARGUMENTS_BYTES_MAX};

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
    fn a_tpm_and_an_initial_ram_disk_take_uefi() {
        let kernel = kernel(String::new());
        assert!(check_initrd_beside_tpm(&kernel, true, Firmware::Bios).is_err());
        assert!(check_initrd_beside_tpm(&kernel, true, Firmware::Uefi).is_ok());
        assert!(check_initrd_beside_tpm(&kernel, false, Firmware::Bios).is_ok());
    }
}
