//! QMP, as far as tests need it (QEMU `docs/interop/qmp-spec.rst`).

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::transcript::Transcript;

/// QEMU answers at once, but its main loop may wait behind a flush of every disk.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

/// A QMP session with a running QEMU.
pub struct Qmp {
    stream: UnixStream,
    received: Transcript,
}

impl Qmp {
    /// Greets QEMU on a fresh connection, and enters command mode.
    #[track_caller]
    pub(crate) fn negotiate(stream: UnixStream, log: &Path) -> Self {
        let reader = stream.try_clone().expect("a socket can be cloned");
        let mut qmp = Self { stream, received: Transcript::of(reader, log) };
        qmp.received.wait_for_line("QMP's greeting", ANSWER_DEADLINE, |line| line.contains("\"QMP\""));
        qmp.execute("qmp_capabilities", json!({}));
        qmp
    }

    /// Executes a command, and returns what it returned. An error answer fails the test.
    #[track_caller]
    pub fn execute(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream, "{request}")
            .unwrap_or_else(|error| panic!("cannot send {request} to QEMU: {error}"));
        let is_answer = |message: &Value| message.get("return").is_some() || message.get("error").is_some();
        let answer = self.wait_for(&format!("QEMU answered {command}"), ANSWER_DEADLINE, is_answer);
        assert!(answer.get("error").is_none(), "QEMU refused {request}: {answer}");
        answer["return"].clone()
    }

    /// Waits for an event by its name, e.g. `STOP`. Events that came before an answer already received are not found.
    #[track_caller]
    pub fn wait_for_event(&mut self, event: &str, deadline: Duration) -> Value {
        self.wait_for(&format!("QEMU's event {event}"), deadline, |message| message["event"] == event)
    }

    #[track_caller]
    fn wait_for(&mut self, awaited: &str, deadline: Duration, accept: impl Fn(&Value) -> bool) -> Value {
        let message = |line: &str| serde_json::from_str::<Value>(line).ok();
        let line = self
            .received
            .wait_for_line(awaited, deadline, |line| message(line).is_some_and(|value| accept(&value)));
        message(&line).expect("accepted lines are JSON")
    }
}
