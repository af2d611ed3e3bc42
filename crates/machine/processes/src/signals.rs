//! Being asked to end: SIGINT (Control-C), SIGTERM and SIGHUP.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// From when it is made on, signals no longer end the process: the command ends by itself, in
/// order. Its descriptor is readable from the first signal on.
#[derive(Debug)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    /// Readable from the first signal on; nobody ever reads it.
    caught: UnixStream,
}

impl Signals {
    /// Catches the signals that ask a process to end.
    ///
    /// # Errors
    /// Of the kernel: no descriptor, no handler.
    pub fn catch() -> io::Result<Self> {
        let (caught, written) = UnixStream::pair()?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The flag first: who sees the pipe finds the flag set.
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
            signal_hook::low_level::pipe::register(signal, written.try_clone()?)?;
        }
        Ok(Self { stop, caught })
    }

    /// Set when a signal came.
    pub fn stop_flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caught.as_fd()
    }
}
