//! Files of the host that VMs boot from: kernels, initial ram disks, and CD-ROM images.
//!
//! They must be in directories that the host's configuration names, so that a user who can create
//! VMs cannot read other files of the host through them. hostd opens them as its own user. It
//! copies a kernel and its initial ram disk into the VM's run directory, and passes a CD-ROM image
//! to QEMU as an open file. QEMU's user needs no access to the files or their directories, and a
//! start uses exactly the file that was checked, whatever is put at its path later. The supervisor
//! removes the copies once QEMU has loaded them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use strongroom_host::protocol::{DirectKernel, Problem};
use strongroom_host::run_directory::VmRunDirectory;

/// QEMU runs as another user and reads only the copy, not the directory that it is in.
const COPY_MODE: u32 = 0o444;

/// Checks whether this host can start a VM from these files.
///
/// # Errors
/// The first file that is missing, unreadable, not a regular file, or outside `directories`.
pub fn check<'file>(
    files: impl IntoIterator<Item = &'file Path>,
    directories: &[PathBuf],
) -> Result<(), Problem> {
    files.into_iter().try_for_each(|file| open(file, directories).map(drop))
}

/// Copies a VM's kernel and initial ram disk into its run directory.
///
/// # Errors
/// As [`check`]; also if they do not fit into the VM's memory or into the run directory.
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
        Problem::new("boot_file_unreadable", message)
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

/// Opens a file that a VM boots from, for reading.
///
/// # Errors
/// As [`check`].
pub fn open(file: &Path, directories: &[PathBuf]) -> Result<File, Problem> {
    if !directories.iter().any(|directory| file.starts_with(directory)) && !leads_into(file, directories) {
        // For a file elsewhere, the error must not reveal whether it exists or who owns it.
        return Err(not_allowed(file, directories));
    }
    // Opening a FIFO would block until it has a writer.
    let opened = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(file);
    let opened = opened.map_err(|error| unreadable(file, &error))?;
    let metadata = opened.metadata().map_err(|error| unreadable(file, &error))?;
    if !is_allowed(&opened, directories) {
        return Err(not_allowed(file, directories));
    }
    if !metadata.is_file() {
        let message = format!("{} is not a regular file", file.display());
        return Err(Problem::new("boot_file_unreadable", message)
            .with_next_step("name the file of a kernel, initrd or CD-ROM image"));
    }
    Ok(opened)
}

fn not_allowed(file: &Path, directories: &[PathBuf]) -> Problem {
    let listed: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
    let message = format!("{} is in no directory that VMs of this host start from", file.display());
    let next =
        format!("copy it to {}, or add its directory to boot_directories in host.json", listed.join(" or "));
    Problem::new("boot_file_not_allowed", message).with_next_step(next)
}

/// Whether a path outside the directories leads into one of them through symbolic links.
fn leads_into(file: &Path, directories: &[PathBuf]) -> bool {
    std::fs::canonicalize(file).is_ok_and(|real| is_below(&real, directories))
}

/// Whether an open file is in one of the directories, whatever symbolic links its path went
/// through.
fn is_allowed(file: &File, directories: &[PathBuf]) -> bool {
    let Ok(real) = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) else { return false };
    is_below(&real, directories)
}

fn is_below(real: &Path, directories: &[PathBuf]) -> bool {
    directories
        .iter()
        .filter_map(|directory| std::fs::canonicalize(directory).ok())
        .any(|allowed| real.starts_with(allowed))
}

/// Names the user that hostd runs as, and the part of the path that this user cannot read.
fn unreadable(file: &Path, error: &io::Error) -> Problem {
    let shown = file.display();
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!("there is no file {shown} on the host");
        return Problem::new("boot_file_missing", message)
            .with_next_step(
            "put it there, or name another file; a CD-ROM that is not needed any more is taken out with `strongroom vm set VM --cdrom none`",
        );
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
    Problem::new("boot_file_unreadable", message).with_next_step(next)
}

/// Returns the first directory on the path to a file that cannot be entered, or the file itself.
fn first_unreadable(file: &Path) -> &Path {
    let mut ancestors: Vec<&Path> = file.ancestors().collect();
    ancestors.reverse();
    // A directory's entries are visible only to users who may enter it.
    let stops = ancestors.windows(2).find(|pair| pair[1].symlink_metadata().is_err());
    stops.map_or(file, |pair| pair[0])
}

#[cfg(test)]
#[path = "boot_files_tests.rs"]
mod tests;
