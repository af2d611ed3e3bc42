//! Reads the log behind its writer: durable lines only, each once, in order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::AuditError;
use crate::read::Reader;

use super::Shared;

/// Reads the lines after those already read.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    reader: Reader,
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, from: u64) -> Self {
        let reader = Reader::new(Arc::clone(&shared.directory), from);
        Self { shared, reader }
    }

    /// The sequence of the next line.
    pub(crate) fn next(&self) -> u64 {
        self.reader.next()
    }

    /// The next line with its sequence; `None` when there is none within `wait`.
    ///
    /// After the last line of a log that was closed or failed, returns [`AuditError::Closed`].
    pub(crate) fn line(&mut self, wait: Duration) -> Result<Option<(u64, Vec<u8>)>, AuditError> {
        let deadline = Instant::now() + wait;
        let mut state = self.shared.state.lock();
        while state.durable < self.reader.next() {
            if state.ended.is_some() {
                return Err(AuditError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.shared.changed.wait_for(&mut state, left);
        }
        let durable = state.durable;
        drop(state);
        let sequence = self.reader.next();
        let line = self.reader.line(durable).map_err(|error| AuditError::reading(&error))?;
        Ok(Some((sequence, line)))
    }

    /// A second follower that starts at an earlier line.
    pub(crate) fn again_from(&self, from: u64) -> Self {
        Self::new(Arc::clone(&self.shared), from)
    }
}
