//! Waiting: for answers, and for a server's end.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{FrontEnd, FrontEndError};
use crate::vhost_user::queue::QueueError;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Nothing within the time.
    Nothing,
    /// There may be answers.
    Answers,
    /// The server is gone.
    Gone,
    /// The server reports this queue as broken.
    Broken(usize),
}

impl FrontEnd {
    /// Waits for an event, up to `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Wake, FrontEndError> {
        for queue in &mut self.queues {
            if queue.listen()? {
                return Ok(Wake::Answers);
            }
        }
        let mut files = vec![PollFd::new(self.connection.socket(), PollFlags::RDHUP)];
        let told = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        files.extend(self.queues.iter().map(|queue| told(queue.error_file().as_fd())));
        files.extend(self.queues.iter().map(|queue| told(queue.call_file().as_fd())));
        let timeout = timespec(timeout);
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(QueueError::from(errno).into()),
        }
        let first = files.iter().position(|file| !file.revents().is_empty());
        Ok(match first {
            None => Wake::Nothing,
            Some(0) => Wake::Gone,
            Some(error) if error <= self.queues.len() => Wake::Broken(error - 1),
            Some(_) => Wake::Answers,
        })
    }

    /// Waits up to `timeout` for the server's end; returns whether it is gone.
    pub fn await_end(&self, timeout: Duration) -> Result<bool, FrontEndError> {
        let timeout = timespec(timeout);
        loop {
            match poll(&mut [PollFd::new(self.connection.socket(), PollFlags::RDHUP)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(QueueError::from(errno).into()),
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}
