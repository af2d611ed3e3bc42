//! Copies a worker's standard error to ours.
//!
//! The worker gets the end of a pipe. With the log file itself, which others write to as well, an
//! attacker who took the worker over could truncate or overwrite the log: an open file gives that
//! right, no sandbox can revoke it, and the holder can clear the append flag.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::{self, JoinHandle};

/// The longest line, in bytes; a longer one becomes several.
const LINE_BYTES_MAX: u64 = 8 << 10;
/// The stack of the thread: it holds a line and its copy.
const STACK_BYTES: usize = 128 << 10;

/// A thread that copies lines until the pipe has no writer any more.
#[derive(Debug)]
pub(super) struct Said(JoinHandle<()>);

impl Said {
    /// Starts the thread. Returns it with the worker's end of the pipe.
    ///
    /// That end is open for reading too, so that a worker whose supervisor has died gets no write
    /// error, and can close its volume in order.
    pub fn pass_on() -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = io::pipe()?;
        let writer = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
        let thread = thread::Builder::new().name("log".to_owned()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || copy_lines(reader, &mut io::stderr()))?;
        Ok((Self(thread), writer.into()))
    }

    /// Waits until all output of a worker that has ended is copied.
    pub fn finish(self) {
        let _ = self.0.join();
    }
}

fn copy_lines(reader: PipeReader, log: &mut impl Write) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while matches!((&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line), Ok(count) if count > 0) {
        // Write it at once, because others write to the same log. If the log is full, an error
        // would be of no use.
        let _ = log.write_all(printable(&line).as_bytes());
        line.clear();
    }
}

/// A line with control characters escaped, so that it cannot control a terminal or begin another
/// line.
fn printable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned();
    let escape = |character: char| match character.is_control() && character != '\t' {
        true => character.escape_default().collect::<String>(),
        false => character.to_string(),
    };
    text.chars().map(escape).chain(["\n".to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_passed_on_and_steer_nothing() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"one\n\x1b[2Jtwo\rthree\n").unwrap();
        writer.write_all(&[b'x'; LINE_BYTES_MAX as usize + 1]).unwrap();
        drop(writer);
        let mut log = Vec::new();
        copy_lines(reader, &mut log);
        let log = String::from_utf8(log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        assert_eq!(lines[..2], ["one", "\\u{1b}[2Jtwo\\rthree"]);
        assert_eq!(lines[2..].iter().map(|line| line.len()).collect::<Vec<_>>(), [8192, 1]);
    }
}
