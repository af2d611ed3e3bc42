//! Each message that a front end sends, and the channel on which a server sends its own.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Connection, ConnectionError, bytes_of, number};
use crate::vhost_user::inflight::InflightDescription;
use crate::vhost_user::protocol::{backend_request, header_flag as flag, protocol_feature, request};

/// A region of the guest's memory, as a message describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// Its guest address.
    pub guest: u64,
    /// Count of bytes.
    pub bytes: u64,
    /// Its address in the front end.
    pub user: u64,
    /// Its offset in its file.
    pub file_offset: u64,
}

impl RegionDescription {
    fn words(&self) -> [u64; 4] {
        [self.guest, self.bytes, self.user, self.file_offset]
    }
}

/// The front end's addresses of a ring's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub descriptors: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// The guest address for logging writes to the used ring; `None` for no logging.
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

impl Connection {
    /// The device's features.
    pub fn features(&mut self) -> Result<u64, ConnectionError> {
        self.ask_number(request::GET_FEATURES)
    }

    /// Agrees on features.
    pub fn set_features(&mut self, features: u64) -> Result<(), ConnectionError> {
        self.tell(request::SET_FEATURES, &[features], &[])
    }

    /// Declares this front end the device's owner.
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

    /// Removes a region from the guest's memory.
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

    /// Stops a ring; returns the first entry that was not taken.
    pub fn stop_ring(&mut self, ring: u32) -> Result<u16, ConnectionError> {
        let state = self.ask(request::GET_VRING_BASE, &bytes_of(&[u64::from(ring)]), &[])?;
        Ok((number(request::GET_VRING_BASE, &state)? >> 32) as u16)
    }

    /// Sets the addresses of a ring.
    pub fn set_ring_addresses(&mut self, ring: u32, at: RingAddresses) -> Result<(), ConnectionError> {
        let flags = u32::from(at.log.is_some());
        let words = [pair(ring, flags), at.descriptors, at.used, at.available, at.log.unwrap_or(0)];
        self.tell(request::SET_VRING_ADDR, &words, &[])
    }

    /// Sets a ring's file.
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

    /// Enables or disables a ring.
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

    /// Gives the server a channel for its own messages; returns our end.
    pub fn open_backend_channel(&mut self) -> Result<BackendChannel, ConnectionError> {
        let (ours, theirs) = UnixStream::pair()?;
        self.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(BackendChannel { socket: ours })
    }

    /// Lets the server make an area for requests in flight.
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

    /// Sets the bitmap in which the server marks the pages of guest memory that it wrote.
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

    /// Resets the device.
    pub fn reset_device(&mut self) -> Result<(), ConnectionError> {
        self.tell(request::RESET_DEVICE, &[], &[])
    }
}

/// The channel for a server's own messages.
#[derive(Debug)]
pub struct BackendChannel {
    socket: UnixStream,
}

impl BackendChannel {
    /// Waits until the server reports a change of the configuration space.
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
