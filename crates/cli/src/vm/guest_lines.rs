//! The messages of a host's job to its client at the guest socket, line by line.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use strongroom_processes::Signals;

/// The longest line of a host, in bytes: the findings of a check, each with a path.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The reasons why the lines end.
pub enum Ended {
    /// A signal interrupted this process. The host stops when its client is gone.
    Interrupted,
    /// The host's job has ended, or sent an invalid line.
    BrokeOff(io::Error),
}

/// The lines of one job.
pub struct GuestLines {
    lines: BufReader<UnixStream>,
    signals: Signals,
}

impl GuestLines {
    /// The lines of `stream`, until a signal arrives.
    pub fn new(stream: UnixStream, signals: Signals) -> Self {
        Self { lines: BufReader::new(stream), signals }
    }

    /// Waits for the next line.
    pub fn next<News: DeserializeOwned>(&mut self) -> Result<News, Ended> {
        if self.lines.buffer().is_empty() {
            let mut watched =
                [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(self.lines.get_ref(), PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Ended::BrokeOff(errno.into())),
            }
        }
        if self.signals.came() {
            return Err(Ended::Interrupted);
        }
        let mut line = Vec::new();
        let read = self.lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(Ended::BrokeOff)?;
        serde_json::from_slice(&line).map_err(|error| Ended::BrokeOff(error.into()))
    }
}
