//! A client of the guest socket that receives a job's progress, line by line.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use strongroom_host::protocol::Problem;
use strongroom_images::Stop;

/// The interval between progress reports.
pub const TELLS_EVERY: Duration = Duration::from_millis(500);

/// How long a client may take to read content.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(60);

/// The client of a job. The job stops when the client disconnects.
pub struct GuestClient {
    stream: UnixStream,
    gone: AtomicBool,
    wake: OwnedFd,
    told: Cell<Option<Instant>>,
}

impl GuestClient {
    /// The client at the other end of `stream`.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(stream: UnixStream) -> Result<Self, Problem> {
        stream.set_nonblocking(false).map_err(Problem::system)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(Problem::system)?;
        Ok(Self { stream, gone: AtomicBool::new(false), wake, told: Cell::new(None) })
    }

    /// Sends one line.
    ///
    /// # Errors
    /// If the client has disconnected.
    pub fn say(&self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        (&self.stream).write_all(&line)
    }

    /// Sends the progress, unless a report was sent just before.
    pub fn report(&self, news: &impl Serialize) {
        if self.told.get().is_some_and(|told| told.elapsed() < TELLS_EVERY) {
            return;
        }
        self.told.set(Some(Instant::now()));
        if self.say(news).is_err() {
            self.gone.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// The stream for content that comes behind the welcome. A client that reads nothing of it for
    /// [`TAKEN_WITHIN`] is gone.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn content(&self) -> io::Result<UnixStream> {
        let stream = self.stream.try_clone()?;
        stream.set_write_timeout(Some(TAKEN_WITHIN))?;
        Ok(stream)
    }

    /// Stops the job when the client disconnects.
    pub fn stop(&self) -> Stop<'_> {
        Stop { flag: &self.gone, wake: self.wake.as_fd() }
    }
}
