//! One at a time for what changes a VM's directory: a job may outlive the hostd that started it,
//! and the next hostd asks for the same again.

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

/// How often it is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// Leave to change a VM's directory; it ends with the process at the latest.
#[derive(Debug)]
pub struct VmLock {
    path: PathBuf,
    file: File,
}

impl VmLock {
    /// Takes it, once whoever has it lets go.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if that is not within so long.
    pub fn take(run: &HostRunDirectory, vm: VmId, within: Duration) -> io::Result<Self> {
        let path = run.vm_lock(vm);
        let deadline = Instant::now() + within;
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever had it has removed the file; another one may be there.
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
    /// Whoever has a copy of it keeps the VM locked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for VmLock {
    fn drop(&mut self) {
        // While it is still ours.
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
