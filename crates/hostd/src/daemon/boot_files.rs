//! Kernels and initrds that VMs start from directly.
//!
//! hostd opens them, as the user that it runs as, and lays a copy into the VM's run directory. QEMU's user can read
//! neither the files nor their directories, and need not; and what a start uses is the file that was checked, whatever
//! is put at its path later. The supervisor removes the copies once QEMU has loaded them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::protocol::{DirectKernel, Problem};
use crate::run_directory::VmRunDirectory;

/// QEMU, as another user, sees a copy alone, and not the directory that it is in.
const COPY_MODE: u32 = 0o444;

/// Whether this host can start a VM from these files.
///
/// # Errors
/// For the first that is missing, unreadable, no regular file, or outside `directories`.
pub fn check(kernel: &DirectKernel, directories: &[PathBuf]) -> Result<(), Problem> {
    each(kernel).try_for_each(|file| open(file, directories).map(drop))
}

/// Lays copies of a VM's kernel and initrd into its run directory.
///
/// # Errors
/// As [`check`], and if they do not fit into the VM's memory or into the run directory.
pub fn copy(
    kernel: &DirectKernel,
    memory_bytes: u64,
    run: &VmRunDirectory,
    directories: &[PathBuf],
) -> Result<(), Problem> {
    let mut room_bytes = memory_bytes;
    for (file, copy) in each(kernel).zip([run.kernel(), run.initrd()]) {
        room_bytes -= copy_one(file, &copy, directories, room_bytes)?;
    }
    Ok(())
}

fn each(kernel: &DirectKernel) -> impl Iterator<Item = &Path> {
    std::iter::once(&kernel.kernel).chain(&kernel.initrd).map(PathBuf::as_path)
}

/// Returns the length in bytes.
fn copy_one(file: &Path, copy: &Path, directories: &[PathBuf], room_bytes: u64) -> Result<u64, Problem> {
    let shown = file.display();
    let source = open(file, directories)?;
    let failed = |error: io::Error| {
        let message = format!("cannot copy {shown} to {}: {error}", copy.display());
        Problem::new("kernel_unreadable", message)
            .with_next_step("see that the file can be read and the run directory has room for it")
    };
    let mut target = File::options().write(true).create_new(true).open(copy).map_err(failed)?;
    // The file may grow while it is read.
    let length_bytes =
        io::copy(&mut source.take(room_bytes.saturating_add(1)), &mut target).map_err(failed)?;
    if length_bytes > room_bytes {
        let message = format!("{shown} does not fit into the VM's memory");
        return Err(Problem::new("kernel_too_large", message)
            .with_next_step("give the VM more memory, or use a smaller kernel or initrd"));
    }
    target.set_permissions(PermissionsExt::from_mode(COPY_MODE)).map_err(failed)?;
    Ok(length_bytes)
}

fn open(file: &Path, directories: &[PathBuf]) -> Result<File, Problem> {
    // A FIFO would wait for somebody who writes to it.
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(file);
    let opened = opened.map_err(|error| unreadable(file, &error))?;
    let metadata = opened.metadata().map_err(|error| unreadable(file, &error))?;
    if !is_allowed(&opened, directories) {
        let message = format!("{} is in no directory for kernels of this host", file.display());
        let listed: Vec<String> =
            directories.iter().map(|directory| directory.display().to_string()).collect();
        let next = format!(
            "copy it to {}, or add its directory to boot_directories in host.json",
            listed.join(" or ")
        );
        return Err(Problem::new("kernel_not_allowed", message).with_next_step(next));
    }
    if !metadata.is_file() {
        let message = format!("{} is not a regular file", file.display());
        return Err(
            Problem::new("kernel_unreadable", message).with_next_step("name a kernel's or initrd's file")
        );
    }
    Ok(opened)
}

/// Whether an open file is where this host allows kernels to be, whatever links its path went through.
fn is_allowed(file: &File, directories: &[PathBuf]) -> bool {
    let Ok(real) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return false };
    directories
        .iter()
        .filter_map(|directory| std::fs::canonicalize(directory).ok())
        .any(|allowed| real.starts_with(allowed))
}

/// Says who cannot read what: the user that hostd runs as, and the part of the path that stops it.
fn unreadable(file: &Path, error: &io::Error) -> Problem {
    let shown = file.display();
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!("there is no file {shown} on the host");
        return Problem::new("kernel_missing", message)
            .with_next_step("put it there, or name another kernel or initrd");
    }
    let uid = rustix::process::geteuid().as_raw();
    let wall = first_unreadable(file);
    let mode = wall.metadata().map_or_else(
        |error| error.to_string(),
        |metadata| format!("owner uid {}, mode {:04o}", metadata.uid(), metadata.mode() & 0o7777),
    );
    let message = format!(
        "hostd, which runs as uid {uid}, cannot read {shown}: {error}; {} has {mode}",
        wall.display()
    );
    let next = format!("give uid {uid} the right to read {}", wall.display());
    Problem::new("kernel_unreadable", message).with_next_step(next)
}

/// The first directory on the way to a file that cannot be entered, or the file.
fn first_unreadable(file: &Path) -> &Path {
    let mut ancestors: Vec<&Path> = file.ancestors().collect();
    ancestors.reverse();
    // What a directory shows of its entries takes the right to enter it.
    let stops = ancestors.windows(2).find(|pair| pair[1].symlink_metadata().is_err());
    stops.map_or(file, |pair| pair[0])
}

#[cfg(test)]
#[path = "boot_files_tests.rs"]
mod tests;
