//! Messages to a server, and its answers.
//!
//! Each message is a call, in `connection/messages.rs`. With REPLY_ACK, each message without an
//! answer is acknowledged before its call returns, so that a refusal names the refused message.

mod messages;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;

pub use messages::{BackendChannel, RegionDescription, RingAddresses, RingFile};

use super::protocol::{ANSWER_BYTES_MAX, FILES_MAX, header_flag as flag};

/// How long a server may take for an answer. GET_VRING_BASE waits for everything in flight.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a message failed.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The socket.
    #[error("the connection with the server failed: {0}")]
    Io(#[from] io::Error),
    /// The server refused a message.
    #[error("the server refused message {request} with {code}")]
    Refused {
        /// The message's number.
        request: u32,
        /// Its answer.
        code: u64,
    },
    /// Not an answer to the request.
    #[error("the server's answer to message {0} is none")]
    Answer(u32),
}

impl ConnectionError {
    /// Whether the server is gone, so that a successor may be connected to.
    pub fn is_gone(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        let gone = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof];
        matches!(self, ConnectionError::Io(error) if gone.contains(&error.kind()))
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its content.
    pub body: Vec<u8>,
    /// The files that came with it.
    pub files: Vec<OwnedFd>,
}

/// A connection with a server.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    acknowledges: bool,
}

impl Connection {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> Result<Self, ConnectionError> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        socket.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self { socket, acknowledges: false })
    }

    /// The socket, for waiting on it, or for sending invalid messages.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Sends a message of words, which the server must obey.
    pub fn tell(
        &mut self,
        request: u32,
        words: &[u64],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectionError> {
        self.tell_bytes(request, &bytes_of(words), files)
    }

    fn tell_bytes(
        &mut self,
        request: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectionError> {
        if !self.acknowledges {
            return self.send(request, flag::VERSION, body, files);
        }
        self.send(request, flag::VERSION | flag::NEED_REPLY, body, files)?;
        match number(request, &self.receive(request)?)? {
            0 => Ok(()),
            code => Err(ConnectionError::Refused { request, code }),
        }
    }

    fn ask_number(&mut self, request: u32) -> Result<u64, ConnectionError> {
        let answer = self.ask(request, &[], &[])?;
        number(request, &answer)
    }

    /// Sends a message that has an answer of its own.
    pub fn ask(
        &mut self,
        request: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<Answer, ConnectionError> {
        self.send(request, flag::VERSION, body, files)?;
        self.receive(request)
    }

    /// Sends a message without checking it.
    pub fn send(
        &mut self,
        request: u32,
        flags: u32,
        body: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), ConnectionError> {
        let words = [request, flags, body.len() as u32].map(u32::to_le_bytes);
        let bytes = [words.as_flattened(), body].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .map_err(io::Error::from)?;
        (&self.socket).write_all(&bytes[sent..])?;
        Ok(())
    }

    /// Receives the answer to a message.
    pub fn receive(&mut self, request: u32) -> Result<Answer, ConnectionError> {
        let mut header = [0; 12];
        let files = self.receive_with_files(&mut header)?;
        let word = |at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (answered, flags, bytes) = (word(0), word(4), word(8));
        let is_answer = answered == request && flags & 7 == flag::VERSION | flag::REPLY;
        if !is_answer || bytes > ANSWER_BYTES_MAX {
            return Err(ConnectionError::Answer(request));
        }
        let mut body = vec![0; bytes as usize];
        (&self.socket).read_exact(&mut body)?;
        Ok(Answer { body, files })
    }

    fn receive_with_files(&mut self, into: &mut [u8]) -> Result<Vec<OwnedFd>, ConnectionError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(into)];
        let message = recvmsg(&self.socket, slices, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = message.map_err(io::Error::from)?.bytes;
        if received == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut files = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                files.extend(received);
            }
        }
        (&self.socket).read_exact(&mut into[received..])?;
        Ok(files)
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn number(request: u32, answer: &Answer) -> Result<u64, ConnectionError> {
    let bytes = answer.body.as_slice().try_into().map_err(|_| ConnectionError::Answer(request))?;
    Ok(u64::from_le_bytes(bytes))
}
