//! Leases a user id that no other running process has.
//!
//! Each number has a file in a directory that only root can access; the process that holds the
//! file's lock owns the number. The lock belongs to the open file (`flock`), so it ends with its
//! last holder, however that process ended. Pass [`UidLease::as_fd`] to the process: the number is
//! free once the process and its starter have both ended, no earlier.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use thiserror::Error;

/// The first number. From here to the end of the positive 32-bit numbers nothing else assigns
/// users: distributions, dynamic users of systemd, containers and subordinate users (to 600 100 000
/// by default) are all below; see systemd's UIDS-GIDS, whose container range ends just before it.
const FIRST: u32 = 0x7000_0000;
/// The count of numbers. A VM needs one for QEMU, two for its TPM, two for each network card and
/// one for each disk, or two during an upgrade; this suffices for more VMs than a host can run.
const COUNT: u32 = 65536;
/// The default directory of the locks.
pub const RUN_DIRECTORY: &str = "/run/strongroom/users";

/// The reasons why a process gets no user.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The directory cannot be used.
    #[error("cannot use {path} for the locks of users: {error}")]
    Directory {
        /// Its path.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Other users could take the locks or replace the files.
    #[error("{0} belongs to another user, or others can write to it; remove it")]
    Exposed(PathBuf),
    /// Every number is in use by a running process.
    #[error("all {COUNT} users for processes of VMs are taken")]
    Exhausted,
    /// A process does not hold the lease that it should hold.
    #[error("process {pid} does not hold the lease of user {number}")]
    NotHeld {
        /// The process.
        pid: u32,
        /// The user.
        number: u32,
    },
}

/// A user and group number that no other process has while this, or a duplicate of its descriptor,
/// is open.
#[derive(Debug)]
pub struct UidLease {
    lock: File,
    number: u32,
}

impl UidLease {
    /// Takes a free number. `directory` ([`RUN_DIRECTORY`], or a test's) is created if it is
    /// missing.
    pub fn take(directory: &Path) -> Result<Self, LeaseError> {
        let failed = |error| LeaseError::Directory { path: directory.to_owned(), error };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let metadata = std::fs::symlink_metadata(directory).map_err(failed)?;
        let ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || !ours || metadata.mode() & 0o022 != 0 {
            return Err(LeaseError::Exposed(directory.to_owned()));
        }
        for number in FIRST..FIRST + COUNT {
            let lock = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(directory.join(number.to_string()))
                .map_err(failed)?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { lock, number }),
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        Err(LeaseError::Exhausted)
    }

    /// Takes a number from [`RUN_DIRECTORY`] for a child of this process. `None` if this process is
    /// not root, which alone can assign one, or if there is none.
    pub fn take_as_root() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        Self::take(RUN_DIRECTORY.as_ref())
            .inspect_err(|error| tracing::warn!("the process gets no user of its own: {error}"))
            .ok()
    }

    /// Joins the lease whose descriptor a running process holds: that of a QEMU whose supervisor
    /// has died. It needs the right to duplicate that process's descriptors (`pidfd_getfd(2)`).
    pub fn join(directory: &Path, number: u32, pid: u32) -> Result<Self, LeaseError> {
        let failed = |error| LeaseError::Directory { path: directory.to_owned(), error };
        let not_held = || LeaseError::NotHeld { pid, number };
        let wanted = std::fs::symlink_metadata(directory.join(number.to_string())).map_err(failed)?;
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(not_held)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).map_err(|_| not_held())?;
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed)?.flatten() {
            let same = |found: std::fs::Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
            let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(descriptor) = descriptor
                && std::fs::metadata(entry.path()).is_ok_and(same)
            {
                let lock: OwnedFd = pidfd_getfd(&pidfd, descriptor, PidfdGetfdFlags::empty())
                    .map_err(|errno| failed(errno.into()))?;
                return Ok(Self { lock: lock.into(), number });
            }
        }
        Err(not_held())
    }

    /// The user and group, for [`super::Confinement`].
    pub fn user(&self) -> (u32, u32) {
        (self.number, self.number)
    }
}

impl AsFd for UidLease {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_two_leases_have_the_same_user() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("run/users");
        let first = UidLease::take(&directory).unwrap();
        let second = UidLease::take(&directory).unwrap();
        assert_eq!(first.user(), (FIRST, FIRST));
        assert_eq!(second.user(), (FIRST + 1, FIRST + 1));
        drop(first);
        assert_eq!(UidLease::take(&directory).unwrap().user(), (FIRST, FIRST));
        assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_lease_lasts_as_long_as_any_duplicate_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let lease = UidLease::take(directory.path()).unwrap();
        let held = lease.as_fd().try_clone_to_owned().unwrap();
        drop(lease);
        assert_eq!(UidLease::take(directory.path()).unwrap().number, FIRST + 1);
        drop(held);
        assert_eq!(UidLease::take(directory.path()).unwrap().number, FIRST);
    }

    #[test]
    fn a_lease_is_joined_through_a_process_that_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let lease = UidLease::take(directory.path()).unwrap();
        let joined = UidLease::join(directory.path(), FIRST, std::process::id()).unwrap();
        drop(lease);
        assert_eq!(UidLease::take(directory.path()).unwrap().number, FIRST + 1);
        drop(joined);
        let joined = UidLease::join(directory.path(), FIRST, std::process::id());
        assert!(matches!(joined, Err(LeaseError::NotHeld { .. })));
        assert_eq!(UidLease::take(directory.path()).unwrap().number, FIRST);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(UidLease::take(directory.path()), Err(LeaseError::Exposed(_))));
    }

    #[test]
    fn a_link_in_the_place_of_a_lock_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, directory.path().join(FIRST.to_string())).unwrap();
        assert!(matches!(UidLease::take(directory.path()), Err(LeaseError::Directory { .. })));
        assert!(!target.exists());
    }
}
