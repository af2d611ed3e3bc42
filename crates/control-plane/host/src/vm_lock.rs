//! The lock for changes to a VM's directory: a job may outlive the hostd that started it, and the
//! next hostd may request the same job again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use strongroom_types::VmId;

use crate::run_directory::HostRunDirectory;

/// The interval between attempts.
const RETRY: Duration = Duration::from_millis(20);

/// Exclusive access to a VM's directory, released at the latest when the process ends.
#[derive(Debug)]
pub struct VmLock {
    path: PathBuf,
    file: File,
}

impl VmLock {
    /// Waits for the lock, and takes it.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if another process holds it for longer than `within`.
    pub fn take(run: &HostRunDirectory, vm: VmId, within: Duration) -> io::Result<Self> {
        let path = run.vm_lock(vm);
        let deadline = Instant::now() + within;
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The previous holder has removed the file; another may be in its place.
                Ok(()) if !is_at(&file, &path) => continue,
                Ok(()) => return Ok(Self { path, file }),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(RETRY),
                Err(Errno::WOULDBLOCK) => {
                    let message = format!("another process has been at work on VM {vm} for {within:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn is_at(file: &File, path: &PathBuf) -> bool {
    let same = |found: std::fs::Metadata| {
        file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (found.dev(), found.ino()))
    };
    std::fs::symlink_metadata(path).is_ok_and(same)
}

impl AsFd for VmLock {
    /// A process with a copy of the descriptor keeps the VM locked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for VmLock {
    fn drop(&mut self) {
        // Removes the file while the lock is still held.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_has_it_and_the_next_one_waits() {
        let scratch = tempfile::tempdir().unwrap();
        let run = HostRunDirectory::at(&scratch.path().join("run")).unwrap();
        let vm = VmId::random();
        let first = VmLock::take(&run, vm, Duration::ZERO).unwrap();
        VmLock::take(&run, VmId::random(), Duration::ZERO).unwrap();
        let refused = VmLock::take(&run, vm, Duration::ZERO).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| VmLock::take(&run, vm, Duration::from_secs(60)).unwrap());
            drop(first);
            drop(waiting.join().unwrap());
        });
        assert!(!run.vm_lock(vm).exists());
    }
}
