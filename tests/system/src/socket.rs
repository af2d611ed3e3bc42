//! Sockets on which tests listen before they start the program that connects, so that no polling is
//! needed.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::scratch::Scratch;

/// A unix socket that waits for one connection.
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens in the directory of the test, under a name that no earlier listener has.
    #[track_caller]
    pub(crate) fn new(scratch: &Scratch, name: &str, purpose: &str) -> Self {
        let path = (1..)
            .map(|count| scratch.path(&format!("{name}-{count}.{purpose}.sock")))
            .find(|path| !path.exists())
            .expect("numbers do not run out");
        let listener = UnixListener::bind(&path)
            .unwrap_or_else(|error| panic!("cannot listen on {}: {error}", path.display()));
        Self { listener, path }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the connection. `why_not` is the log to look at if there is none.
    #[track_caller]
    pub(crate) fn accept(&self, deadline: Duration, why_not: &Path) -> UnixStream {
        let timeout = Timespec { tv_sec: deadline.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout))
            .expect("a socket can be polled");
        let path = self.path.display();
        assert!(ready == 1, "nobody has connected to {path}; see {}", why_not.display());
        self.listener.accept().expect("a connection waits").0
    }
}
