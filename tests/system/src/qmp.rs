//! The part of QMP that tests need (QEMU `docs/interop/qmp-spec.rst`).

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::transcript::Transcript;

/// QEMU answers at once, but its main loop may be blocked by a flush of every disk.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// A QMP session with a running QEMU.
pub struct Qmp {
    stream: UnixStream,
    received: Transcript,
    /// The messages that arrived before an awaited answer, oldest first.
    events: VecDeque<Value>,
}

impl Qmp {
    /// Reads QEMU's greeting on a fresh connection, and enters command mode.
    #[track_caller]
    pub(crate) fn negotiate(stream: UnixStream, log: &Path) -> Self {
        let reader = stream.try_clone().expect("a socket can be cloned");
        let mut qmp = Self { stream, received: Transcript::of(reader, log), events: VecDeque::new() };
        qmp.received.wait_for_line("QMP's greeting", ANSWER_DEADLINE, |line| line.contains("\"QMP\""));
        qmp.execute("qmp_capabilities", json!({}));
        qmp
    }

    /// Executes a command. Returns its result; an error fails the test.
    #[track_caller]
    pub fn execute(&mut self, command: &str, arguments: Value) -> Value {
        self.try_execute(command, arguments)
            .unwrap_or_else(|refusal| panic!("QEMU refused {command}: {refusal}"))
    }

    /// Executes a command. `Err` is QEMU's description of the error.
    #[track_caller]
    pub fn try_execute(&mut self, command: &str, arguments: Value) -> Result<Value, String> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream, "{request}")
            .unwrap_or_else(|error| panic!("cannot send {request} to QEMU: {error}"));
        let until = Instant::now() + ANSWER_DEADLINE;
        loop {
            let mut message = self.next_message(&format!("QEMU answered {command}"), until);
            if let Some(error) = message.get("error") {
                return Err(error["desc"].as_str().unwrap_or_default().to_owned());
            }
            match message.get_mut("return") {
                Some(answer) => return Ok(answer.take()),
                None => self.events.push_back(message),
            }
        }
    }

    /// Waits for an event by its name, e.g. `STOP`. Each event is found once.
    #[track_caller]
    pub fn wait_for_event(&mut self, event: &str, deadline: Duration) -> Value {
        self.wait_for_event_that(event, deadline, |_| true)
    }

    /// Waits for an event by its name whose data `accept` accepts.
    #[track_caller]
    pub fn wait_for_event_that(
        &mut self,
        event: &str,
        deadline: Duration,
        accept: impl Fn(&Value) -> bool,
    ) -> Value {
        let is_it = |message: &Value| message["event"] == event && accept(&message["data"]);
        if let Some(position) = self.events.iter().position(is_it) {
            return self.events.remove(position).expect("it was just found there");
        }
        let until = Instant::now() + deadline;
        loop {
            let message = self.next_message(&format!("QEMU's event {event}"), until);
            if is_it(&message) {
                return message;
            }
            self.events.push_back(message);
        }
    }

    #[track_caller]
    fn next_message(&mut self, awaited: &str, until: Instant) -> Value {
        let left = until.saturating_duration_since(Instant::now());
        let line = self.received.wait_for_line(awaited, left, |_| true);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in QEMU's line {line:?}"))
    }
}
