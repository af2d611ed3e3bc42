//! Parses messages of a front end, from bytes and files to types.
//!
//! Pure: a message's body and files have been received within the limits of [`super::protocol`],
//! and nothing here allocates memory by a number that the front end chose.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use strongroom_memory::GuestAddress;
use thiserror::Error;

use super::in_flight::InFlightDescription;
use super::protocol::{BODY_BYTES_MAX, CONFIG_BYTES_MAX, FILES_MAX, header_flag as flag, request};

/// A message that cannot be parsed. An error in a header ends the session, because nothing after it
/// can be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Another version of the protocol, or an answer where a request is due.
    #[error("the header's flags {0:#x} are not those of a request of version 1")]
    Flags(u32),
    /// The body is longer than that of any supported message.
    #[error("message {request} has a body of {bytes} bytes; at most {BODY_BYTES_MAX} are taken")]
    TooLong {
        /// Its type.
        request: u32,
        /// The body's length according to its header.
        bytes: u32,
    },
    /// The message is not supported.
    #[error("message {0} is not served")]
    Unknown(u32),
    /// The body does not match the message's type.
    #[error("the body of message {0} has the wrong length or content")]
    Body(u32),
    /// Files are missing, or too many.
    #[error("message {request} came with {files} files")]
    Files {
        /// Its type.
        request: u32,
        /// Count of files.
        files: usize,
    },
}

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message's type.
    pub request: u32,
    /// Whether the front end waits for an answer even to a message that has no answer by itself.
    pub needs_reply: bool,
    /// Bytes of the body.
    pub body_bytes: u32,
}

impl Header {
    /// Its length.
    pub const BYTES: usize = 12;

    /// Parses a header.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self, MessageError> {
        let mut body = Body { request: 0, rest: bytes };
        let (request, flags, body_bytes) = (body.u32()?, body.u32()?, body.u32()?);
        if flags & flag::VERSION_MASK != flag::VERSION || flags & flag::REPLY != 0 {
            return Err(MessageError::Flags(flags));
        }
        if body_bytes > BODY_BYTES_MAX {
            return Err(MessageError::TooLong { request, bytes: body_bytes });
        }
        Ok(Self { request, needs_reply: flags & flag::NEED_REPLY != 0, body_bytes })
    }

    /// The bytes of an answer to this message.
    pub fn reply(&self, body: &[u8]) -> Vec<u8> {
        encode(self.request, flag::VERSION | flag::REPLY, body)
    }
}

/// The bytes of a message.
pub fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(Header::BYTES + body.len());
    for word in [request, flags, body.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// A run of guest memory, as a front end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDescription {
    /// Where the guest sees it.
    #[serde(with = "guest_address")]
    pub guest: GuestAddress,
    /// Its length.
    pub bytes: u64,
    /// Where the front end sees it; ring addresses are given in these terms.
    pub user: u64,
    /// Where it starts in its file.
    pub file_offset: u64,
}

/// An address as a plain number.
mod guest_address {
    use serde::{Deserialize, Deserializer, Serializer};
    use strongroom_memory::GuestAddress;

    pub fn serialize<S: Serializer>(address: &GuestAddress, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(address.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GuestAddress, D::Error> {
        u64::deserialize(from).map(GuestAddress)
    }
}

/// A number for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// The ring's index.
    pub index: u32,
    /// The number.
    pub number: u32,
}

/// The addresses of a ring's parts, as the front end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
}

/// Where the dirty log is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDescription {
    /// Its length.
    pub bytes: u64,
    /// Where it starts.
    pub offset: u64,
}

/// Part of the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigRange {
    /// First byte.
    pub offset: u32,
    /// Count of bytes, at most [`CONFIG_BYTES_MAX`].
    pub bytes: u32,
}

/// A supported message.
#[derive(Debug)]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemoryTable(Vec<(RegionDescription, OwnedFd)>),
    SetRingSize(RingState),
    SetRingAddresses(u32, RingAddresses),
    SetRingBase(RingState),
    GetRingBase(u32),
    SetRingKick(u8, Option<OwnedFd>),
    SetRingCall(u8, Option<OwnedFd>),
    SetRingError(u8, Option<OwnedFd>),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueCount,
    EnableRing(RingState),
    SetBackendChannel(OwnedFd),
    GetConfig(ConfigRange),
    SetConfig(ConfigRange, Vec<u8>),
    ResetDevice,
    GetMemorySlots,
    AddRegion(RegionDescription, OwnedFd),
    RemoveRegion(RegionDescription),
    SetLog(LogDescription, OwnedFd),
    SetLogEvent,
    GetInFlight(InFlightDescription),
    SetInFlight(InFlightDescription, OwnedFd),
    SetStatus(u64),
    GetStatus,
}

impl Message {
    /// Parses a message.
    pub fn parse(request: u32, body: &[u8], files: Vec<OwnedFd>) -> Result<Self, MessageError> {
        let mut body = Body { request, rest: body };
        let mut files = Files { request, files };
        let message = match request {
            request::GET_FEATURES => Message::GetFeatures,
            request::SET_FEATURES => Message::SetFeatures(body.u64()?),
            request::SET_OWNER => Message::SetOwner,
            request::RESET_OWNER => Message::ResetOwner,
            request::SET_MEM_TABLE => Message::SetMemoryTable(body.memory_table(&mut files)?),
            request::SET_VRING_NUM => Message::SetRingSize(body.ring_state()?),
            request::SET_VRING_ADDR => body.ring_addresses()?,
            request::SET_VRING_BASE => Message::SetRingBase(body.ring_state()?),
            request::GET_VRING_BASE => Message::GetRingBase(body.ring_state()?.index),
            request::SET_VRING_KICK => body.ring_file(&mut files, Message::SetRingKick)?,
            request::SET_VRING_CALL => body.ring_file(&mut files, Message::SetRingCall)?,
            request::SET_VRING_ERR => body.ring_file(&mut files, Message::SetRingError)?,
            request::GET_PROTOCOL_FEATURES => Message::GetProtocolFeatures,
            request::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(body.u64()?),
            request::GET_QUEUE_NUM => Message::GetQueueCount,
            request::SET_VRING_ENABLE => Message::EnableRing(body.ring_state()?),
            request::SET_BACKEND_REQ_FD => Message::SetBackendChannel(files.one()?),
            request::GET_CONFIG => Message::GetConfig(body.config()?.0),
            request::SET_CONFIG => {
                let (range, bytes) = body.config()?;
                Message::SetConfig(range, bytes)
            }
            request::RESET_DEVICE => Message::ResetDevice,
            request::GET_MAX_MEM_SLOTS => Message::GetMemorySlots,
            request::ADD_MEM_REG => Message::AddRegion(body.one_region()?, files.one()?),
            request::REM_MEM_REG => {
                // Some front ends send the file again, which has no meaning.
                files.files.truncate(0);
                Message::RemoveRegion(body.one_region()?)
            }
            request::SET_LOG_BASE => {
                let log = LogDescription { bytes: body.u64()?, offset: body.u64()? };
                Message::SetLog(log, files.one()?)
            }
            request::SET_LOG_FD => {
                // The file would be signalled on errors of the log, which end the session here.
                files.files.truncate(0);
                body.rest = &[];
                Message::SetLogEvent
            }
            request::GET_INFLIGHT_FD => Message::GetInFlight(body.in_flight()?),
            request::SET_INFLIGHT_FD => Message::SetInFlight(body.in_flight()?, files.one()?),
            request::SET_STATUS => Message::SetStatus(body.u64()?),
            request::GET_STATUS => Message::GetStatus,
            unknown => return Err(MessageError::Unknown(unknown)),
        };
        body.finish()?;
        files.finish()?;
        Ok(message)
    }
}

/// The rest of a body.
struct Body<'a> {
    request: u32,
    rest: &'a [u8],
}

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(MessageError::Body(self.request))?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take().map(u64::from_le_bytes)
    }

    fn ring_state(&mut self) -> Result<RingState, MessageError> {
        Ok(RingState { index: self.u32()?, number: self.u32()? })
    }

    fn ring_addresses(&mut self) -> Result<Message, MessageError> {
        let (index, _flags) = (self.u32()?, self.u32()?);
        let addresses = RingAddresses { descriptors: self.u64()?, used: self.u64()?, available: self.u64()? };
        let _log = self.u64()?;
        Ok(Message::SetRingAddresses(index, addresses))
    }

    /// A ring's index, and its file unless bit 8 is set.
    fn ring_file(
        &mut self,
        files: &mut Files,
        message: impl FnOnce(u8, Option<OwnedFd>) -> Message,
    ) -> Result<Message, MessageError> {
        const NO_FILE: u64 = 1 << 8;
        let word = self.u64()?;
        let file = if word & NO_FILE == 0 { Some(files.one()?) } else { None };
        Ok(message((word & 0xFF) as u8, file))
    }

    fn region(&mut self) -> Result<RegionDescription, MessageError> {
        Ok(RegionDescription {
            guest: GuestAddress(self.u64()?),
            bytes: self.u64()?,
            user: self.u64()?,
            file_offset: self.u64()?,
        })
    }

    fn one_region(&mut self) -> Result<RegionDescription, MessageError> {
        let _padding = self.u64()?;
        self.region()
    }

    fn memory_table(&mut self, files: &mut Files) -> Result<Vec<(RegionDescription, OwnedFd)>, MessageError> {
        let (count, _padding) = (self.u32()? as usize, self.u32()?);
        if count > FILES_MAX {
            return Err(MessageError::Body(self.request));
        }
        if files.files.len() != count {
            return Err(MessageError::Files { request: self.request, files: files.files.len() });
        }
        files.files.drain(..).map(|file| Ok((self.region()?, file))).collect()
    }

    /// Some front ends send the padding of a C structure after it.
    fn in_flight(&mut self) -> Result<InFlightDescription, MessageError> {
        const PADDING: usize = 4;
        let (bytes, offset) = (self.u64()?, self.u64()?);
        let (queues, queue_size) = (u16::from_le_bytes(self.take()?), u16::from_le_bytes(self.take()?));
        if self.rest.len() == PADDING {
            self.rest = &[];
        }
        Ok(InFlightDescription { bytes, offset, queues, queue_size })
    }

    fn config(&mut self) -> Result<(ConfigRange, Vec<u8>), MessageError> {
        let (offset, bytes, _flags) = (self.u32()?, self.u32()?, self.u32()?);
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= CONFIG_BYTES_MAX);
        if !is_inside || self.rest.len() != bytes as usize {
            return Err(MessageError::Body(self.request));
        }
        Ok((ConfigRange { offset, bytes }, std::mem::take(&mut self.rest).to_vec()))
    }

    fn finish(self) -> Result<(), MessageError> {
        if self.rest.is_empty() { Ok(()) } else { Err(MessageError::Body(self.request)) }
    }
}

/// The rest of a message's files.
struct Files {
    request: u32,
    files: Vec<OwnedFd>,
}

impl Files {
    /// The message's only file.
    fn one(&mut self) -> Result<OwnedFd, MessageError> {
        let files = self.files.len();
        let file = self.files.pop().filter(|_| files == 1);
        file.ok_or(MessageError::Files { request: self.request, files })
    }

    fn finish(self) -> Result<(), MessageError> {
        match self.files.len() {
            0 => Ok(()),
            files => Err(MessageError::Files { request: self.request, files }),
        }
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
