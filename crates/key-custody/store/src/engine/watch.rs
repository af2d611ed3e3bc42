//! Watches: each reads the history from its own revision on. Nothing is queued for a watch, so a
//! slow one costs nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::entry::Revision;
use crate::error::StoreError;
use crate::range::KeyRange;
use crate::store::{Event, Snapshot, Watch};

use super::Shared;

/// Revisions that are read at a time.
const REVISIONS_AT_A_TIME: usize = 256;

pub(super) struct EngineWatch {
    shared: Arc<Shared>,
    range: KeyRange,
    /// The first revision not yet reported.
    next: Revision,
}

impl EngineWatch {
    pub(super) fn begin(shared: Arc<Shared>, range: KeyRange, from: Revision) -> Result<Self, StoreError> {
        let from = from.max(Revision::ZERO.next());
        let oldest = shared.snapshot()?.oldest()?;
        if from < oldest {
            return Err(StoreError::Compacted { oldest });
        }
        Ok(Self { shared, range, next: from })
    }

    /// The events already in the history.
    fn known(&mut self) -> Result<Vec<Event>, StoreError> {
        let snapshot = self.shared.snapshot()?;
        let oldest = snapshot.oldest()?;
        if self.next < oldest {
            return Err(StoreError::Compacted { oldest });
        }
        while self.next <= snapshot.revision() {
            let (events, next) = snapshot.changes(&self.range, self.next, REVISIONS_AT_A_TIME)?;
            self.next = next;
            if !events.is_empty() {
                return Ok(events);
            }
        }
        Ok(Vec::new())
    }
}

impl Watch for EngineWatch {
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>, StoreError> {
        let deadline = Instant::now().checked_add(wait);
        loop {
            let events = self.known()?;
            if !events.is_empty() {
                return Ok(events);
            }
            let mut state = self.shared.state.lock();
            while state.revision < self.next {
                if let Some(ended) = &state.ended {
                    return Err(ended.clone());
                }
                let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
                if left.is_zero() {
                    return Ok(Vec::new());
                }
                self.shared.changed.wait_for(&mut state, left);
            }
        }
    }
}
