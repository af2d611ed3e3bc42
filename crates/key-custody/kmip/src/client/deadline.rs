//! A point in time by which something must be done.

use std::io;
use std::time::{Duration, Instant};

/// A deadline. Every wait within one request is cut to what is left until then, so that their sum
/// cannot exceed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    begun: Instant,
    at: Instant,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        let begun = Instant::now();
        Self { begun, at: begun + limit }
    }

    /// The earlier of this deadline and one `limit` from now.
    pub(super) fn at_most(self, limit: Duration) -> Self {
        Self { begun: self.begun, at: self.at.min(Instant::now() + limit) }
    }

    /// The remaining time.
    ///
    /// # Errors
    /// `TimedOut` if none remains.
    pub(super) fn left(self) -> io::Result<Duration> {
        match self.at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// How long it has been since the deadline was set.
    pub(super) fn waited(self) -> Duration {
        self.begun.elapsed()
    }
}
