//! A queue whose requests are written once and sent again and again: a guest that takes little of
//! the processor, so that what is measured is the server.
//!
//! Each slot has a read and a write, with tables of their own, as Linux's driver has its requests;
//! the ring's descriptors point to them for good. A request costs the sector, an entry of the
//! available ring, and later one of the used ring and the status. What a write transfers is random,
//! and says how often it was sent.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use strongroom_memory::{GuestAddress, GuestMemory};
use thiserror::Error;

use super::guest::Run;
use super::protocol::{DESCRIPTOR_BYTES, STATUS_OK, block_request, descriptor_flag as flag};
use super::queue::{Queue, STATUS_UNWRITTEN};
use super::ring::{DriverRing, RingError};

/// Memory of a slot beside its content. Slots that were a page apart would all fall on the same
/// lines of the processor's first cache.
const STEP_BYTES: u64 = 256;
const HEADER_BYTES: u32 = 16;
/// Within a slot: the header of the read, that of the write, the status, and a table for each.
const HEADERS_AT: [u64; 2] = [0, 16];
const STATUS_AT: u64 = 32;
const TABLES_AT: [u64; 2] = [64, 128];
const TABLE_DESCRIPTORS: u32 = 3;
/// Within a header.
const SECTOR_AT: u64 = 8;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Content from the disk.
    Read,
    /// Content to the disk.
    Write,
}

/// A queue that cannot be driven.
#[derive(Debug, Error)]
pub enum PreparedError {
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The files that tell of requests and answers.
    #[error("an event cannot be told: {0}")]
    Event(#[from] Errno),
    /// Nobody could tell two requests apart.
    #[error("a ring of {size} entries has no room for {depth} reads and writes")]
    Depth {
        /// Entries of the ring.
        size: u16,
        /// Requests in flight.
        depth: u16,
    },
    /// A request that failed.
    #[error("a request was answered with status {0}")]
    Status(u8),
}

impl From<strongroom_memory::GuestError> for PreparedError {
    fn from(error: strongroom_memory::GuestError) -> Self {
        RingError::from(error).into()
    }
}

/// Where a queue's requests lie.
#[derive(Clone, Copy, Debug)]
pub struct PreparedShape {
    /// Count of requests.
    pub depth: u16,
    /// Where all but their content is.
    pub metas: GuestAddress,
    /// Where their content is.
    pub contents: GuestAddress,
    /// From the content of one to that of the next, in bytes.
    pub step_bytes: u64,
    /// How much each transfers, in bytes.
    pub content_bytes: u32,
}

/// A queue of prepared requests.
#[derive(Debug)]
pub struct PreparedQueue {
    memory: Arc<GuestMemory>,
    ring: DriverRing,
    shape: PreparedShape,
    kick: OwnedFd,
    call: OwnedFd,
    kicks: u64,
    sleeps: u64,
    sent: u64,
}

impl PreparedQueue {
    /// Writes all requests, and touches all memory. `queue` is the one whose files are used.
    pub(super) fn new(
        memory: &Arc<GuestMemory>,
        ring: DriverRing,
        queue: &Queue,
        shape: PreparedShape,
    ) -> Result<Self, PreparedError> {
        let (size, depth) = (ring.size(), shape.depth);
        if 2 * depth > size {
            return Err(PreparedError::Depth { size, depth });
        }
        let kick = rustix::io::fcntl_dupfd_cloexec(queue.kick_file(), 0)?;
        let call = rustix::io::fcntl_dupfd_cloexec(queue.call_file(), 0)?;
        // Whoever waits for a call sleeps in read.
        fcntl_setfl(&call, fcntl_getfl(&call)? - OFlags::NONBLOCK)?;
        let memory = Arc::clone(memory);
        let queue = Self { memory, ring, shape, kick, call, kicks: 0, sleeps: 0, sent: 0 };
        let mut content = vec![0; shape.content_bytes as usize];
        let mut chance = StdRng::seed_from_u64(shape.contents.0);
        for slot in 0..depth {
            chance.fill_bytes(&mut content);
            queue.memory.write(queue.content(slot), &content)?;
            queue.prepare(slot)?;
        }
        Ok(queue)
    }

    fn prepare(&self, slot: u16) -> Result<(), PreparedError> {
        let content: Run = (self.content(slot), self.shape.content_bytes);
        for (kind, type_number) in [(Kind::Read, block_request::IN), (Kind::Write, block_request::OUT)] {
            let header = self.meta(slot, HEADERS_AT[kind as usize]);
            self.memory.write(header, &u128::from(type_number).to_le_bytes())?;
            let table = self.meta(slot, TABLES_AT[kind as usize]);
            let written = if kind == Kind::Read { flag::WRITE } else { 0 };
            let ring = &self.ring;
            ring.write_descriptor(table, 0, (header, HEADER_BYTES), flag::NEXT, 1)?;
            ring.write_descriptor(table, 1, content, flag::NEXT | written, 2)?;
            ring.write_descriptor(table, 2, (self.meta(slot, STATUS_AT), 1), flag::WRITE, 0)?;
            let run = (table, TABLE_DESCRIPTORS * DESCRIPTOR_BYTES as u32);
            ring.write_descriptor(ring.place().descriptors, head(slot, kind), run, flag::INDIRECT, 0)?;
        }
        Ok(())
    }

    fn meta(&self, slot: u16, offset: u64) -> GuestAddress {
        GuestAddress(self.shape.metas.0 + u64::from(slot) * STEP_BYTES + offset)
    }

    fn content(&self, slot: u16) -> GuestAddress {
        GuestAddress(self.shape.contents.0 + u64::from(slot) * self.shape.step_bytes)
    }

    /// Makes a slot's request available, which is not in flight. The device sees it after
    /// [`Self::publish`].
    pub fn submit(&mut self, slot: u16, kind: Kind, sector: u64) -> Result<(), PreparedError> {
        let header = self.meta(slot, HEADERS_AT[kind as usize]);
        self.memory.store_u64(GuestAddress(header.0 + SECTOR_AT), sector)?;
        self.memory.store_u8(self.meta(slot, STATUS_AT), STATUS_UNWRITTEN)?;
        if kind == Kind::Write {
            self.memory.store_u64(self.content(slot), self.sent)?;
        }
        self.sent += 1;
        Ok(self.ring.make_available(head(slot, kind))?)
    }

    /// Shows the device what was submitted, and kicks it if it wants that.
    pub fn publish(&mut self) -> Result<(), PreparedError> {
        if self.ring.publish()? {
            self.kicks += 1;
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Takes all that was answered by now: the slots, after what is in `slots` already.
    pub fn take_answered(&mut self, slots: &mut Vec<u16>) -> Result<(), PreparedError> {
        for _ in 0..self.ring.used_ahead()? {
            let (head, _) = self.ring.take_entry()?;
            let slot = (head / 2) as u16;
            if head >= 2 * u32::from(self.shape.depth) {
                return Err(RingError::NotInFlight(head).into());
            }
            match self.memory.load_u8(self.meta(slot, STATUS_AT))? {
                STATUS_OK => slots.push(slot),
                // The device says that it has used it, and has not written it: it was not in
                // flight, or is not done.
                STATUS_UNWRITTEN => return Err(RingError::NotInFlight(head).into()),
                status => return Err(PreparedError::Status(status)),
            }
        }
        Ok(())
    }

    /// Whether there are answers.
    pub fn has_answers(&self) -> Result<bool, PreparedError> {
        Ok(self.ring.used_ahead()? > 0)
    }

    /// Asks to be called for the next answer, and sleeps until that comes, or until somebody else
    /// calls ([`Self::call_file`]). Does not sleep if there is an answer.
    pub fn sleep(&mut self) -> Result<(), PreparedError> {
        if !self.ring.listen()? {
            self.sleeps += 1;
            match rustix::io::read(&self.call, &mut [0_u8; 8]) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// What wakes the one who sleeps.
    pub fn call_file(&self) -> Result<OwnedFd, PreparedError> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.call, 0)?)
    }

    /// How often the device was kicked so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// How often it was slept so far.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }
}

/// A request's descriptor in the ring.
fn head(slot: u16, kind: Kind) -> u16 {
    2 * slot + kind as u16
}
