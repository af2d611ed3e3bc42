//! The state that a connection's reader shares with other threads: answers, each for the thread
//! that waits for it, and events in order.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::QmpError;
use super::event::PowerEvent;
use crate::version::Version;

/// The most queued events. A guest can cause many (`BLOCK_IO_ERROR` is not throttled), and a
/// supervisor takes them at once.
pub const EVENTS_MAX: usize = 512;

/// The received answers, of type `A`, and events.
#[derive(Debug)]
pub(crate) struct Shared<A> {
    state: Mutex<State<A>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<A> {
    greeted: Option<Version>,
    last_id: u64,
    /// The commands whose answers are awaited, with the answers that have arrived.
    answers: HashMap<u64, Option<A>>,
    events: VecDeque<PowerEvent>,
    /// Why the connection ended, once it has.
    over: Option<String>,
}

impl<A> Default for Shared<A> {
    fn default() -> Self {
        let (answers, events) = (HashMap::new(), VecDeque::new());
        let state = State { greeted: None, last_id: 0, answers, events, over: None };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<A> Shared<A> {
    fn change(&self, change: impl FnOnce(&mut State<A>)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value. Returns an error at the end of the connection, and
    /// `None` after the timeout.
    fn wait<T>(
        &self,
        until: Instant,
        mut ready: impl FnMut(&mut State<A>) -> Option<T>,
    ) -> Result<Option<T>, QmpError> {
        let mut state = self.state.lock();
        loop {
            if let Some(found) = ready(&mut state) {
                return Ok(Some(found));
            }
            if let Some(reason) = &state.over {
                return Err(QmpError::Over(reason.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Waits for the greeting. Returns QEMU's version.
    pub fn greeting(&self, until: Instant, within: Duration) -> Result<Version, QmpError> {
        let greeted = self.wait(until, |state| state.greeted)?;
        greeted.ok_or(QmpError::Silent { command: "the connection".to_owned(), within })
    }

    /// Reserves a number for a command whose answer will be awaited.
    pub fn expect_answer(&self) -> Result<u64, QmpError> {
        let mut state = self.state.lock();
        if let Some(reason) = &state.over {
            return Err(QmpError::Over(reason.clone()));
        }
        state.last_id += 1;
        let id = state.last_id;
        state.answers.insert(id, None);
        Ok(id)
    }

    /// Cancels the wait for an answer.
    pub fn forget_answer(&self, id: u64) {
        self.state.lock().answers.remove(&id);
    }

    /// Waits for the answer to a command.
    pub fn answer(&self, id: u64, until: Instant) -> Result<Option<A>, QmpError> {
        let answer = self.wait(until, |state| state.answers.get_mut(&id).and_then(Option::take));
        self.forget_answer(id);
        answer
    }

    /// Waits for an event.
    pub fn next_event(&self, until: Instant) -> Result<Option<PowerEvent>, QmpError> {
        self.wait(until, |state| state.events.pop_front())
    }

    /// Records the greeting.
    pub fn greeted(&self, version: Version) {
        self.change(|state| state.greeted = Some(version));
    }

    /// Records an answer. An answer that no thread waits for is dropped.
    pub fn answered(&self, id: u64, answer: A) {
        self.change(|state| match state.answers.get_mut(&id) {
            Some(waits) => *waits = Some(answer),
            None => tracing::debug!(id, "QEMU answers what nobody waits for"),
        });
    }

    /// Records an event. When the queue is full, a single [`PowerEvent::Missed`] is added at its
    /// end.
    pub fn happened(&self, event: PowerEvent) {
        self.change(|state| {
            let room = state.events.len() < EVENTS_MAX;
            match event {
                event if room => state.events.push_back(event),
                PowerEvent::Other { .. } => {}
                _ => {
                    if let Some(last) = state.events.back_mut() {
                        *last = PowerEvent::Missed;
                    }
                }
            }
        });
    }

    /// Records the end of the connection.
    pub fn end(&self, reason: String) {
        self.change(|state| state.over = Some(reason));
    }
}
