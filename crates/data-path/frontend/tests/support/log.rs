//! The server's log, for tests that wait for lines or read them.

use std::fmt::{Debug, Write};
use std::sync::Once;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::memory_disk::DEADLINE;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

/// Captures the log of all threads from now on.
pub fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Recorder).unwrap());
}

/// Waits for a line that contains all `parts`, after the first `skip` lines.
pub fn await_line(skip: usize, parts: &[&str]) -> String {
    let until = Instant::now() + DEADLINE;
    let mut lines = LINES.lock();
    loop {
        let mut new = lines.iter().skip(skip);
        if let Some(line) = new.find(|line| parts.iter().all(|part| line.contains(part))) {
            return line.clone();
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nobody logged {parts:?} in {lines:#?}");
        MORE.wait_for(&mut lines, left);
    }
}

/// Count of lines so far.
pub fn count() -> usize {
    LINES.lock().len()
}

struct Recorder;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("strongroom")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LINES.lock().push(line.0);
        MORE.notify_all();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
