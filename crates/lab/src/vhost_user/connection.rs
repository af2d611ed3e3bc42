//! Messages to a server, and its answers.
//!
//! Each message is a call here. Where the two sides agreed on REPLY_ACK, each that has no answer of its own is
//! acknowledged before its call returns, so that a refusal names the message that was refused.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use thiserror::Error;

use super::inflight::InflightDescription;
use super::protocol::{
    ANSWER_BYTES_MAX, FILES_MAX, backend_request, header_flag as flag, protocol_feature, request,
};

/// How long a server may take for an answer. GET_VRING_BASE waits for everything in flight.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a message did not have its effect.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The socket.
    #[error("the connection with the server failed: {0}")]
    Io(#[from] io::Error),
    /// The server says that it did not do what a message asked for.
    #[error("the server refused message {request} with {code}")]
    Refused {
        /// The message's number.
        request: u32,
        /// What it answered.
        code: u64,
    },
    /// Not an answer to what was asked.
    #[error("the server's answer to message {0} is none")]
    Answer(u32),
}

impl ConnectionError {
    /// Whether the other side is gone, so that another may be connected to.
    pub fn is_gone(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        let gone = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof];
        matches!(self, ConnectionError::Io(error) if gone.contains(&error.kind()))
    }
}

/// A region of the guest's memory, as a message describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// Where the guest sees it.
    pub guest: u64,
    /// Count of bytes.
    pub bytes: u64,
    /// Where the front end says that it sees it.
    pub user: u64,
    /// Where it begins in its file.
    pub file_offset: u64,
}

impl RegionDescription {
    fn words(&self) -> [u64; 4] {
        [self.guest, self.bytes, self.user, self.file_offset]
    }
}

/// Where a ring's parts are, as the front end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// Where writes into the used ring are logged, as the guest sees it; `None`: not.
    pub log: Option<u64>,
}

/// A file for one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingFile {
    /// Tells the server of new requests.
    Kick,
    /// Tells the driver of answers.
    Call,
    /// Tells the front end that the ring is broken.
    Error,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// What it says.
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

    /// The socket: to wait on it, or to send what no call here would.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// The device's features.
    pub fn features(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_FEATURES)
    }

    /// Agrees on features.
    pub fn set_features(&mut self, features: u64) -> Result<(), ConnectionError> {
        self.tell(request::SET_FEATURES, &[features], &[])
    }

    /// Says that this is the front end whose device it is.
    pub fn set_owner(&mut self) -> Result<(), ConnectionError> {
        self.tell(request::SET_OWNER, &[], &[])
    }

    /// The server's protocol features.
    pub fn protocol_features(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_PROTOCOL_FEATURES)
    }

    /// Agrees on protocol features.
    pub fn set_protocol_features(&mut self, features: u64) -> Result<(), ConnectionError> {
        self.acknowledges = false;
        self.tell(request::SET_PROTOCOL_FEATURES, &[features], &[])?;
        self.acknowledges = features & protocol_feature::REPLY_ACK != 0;
        Ok(())
    }

    /// The most queues of the device.
    pub fn queue_count(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_QUEUE_NUM)
    }

    /// The most memory regions.
    pub fn memory_slots(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_MAX_MEM_SLOTS)
    }

    /// All of the guest's memory, in at most eight regions.
    pub fn set_memory_table(
        &mut self,
        regions: &[(RegionDescription, BorrowedFd<'_>)],
    ) -> Result<(), ConnectionError> {
        // The count has 32 bits, and 32 of padding follow it.
        let mut words = vec![regions.len() as u64];
        words.extend(regions.iter().flat_map(|(region, _)| region.words()));
        let files: Vec<_> = regions.iter().map(|(_, file)| *file).collect();
        self.tell(request::SET_MEM_TABLE, &words, &files)
    }

    /// One more region of the guest's memory.
    pub fn add_region(
        &mut self,
        region: RegionDescription,
        file: BorrowedFd<'_>,
    ) -> Result<(), ConnectionError> {
        let [guest, bytes, user, file_offset] = region.words();
        self.tell(request::ADD_MEM_REG, &[0, guest, bytes, user, file_offset], &[file])
    }

    /// A region that is no memory of the guest's any more.
    pub fn remove_region(&mut self, region: RegionDescription) -> Result<(), ConnectionError> {
        let [guest, bytes, user, file_offset] = region.words();
        self.tell(request::REM_MEM_REG, &[0, guest, bytes, user, file_offset], &[])
    }

    /// Count of a ring's entries.
    pub fn set_ring_size(&mut self, ring: u32, size: u32) -> Result<(), ConnectionError> {
        self.tell(request::SET_VRING_NUM, &[pair(ring, size)], &[])
    }

    /// The first entry of the available ring to take.
    pub fn set_ring_base(&mut self, ring: u32, base: u16) -> Result<(), ConnectionError> {
        self.tell(request::SET_VRING_BASE, &[pair(ring, u32::from(base))], &[])
    }

    /// Stops a ring: the first entry that was not taken.
    pub fn stop_ring(&mut self, ring: u32) -> Result<u16, ConnectionError> {
        let state = self.ask(request::GET_VRING_BASE, &bytes_of(&[u64::from(ring)]), &[])?;
        Ok((number(request::GET_VRING_BASE, &state)? >> 32) as u16)
    }

    /// Where a ring is.
    pub fn set_ring_addresses(&mut self, ring: u32, at: RingAddresses) -> Result<(), ConnectionError> {
        let flags = u32::from(at.log.is_some());
        let words = [pair(ring, flags), at.descriptors, at.used, at.available, at.log.unwrap_or(0)];
        self.tell(request::SET_VRING_ADDR, &words, &[])
    }

    /// A ring's file.
    pub fn set_ring_file(
        &mut self,
        ring: u8,
        which: RingFile,
        file: BorrowedFd<'_>,
    ) -> Result<(), ConnectionError> {
        let request = match which {
            RingFile::Kick => request::SET_VRING_KICK,
            RingFile::Call => request::SET_VRING_CALL,
            RingFile::Error => request::SET_VRING_ERR,
        };
        self.tell(request, &[u64::from(ring)], &[file])
    }

    /// Lets a ring run, or not.
    pub fn enable_ring(&mut self, ring: u32, enabled: bool) -> Result<(), ConnectionError> {
        self.tell(request::SET_VRING_ENABLE, &[pair(ring, u32::from(enabled))], &[])
    }

    /// `bytes` bytes of the configuration space.
    pub fn config(&mut self, offset: u32, bytes: u32) -> Result<Vec<u8>, ConnectionError> {
        let mut body = config_header(offset, bytes);
        body.resize(body.len() + bytes as usize, 0);
        let mut answer = self.ask(request::GET_CONFIG, &body, &[])?.body;
        if answer.len() != body.len() {
            return Err(ConnectionError::Answer(request::GET_CONFIG));
        }
        Ok(answer.split_off(12))
    }

    /// Writes into the configuration space.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> Result<(), ConnectionError> {
        let mut body = config_header(offset, bytes.len() as u32);
        body.extend_from_slice(bytes);
        self.tell_bytes(request::SET_CONFIG, &body, &[])
    }

    /// Gives the server a channel for messages of its own: our end of it.
    pub fn open_backend_channel(&mut self) -> Result<BackendChannel, ConnectionError> {
        let (ours, theirs) = UnixStream::pair()?;
        self.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(BackendChannel { socket: ours })
    }

    /// Has the server make an area for what is in flight.
    pub fn inflight_area(
        &mut self,
        queues: u16,
        queue_size: u16,
    ) -> Result<(InflightDescription, OwnedFd), ConnectionError> {
        let wanted = InflightDescription { mmap_size: 0, mmap_offset: 0, queues, queue_size };
        let mut answer = self.ask(request::GET_INFLIGHT_FD, &wanted.to_bytes(), &[])?;
        let description = InflightDescription::from_bytes(&answer.body);
        match (description, answer.files.pop()) {
            (Some(description), Some(file)) => Ok((description, file)),
            _ => Err(ConnectionError::Answer(request::GET_INFLIGHT_FD)),
        }
    }

    /// Gives the server the area that it, or its predecessor, made.
    pub fn set_inflight_area(
        &mut self,
        description: InflightDescription,
        file: BorrowedFd<'_>,
    ) -> Result<(), ConnectionError> {
        self.tell_bytes(request::SET_INFLIGHT_FD, &description.to_bytes(), &[file])
    }

    /// Where the server marks the pages of guest memory that it wrote: a bit each.
    pub fn set_log(&mut self, bytes: u64, offset: u64, file: BorrowedFd<'_>) -> Result<(), ConnectionError> {
        let answer = self.ask(request::SET_LOG_BASE, &bytes_of(&[bytes, offset]), &[file])?;
        match number(request::SET_LOG_BASE, &answer)? {
            0 => Ok(()),
            code => Err(ConnectionError::Refused { request: request::SET_LOG_BASE, code }),
        }
    }

    /// The device's status.
    pub fn status(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_STATUS)
    }

    /// Sets the device's status.
    pub fn set_status(&mut self, status: u64) -> Result<(), ConnectionError> {
        self.tell(request::SET_STATUS, &[status], &[])
    }

    /// Sets the device back to where nothing was agreed on.
    pub fn reset_device(&mut self) -> Result<(), ConnectionError> {
        self.tell(request::RESET_DEVICE, &[], &[])
    }

    /// Sends a message of words, which must be heeded.
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

    /// Sends a message, whatever it says.
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

/// Where a server sends messages of its own.
#[derive(Debug)]
pub struct BackendChannel {
    socket: UnixStream,
}

impl BackendChannel {
    /// Waits until the server says that the configuration space has changed.
    pub fn await_config_change(&mut self, timeout: Duration) -> Result<(), ConnectionError> {
        self.socket.set_read_timeout(Some(timeout))?;
        let mut header = [0; 12];
        self.socket.read_exact(&mut header)?;
        let expected = [backend_request::CONFIG_CHANGE, flag::VERSION, 0].map(u32::to_le_bytes);
        let is_expected = header == *expected.as_flattened();
        if is_expected { Ok(()) } else { Err(ConnectionError::Answer(backend_request::CONFIG_CHANGE)) }
    }
}

fn pair(ring: u32, number: u32) -> u64 {
    u64::from(ring) | u64::from(number) << 32
}

fn config_header(offset: u32, bytes: u32) -> Vec<u8> {
    [offset, bytes, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn number(request: u32, answer: &Answer) -> Result<u64, ConnectionError> {
    let bytes = answer.body.as_slice().try_into().map_err(|_| ConnectionError::Answer(request))?;
    Ok(u64::from_le_bytes(bytes))
}
