//! The socket to a front end: whole messages with their files. Each message has a deadline once it
//! has begun.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use strongroom_io::Waker;
use thiserror::Error;

use super::message::{Header, MessageError};
use super::protocol::{FILES_MAX, MESSAGE_TIMEOUT};

/// The reasons why no more messages can be received.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// It closed the connection.
    #[error("the front end is gone")]
    Gone,
    /// It stopped in the middle of a message, or does not receive an answer.
    #[error("the front end stalled half-way through a message")]
    Stalled,
    /// A message has more files than any valid one.
    #[error("more than {FILES_MAX} files came with a message")]
    TooManyFiles,
    /// It sent an invalid message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] Errno),
}

/// An answer to a front end.
pub struct Reply {
    /// The message.
    pub bytes: Vec<u8>,
    /// The file that goes with it.
    pub file: Option<OwnedFd>,
}

/// The result of a wait for a message.
pub enum Received {
    /// A message.
    Message(Header, Vec<u8>, Vec<OwnedFd>),
    /// No message; the thread was woken.
    Woken,
}

/// A connected socket that does not block.
pub struct Channel {
    socket: Arc<OwnedFd>,
}

impl Channel {
    /// Wraps an accepted socket that is set not to block.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket) }
    }

    /// Waits for the next message, at most until `until`, or until the thread is woken.
    pub fn receive(&self, waker: &Waker, until: Option<Instant>) -> Result<Received, ChannelError> {
        if !await_readable(&self.socket, waker, until)? {
            return Ok(Received::Woken);
        }
        let deadline = Instant::now() + MESSAGE_TIMEOUT;
        let mut bytes = [0; Header::BYTES];
        let mut files = Vec::new();
        // Files arrive with a message's first byte.
        let begun = loop {
            match self.receive_with_files(&mut bytes, &mut files) {
                Err(ChannelError::Socket(Errno::AGAIN)) => self.await_event(PollFlags::IN, deadline)?,
                other => break other?,
            }
        };
        self.receive_exactly(&mut bytes[begun..], deadline)?;
        let header = Header::parse(&bytes)?;
        let mut body = vec![0; header.body_bytes as usize];
        self.receive_exactly(&mut body, deadline)?;
        Ok(Received::Message(header, body, files))
    }

    /// Sends a whole answer, with its file on the first byte.
    pub fn send(&self, answer: &Reply) -> Result<(), ChannelError> {
        send_whole(&self.socket, &answer.bytes, answer.file.as_ref())
    }

    /// The socket.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    fn receive_with_files(&self, into: &mut [u8], files: &mut Vec<OwnedFd>) -> Result<usize, ChannelError> {
        let received =
            strongroom_wire::receive(&self.socket, into, FILES_MAX).map_err(|errno| match errno {
                // A stream has no message limit, so the files are too many.
                Errno::MSGSIZE => ChannelError::TooManyFiles,
                errno => errno.into(),
            })?;
        files.extend(received.files);
        if received.bytes == 0 { Err(ChannelError::Gone) } else { Ok(received.bytes) }
    }

    /// Receives the rest of a message. Files that come with it are not expected, and the kernel
    /// closes them.
    fn receive_exactly(&self, into: &mut [u8], deadline: Instant) -> Result<(), ChannelError> {
        let mut filled = 0;
        while filled < into.len() {
            match retry(|| rustix::io::read(&self.socket, &mut into[filled..])) {
                Ok(0) => return Err(ChannelError::Gone),
                Ok(count) => filled += count,
                Err(Errno::AGAIN) => self.await_event(PollFlags::IN, deadline)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn await_event(&self, event: PollFlags, deadline: Instant) -> Result<(), ChannelError> {
        await_event(&self.socket, event, deadline)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends a whole message over any socket of a front end, with a file on its first byte.
pub fn send_whole(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), ChannelError> {
    let deadline = Instant::now() + MESSAGE_TIMEOUT;
    let mut left = bytes;
    while !left.is_empty() {
        let is_first = left.len() == bytes.len();
        let rights: Option<[BorrowedFd<'_>; 1]> = file.filter(|_| is_first).map(|file| [file.as_fd()]);
        let rights = rights.as_ref().map_or(&[][..], |rights| &rights[..]);
        let sent = strongroom_wire::send(socket, left, rights, SendFlags::DONTWAIT);
        match sent {
            Ok(count) => left = &left[count..],
            Err(Errno::AGAIN) => await_event(socket, PollFlags::OUT, deadline)?,
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Gone),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Sleeps until there is something to read, at most until `until`, or until the thread is woken.
/// Returns whether there is something to read and the thread was not woken.
pub fn await_readable(file: &impl AsFd, waker: &Waker, until: Option<Instant>) -> Result<bool, Errno> {
    let event = waker.event();
    let mut polled = [PollFd::new(file, PollFlags::IN), PollFd::new(&event, PollFlags::IN)];
    let count = retry(|| poll(&mut polled, until.map(timeout_until).as_ref()))?;
    let woken = !polled[1].revents().is_empty();
    if woken {
        waker.reset();
    }
    Ok(!woken && count > 0)
}

fn await_event(socket: &OwnedFd, event: PollFlags, deadline: Instant) -> Result<(), ChannelError> {
    match poll(&mut [PollFd::new(socket, event)], Some(&timeout_until(deadline))) {
        Ok(0) => Err(ChannelError::Stalled),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn timeout_until(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
