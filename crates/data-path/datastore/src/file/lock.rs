//! The locks on a volume: on its directory, and on the open file that I/O goes through.
//!
//! The directory's lock is held by the process that owns the volume and may replace its descriptor.
//! The file's lock is held by the process that does the I/O. That may be another process: it can be
//! killed and restarted, and no third process can take the volume in between.
//!
//! When a process is killed, its descriptors are closed at once, but writes that it has handed to
//! the kernel still land, up to 0.1 s later (measured). A separate lock file would be free by then:
//! a successor could take it and write a block, and the dead process's older write could land on
//! top. `flock(2)` belongs to the open file description, and io_uring holds that description until
//! the last request on it has ended. So the holder of this lock knows that its predecessor has no
//! I/O under way. (A classic `fcntl` lock does not help: it is released with the process's
//! descriptor table.)

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fstat};
use rustix::io::Errno;

use super::directory::system;
use super::error::DatastoreError;
use super::storage::Lockable;

/// The interval at which a held lock is tried again. `flock` can wait by itself, but not until a
/// deadline.
const RETRY: Duration = Duration::from_millis(5);

/// Whether the lock can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// A single writer.
    Exclusive,
    /// Any number of readers.
    Shared,
}

/// Locks the open directory or file `file` of the volume at `path`, waiting at most `wait`.
pub fn acquire(
    file: &(impl Lockable + ?Sized),
    sharing: Sharing,
    wait: Duration,
    path: &Path,
) -> Result<(), DatastoreError> {
    let operation = match sharing {
        Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Sharing::Shared => FlockOperation::NonBlockingLockShared,
    };
    let deadline = Instant::now() + wait;
    loop {
        match file.try_lock(operation) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(Errno::WOULDBLOCK) => {
                return Err(DatastoreError::InUse { path: path.to_owned(), holder: file.lock_holder() });
            }
            Err(errno) => return Err(system("lock", path)(errno)),
        }
    }
}

/// The process that holds the lock, from `/proc/locks`:
/// `1: FLOCK ADVISORY WRITE 4242 fe:00:1234 0 EOF`.
pub(super) fn holder(file: &impl AsFd) -> Option<u32> {
    let inode = fstat(file).ok()?.st_ino;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let suffix = format!(":{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, pid, place) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && place.ends_with(&suffix)).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::host::HostFile;
    use super::*;

    #[test]
    fn a_second_writer_is_refused_and_told_who_has_it() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let path = Path::new("vm1");
        let open = || HostFile(File::options().read(true).write(true).open(named.path()).unwrap());
        let (first, second, third) = (open(), open(), open());
        acquire(&first, Sharing::Exclusive, Duration::ZERO, path).unwrap();
        let error = acquire(&second, Sharing::Shared, Duration::ZERO, path).unwrap_err();
        let pid = std::process::id();
        assert!(
            matches!(error, DatastoreError::InUse { holder: Some(holder), .. } if holder == pid),
            "{error}"
        );
        drop(first);
        acquire(&second, Sharing::Shared, Duration::ZERO, path).unwrap();
        acquire(&third, Sharing::Shared, Duration::ZERO, path).unwrap();
        assert!(acquire(&third, Sharing::Exclusive, Duration::from_millis(20), path).is_err());
    }
}
