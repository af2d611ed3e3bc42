//! Collects another process's output as it arrives.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// All output of one stream so far. A thread of its own reads it, so that the other side never
/// blocks because a test is busy elsewhere. Also written to a log file.
pub(crate) struct Transcript {
    shared: Arc<Shared>,
    /// Where the next search begins: text that was found is not found again.
    position: usize,
    log: PathBuf,
}

#[derive(Default)]
struct Shared {
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Default)]
struct Heard {
    bytes: Vec<u8>,
    ended: bool,
}

impl Transcript {
    /// Begins to read `stream`.
    pub(crate) fn of(stream: impl Read + Send + 'static, log: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let file =
            File::create(log).unwrap_or_else(|error| panic!("cannot create {}: {error}", log.display()));
        let theirs = Arc::clone(&shared);
        // The thread is not joined: it ends with the stream, and holds only the buffer.
        thread::spawn(move || listen(stream, file, &theirs));
        Self { shared, position: 0, log: log.to_owned() }
    }

    /// Waits until `find` succeeds in the output since the last find. It gets the bytes, and
    /// returns its finding and the number of bytes that it consumes.
    ///
    /// Fails the test after the timeout, or when the stream ends first; `awaited` describes the
    /// finding.
    #[track_caller]
    pub(crate) fn wait_for<T>(
        &mut self,
        awaited: &str,
        deadline: Duration,
        mut find: impl FnMut(&[u8]) -> Option<(T, usize)>,
    ) -> T {
        let until = Instant::now() + deadline;
        let mut heard = self.shared.heard.lock();
        loop {
            if let Some((found, length)) = find(&heard.bytes[self.position..]) {
                self.position += length;
                return found;
            }
            let left = until.saturating_duration_since(Instant::now());
            let why = match () {
                () if heard.ended => "the stream ended before",
                () if left.is_zero() => "the deadline passed before",
                () => {
                    self.shared.changed.wait_for(&mut heard, left);
                    continue;
                }
            };
            let unread = String::from_utf8_lossy(&heard.bytes[self.position..]).into_owned();
            panic!(
                "{why} {awaited}; since the last find came {unread:?}; all of it is in {}",
                self.log.display()
            );
        }
    }

    /// Waits for the end of the stream. Returns all output since the last find.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self, awaited: &str, deadline: Duration) -> String {
        let until = Instant::now() + deadline;
        let mut heard = self.shared.heard.lock();
        while !heard.ended {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the deadline passed before {awaited}; see {}", self.log.display());
            self.shared.changed.wait_for(&mut heard, left);
        }
        let rest = String::from_utf8_lossy(&heard.bytes[self.position..]).into_owned();
        self.position = heard.bytes.len();
        rest
    }

    /// Waits for the next complete line that `accept` accepts. Returns it without its line end.
    #[track_caller]
    pub(crate) fn wait_for_line(
        &mut self,
        awaited: &str,
        deadline: Duration,
        accept: impl Fn(&str) -> bool,
    ) -> String {
        self.wait_for(awaited, deadline, |bytes| {
            let mut end = 0;
            for line in bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
                end += line.len();
                let text = String::from_utf8_lossy(line);
                let text = text.trim_end_matches(['\r', '\n']);
                if accept(text) {
                    return Some((text.to_owned(), end));
                }
            }
            None
        })
    }
}

fn listen(mut stream: impl Read, mut log: File, shared: &Shared) {
    let mut buffer = [0; 4096];
    loop {
        // A reset connection is treated as the end of the stream.
        let length = stream.read(&mut buffer).unwrap_or(0);
        // The log is for people; a full disk must not make the other side hang as well.
        let _ = log.write_all(&buffer[..length]);
        let mut heard = shared.heard.lock();
        heard.bytes.extend_from_slice(&buffer[..length]);
        heard.ended = length == 0;
        shared.changed.notify_all();
        if heard.ended {
            return;
        }
    }
}
