//! Flushes of the layer below the top, until that layer is complete.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Counts the flushes that go to the layer below the top, so that they can be stopped.
#[derive(Debug, Default)]
pub struct LowerFlushes {
    state: Mutex<State>,
    none_under_way: Condvar,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    has_ended: bool,
}

impl LowerFlushes {
    /// Begins a flush; `None` if the layer no longer needs one.
    pub(super) fn begin(self: &Arc<Self>) -> Option<LowerFlush> {
        let mut state = self.state.lock();
        if state.has_ended {
            return None;
        }
        state.under_way += 1;
        Some(LowerFlush(Arc::clone(self)))
    }

    /// Declares everything in the layer durable, and waits until no flush of it is under way.
    pub fn end_all(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        while state.under_way > 0 {
            self.none_under_way.wait(&mut state);
        }
    }
}

/// A flush that is under way until it is dropped.
pub(super) struct LowerFlush(Arc<LowerFlushes>);

impl Drop for LowerFlush {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            self.0.none_under_way.notify_all();
        }
    }
}
