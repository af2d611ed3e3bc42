//! A queue whose requests are written once and sent repeatedly: a guest with little processor time,
//! so that the measurement is of the server.
//!
//! Each slot has a read and a write, each with its own table, like requests of Linux's driver; the
//! ring's descriptors point to them permanently. A request costs the sector, an entry of the
//! available ring, and later one of the used ring and the status. A write's content is random, with
//! the number of times it was sent.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use strongroom_memory::{GuestAddress, GuestMemory};
use thiserror::Error;

use super::guest::Run;
use super::protocol::{DESCRIPTOR_BYTES, STATUS_OK, block_request, descriptor_flag as flag};
use super::queue::{Queue, STATUS_UNWRITTEN};
use super::ring::{DriverRing, RingError};

/// Memory of a slot beside its content. Slots a page apart would all map to the same lines of the
/// processor's first-level cache.
const STEP_BYTES: u64 = 256;
const HEADER_BYTES: u32 = 16;
/// Within a slot: the header of the read, that of the write, the status, and a table for each.
const HEADERS_AT: [u64; 2] = [0, 16];
const STATUS_AT: u64 = 32;
const TABLES_AT: [u64; 2] = [64, 128];
const TABLE_DESCRIPTORS: u32 = 3;
/// Within a header.
const SECTOR_AT: u64 = 8;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads from the disk.
    Read,
    /// Writes to the disk.
    Write,
}

/// A queue that cannot be driven.
#[derive(Debug, Error)]
pub enum PreparedError {
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The eventfds for requests and answers.
    #[error("an event cannot be told: {0}")]
    Event(#[from] Errno),
    /// The ring is too small for the requests in flight.
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

/// How long the requests of a queue are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lengths {
    /// All are as long as the longest.
    #[default]
    Same,
    /// A quarter are as long as the longest, and the others a quarter, a 16th and a 64th of that,
    /// but no shorter than 4 KiB.
    Mixed,
}

impl Lengths {
    /// Bytes of the request in a slot.
    pub fn of_slot(self, slot: u16, longest_bytes: u32) -> u32 {
        match self {
            Self::Same => longest_bytes,
            Self::Mixed => (longest_bytes >> (2 * (slot % 4))).max(longest_bytes.min(4096)),
        }
    }
}

/// The layout of a queue's requests.
#[derive(Clone, Copy, Debug)]
pub struct PreparedShape {
    /// Count of requests.
    pub depth: u16,
    /// The address of everything except their content.
    pub metas: GuestAddress,
    /// The address of their content.
    pub contents: GuestAddress,
    /// The distance between two requests' content, in bytes.
    pub step_bytes: u64,
    /// Bytes transferred by the longest request.
    pub content_bytes: u32,
    /// How long the others are.
    pub lengths: Lengths,
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
    /// Writes all requests, and touches all memory. It uses the files of `queue`.
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
        // A thread that waits for a call sleeps in read.
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
        let content: Run = (self.content(slot), self.content_bytes(slot));
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

    /// Bytes that a slot's request transfers.
    pub fn content_bytes(&self, slot: u16) -> u32 {
        self.shape.lengths.of_slot(slot, self.shape.content_bytes)
    }

    fn content(&self, slot: u16) -> GuestAddress {
        GuestAddress(self.shape.contents.0 + u64::from(slot) * self.shape.step_bytes)
    }

    /// Makes a slot's request available; the slot must not be in flight. The device sees it after
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

    /// Publishes submitted requests to the device, and kicks it if requested.
    pub fn publish(&mut self) -> Result<(), PreparedError> {
        if self.ring.publish()? {
            self.kicks += 1;
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Takes all answered requests, and appends their slots to `slots`.
    pub fn take_answered(&mut self, slots: &mut Vec<u16>) -> Result<(), PreparedError> {
        for _ in 0..self.ring.used_ahead()? {
            let (head, _) = self.ring.take_entry()?;
            let slot = (head / 2) as u16;
            if head >= 2 * u32::from(self.shape.depth) {
                return Err(RingError::NotInFlight(head).into());
            }
            match self.memory.load_u8(self.meta(slot, STATUS_AT))? {
                STATUS_OK => slots.push(slot),
                // The device returned it without writing the status: it was not in flight, or is
                // not done.
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

    /// Requests a call for the next answer, and sleeps until that, or until another thread calls
    /// ([`Self::call_file`]), or until a moment. Does not sleep if there is an answer.
    pub fn sleep(&mut self, until: Option<Instant>) -> Result<(), PreparedError> {
        if !self.ring.listen()? {
            self.sleeps += 1;
            if let Some(until) = until {
                let left = until.saturating_duration_since(Instant::now());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::new(&self.call, PollFlags::IN)], Some(&left)) {
                    Ok(0) | Err(Errno::INTR) => return Ok(()),
                    Ok(_) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            match rustix::io::read(&self.call, &mut [0_u8; 8]) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The file that wakes the sleeping thread.
    pub fn call_file(&self) -> Result<OwnedFd, PreparedError> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.call, 0)?)
    }

    /// The number of kicks so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// The number of sleeps so far.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }
}

/// A request's descriptor in the ring.
fn head(slot: u16, kind: Kind) -> u16 {
    2 * slot + kind as u16
}
