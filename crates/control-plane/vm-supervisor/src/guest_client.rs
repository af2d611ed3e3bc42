//! A client at the guest socket that is told how far a job is, line by line.

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

/// How often a client is told how far a job is.
const TELLS_EVERY: Duration = Duration::from_millis(500);

/// The client of a job. When it is gone, the job stops.
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
    /// For want of descriptors.
    pub fn new(stream: UnixStream) -> Result<Self, Problem> {
        let system = |error: io::Error| Problem::new("system", error.to_string());
        stream.set_nonblocking(false).map_err(system)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| system(errno.into()))?;
        Ok(Self { stream, gone: AtomicBool::new(false), wake, told: Cell::new(None) })
    }

    /// Says one line.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn say(&self, line: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        (&self.stream).write_all(&line)
    }

    /// Says how far the job is, unless that was said just now.
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

    /// What stops the job.
    pub fn stop(&self) -> Stop<'_> {
        Stop { flag: &self.gone, wake: self.wake.as_fd() }
    }
}
