//! Waiting for changed files, signals and ended processes.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use crate::error::{DeviceError, file};

/// Changes in a directory: files that got their name, or lost it.
#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub fn of(directory: &Path) -> Result<Self, DeviceError> {
        let failed = |errno: Errno| file("watch", directory)(errno.into());
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let changes = WatchFlags::MOVED_TO | WatchFlags::DELETE | WatchFlags::MOVED_FROM;
        inotify::add_watch(&inotify, directory, changes).map_err(failed)?;
        Ok(Self(inotify))
    }

    /// Forgets what has changed: the caller looks at everything.
    pub fn clear(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        while events.next().is_ok() {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of them is readable, for `at_most` if given.
pub(crate) fn wait(of: &[BorrowedFd<'_>], at_most: Option<Duration>) -> Result<(), DeviceError> {
    let mut of: Vec<PollFd<'_>> = of.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let at_most = at_most
        .map(|time| Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() });
    match poll(&mut of, at_most.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(DeviceError::Wait(errno.into())),
    }
}
