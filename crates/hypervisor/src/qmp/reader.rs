//! The thread that reads what QEMU says, and what it leaves for others.

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::QmpError;
use super::event::PowerEvent;
use super::message::{Greeting, Message, Refusal};

/// The longest line: several times QEMU's longest answer (`query-qmp-schema`, 200 KiB).
pub const LINE_BYTES_MAX: usize = 2 << 20;
/// Events that wait to be looked at. A guest can cause many (`BLOCK_IO_ERROR` is not throttled), and a supervisor looks
/// at once.
pub const EVENTS_MAX: usize = 512;
/// An event with more than that is of no kind that is kept: it would be [`EVENTS_MAX`] times as much.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// Read from the socket at once.
const READ_BYTES: usize = 16 << 10;

/// What the reader has heard.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    greeting: Option<Greeting>,
    last_id: u64,
    /// Commands that somebody waits for: their answers, once they are there.
    answers: HashMap<u64, Option<Result<Value, Refusal>>>,
    events: VecDeque<PowerEvent>,
    /// Why nothing more is heard.
    over: Option<String>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` has something, or the connection is over (an error), or the time is (`None`).
    fn wait<T>(
        &self,
        until: Instant,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>, QmpError> {
        let mut state = self.state();
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
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the greeting.
    pub fn greeting(&self, until: Instant, within: Duration) -> Result<Greeting, QmpError> {
        let greeting = self.wait(until, |state| state.greeting.clone())?;
        greeting.ok_or(QmpError::Silent { command: "the connection".to_owned(), within })
    }

    /// A number for a command whose answer will be waited for.
    pub fn expect_answer(&self) -> Result<u64, QmpError> {
        let mut state = self.state();
        if let Some(reason) = &state.over {
            return Err(QmpError::Over(reason.clone()));
        }
        state.last_id += 1;
        let id = state.last_id;
        state.answers.insert(id, None);
        Ok(id)
    }

    /// That the answer will not be waited for.
    pub fn forget_answer(&self, id: u64) {
        self.state().answers.remove(&id);
    }

    /// Waits for the answer to a command.
    pub fn answer(&self, id: u64, until: Instant) -> Result<Option<Result<Value, Refusal>>, QmpError> {
        let answer = self.wait(until, |state| state.answers.get_mut(&id).and_then(Option::take));
        self.forget_answer(id);
        answer
    }

    /// Waits for an event.
    pub fn next_event(&self, until: Instant) -> Result<Option<PowerEvent>, QmpError> {
        self.wait(until, |state| state.events.pop_front())
    }

    fn take_in(&self, message: Message, line_bytes: usize) {
        let mut state = self.state();
        match message {
            Message::Greeting(greeting) => state.greeting = Some(greeting),
            Message::Answer { id, outcome } => match state.answers.get_mut(&id) {
                Some(answer) => *answer = Some(outcome),
                None => tracing::debug!(id, "QEMU answers what nobody waits for"),
            },
            Message::Unreadable(refusal) => {
                tracing::warn!("QEMU could not read what it was asked: {}", refusal.desc);
            }
            Message::Event(event) => {
                tracing::debug!(name = event.name, "QEMU's event");
                let room = state.events.len() < EVENTS_MAX;
                match PowerEvent::from(event) {
                    PowerEvent::Other { .. } if !room || line_bytes > EVENT_BYTES_MAX => {}
                    event if room => state.events.push_back(event),
                    // That something is missed is said once, at the end of what is known.
                    _ => {
                        if let Some(last) = state.events.back_mut() {
                            *last = PowerEvent::Missed;
                        }
                    }
                }
            }
        }
        self.changed.notify_all();
    }

    fn end(&self, reason: String) {
        self.state().over = Some(reason);
        self.changed.notify_all();
    }
}

/// Reads until the connection ends.
pub(super) fn read(socket: &UnixStream, shared: &Shared) {
    let reason = read_lines(socket, shared);
    // Whoever talks nonsense is not listened to, and learns it.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    shared.end(reason);
}

fn read_lines(mut socket: &UnixStream, shared: &Shared) -> String {
    let mut line = Vec::new();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let count = match socket.read(&mut bytes) {
            Ok(0) => return "QEMU has closed it".to_owned(),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return error.to_string(),
        };
        for piece in bytes[..count].split_inclusive(|byte| *byte == b'\n') {
            if line.len() + piece.len() > LINE_BYTES_MAX {
                return format!("QEMU says more than {LINE_BYTES_MAX} bytes at once");
            }
            line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                match Message::parse(&line) {
                    Ok(Some(message)) => shared.take_in(message, line.len()),
                    Ok(None) => {}
                    Err(error) => return format!("QEMU says what is no QMP: {error}"),
                }
                line.clear();
                // One long answer is no reason to keep its memory.
                line.shrink_to(READ_BYTES);
            }
        }
    }
}
