//! The in-flight area: which requests were taken from the rings and are not answered yet, in memory
//! that outlives this process.
//!
//! The front end keeps the area's file. When this process is killed, its successor gets the file,
//! finds the requests in flight, and repeats them ("Inflight I/O tracking" of the vhost-user
//! specification; this is its layout for a split virtqueue). Every store is atomic and in the order
//! below, so that a kill between any two of them leaves a correct area:
//!
//! - A request is in flight from the store of its flag on, which comes after the store of its
//!   number.
//! - Answers are put into the used ring in batches. The heads of a batch are linked first, the
//!   newest first; then the used index is stored, which is what the driver sees; then the flags are
//!   cleared; then the area's copy of the used index follows. A successor that finds the two
//!   indices apart knows how long the last batch is and that the driver has seen it, and clears its
//!   flags before anything else: a write that the driver knows to be done is never done again,
//!   where it would destroy a newer one.
//!
//! After the queues there is a note of our own, with facts that a successor cannot learn from the
//! front end: the run of the device that it knows ([`super::activity`]), and whether the driver
//! turned the write cache off.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_memory::{GuestAddress, GuestError, GuestMemory, GuestRegion};
use thiserror::Error;

use super::protocol::{QUEUE_SIZE_MAX, QUEUES_MAX};

/// The layout's version; 0 is an area that was never used.
const VERSION: u16 = 1;

/// Offsets in a queue's part of the area.
const VERSION_AT: u64 = 8;
const DESCRIPTORS_AT: u64 = 10;
const LAST_BATCH_AT: u64 = 12;
const USED_AT: u64 = 14;
const ENTRIES_AT: u64 = 16;

/// Offsets in the entry of a descriptor.
const FLAG_AT: u64 = 0;
const NEXT_AT: u64 = 6;
const NUMBER_AT: u64 = 8;
const ENTRY_BYTES: u64 = 16;

/// Parts start on cache line boundaries, so that queues do not share a line.
const ALIGNMENT: u64 = 64;

/// After the last queue: a mark that identifies our note, then the note.
const NOTE_BYTES: u64 = 64;
const NOTE_MARK: u64 = u64::from_le_bytes(*b"strongr1");
const RUN_AT: u64 = 8;
const WRITE_THROUGH_AT: u64 = 16;

/// An area that cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum InFlightError {
    /// It cannot be mapped or accessed.
    #[error("the in-flight area cannot be used: {0}")]
    Memory(#[from] GuestError),
    /// There is no file for a new area.
    #[error("cannot make an in-flight area: {0}")]
    File(Errno),
    /// Its description is inconsistent, or exceeds the limits.
    #[error("an in-flight area of {bytes} bytes for {queues} queues of {queue_size} entries")]
    Description {
        /// Its length.
        bytes: u64,
        /// Count of queues.
        queues: u16,
        /// Entries of each.
        queue_size: u16,
    },
    /// Its file could be truncated while it is mapped here.
    #[error("the file of the in-flight area is shorter than it, or not sealed against shrinking")]
    NotSealed,
    /// It has another layout.
    #[error("an in-flight area of version {0}; version {VERSION} is known")]
    Version(u16),
    /// The area contradicts its ring.
    #[error("the in-flight area contradicts its ring: {0}")]
    Contradiction(&'static str),
}

/// The description of an area, exchanged with a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlightDescription {
    /// Its length.
    pub bytes: u64,
    /// Where it starts in its file.
    pub offset: u64,
    /// Count of queues.
    pub queues: u16,
    /// The most entries of each.
    pub queue_size: u16,
}

impl InFlightDescription {
    /// Bytes of one queue's part.
    fn queue_bytes(&self) -> u64 {
        (ENTRIES_AT + ENTRY_BYTES * u64::from(self.queue_size)).next_multiple_of(ALIGNMENT)
    }

    fn queues_bytes(&self) -> u64 {
        self.queue_bytes() * u64::from(self.queues)
    }

    fn check(&self) -> Result<(), InFlightError> {
        let Self { bytes, queues, queue_size, .. } = *self;
        let in_limits = (1..=QUEUES_MAX).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&queue_size);
        let largest = 2 * (self.queues_bytes() + NOTE_BYTES).next_multiple_of(1 << 16);
        let fits = in_limits && (self.queues_bytes()..=largest).contains(&bytes);
        if fits { Ok(()) } else { Err(InFlightError::Description { bytes, queues, queue_size }) }
    }
}

/// The note for a successor, in addition to the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The last run of the device that the front end had.
    pub run: u64,
    /// Whether the driver wants every write to be durable.
    pub write_through: bool,
}

/// A mapped area.
pub struct InFlightArea {
    memory: GuestMemory,
    file: OwnedFd,
    description: InFlightDescription,
}

impl InFlightArea {
    /// Makes a new area, in a file that is sealed against shrinking.
    pub fn create(queues: u16, queue_size: u16) -> Result<Self, InFlightError> {
        let mut description = InFlightDescription { bytes: 0, offset: 0, queues, queue_size };
        description.bytes = description.queues_bytes() + NOTE_BYTES;
        description.check()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("in-flight", flags).map_err(InFlightError::File)?;
        ftruncate(&file, description.bytes).map_err(InFlightError::File)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(InFlightError::File)?;
        Self::map(description, file)
    }

    /// Maps an area that a front end kept.
    pub fn map(description: InFlightDescription, file: OwnedFd) -> Result<Self, InFlightError> {
        description.check()?;
        let InFlightDescription { bytes, offset, .. } = description;
        let file_bytes = fstat(&file).map_err(InFlightError::File)?.st_size;
        let reaches =
            offset.checked_add(bytes).is_some_and(|end| end <= u64::try_from(file_bytes).unwrap_or(0));
        let sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !reaches || !sealed {
            return Err(InFlightError::NotSealed);
        }
        let region = GuestRegion::map(&file, offset, GuestAddress(0), bytes)?;
        Ok(Self { memory: GuestMemory::new(vec![region], None)?, file, description })
    }

    /// Its file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Its description.
    pub fn description(&self) -> InFlightDescription {
        self.description
    }

    /// A predecessor's note; `None` in an area that is new or was made by another server.
    pub fn note(&self) -> Result<Option<Note>, InFlightError> {
        let Some(place) = self.note_place() else { return Ok(None) };
        if self.memory.load_u64(place)? != NOTE_MARK {
            return Ok(None);
        }
        let run = self.memory.load_u64(GuestAddress(place.0 + RUN_AT))?;
        let write_through = self.memory.load_u8(GuestAddress(place.0 + WRITE_THROUGH_AT))? != 0;
        Ok(Some(Note { run, write_through }))
    }

    /// Writes the note for a successor.
    pub fn set_note(&self, note: Note) -> Result<(), InFlightError> {
        let Some(place) = self.note_place() else { return Ok(()) };
        self.memory.store_u64(GuestAddress(place.0 + RUN_AT), note.run)?;
        self.memory.store_u8(GuestAddress(place.0 + WRITE_THROUGH_AT), u8::from(note.write_through))?;
        Ok(self.memory.store_u64(place, NOTE_MARK)?)
    }

    /// The place of the note, which areas of other servers do not have.
    fn note_place(&self) -> Option<GuestAddress> {
        let end = self.description.queues_bytes();
        (end + NOTE_BYTES <= self.description.bytes).then_some(GuestAddress(end))
    }
}

/// The requests of one queue that are in flight.
pub struct InFlight {
    area: Arc<InFlightArea>,
    start: u64,
    ring_size: u16,
    /// The number of the next request taken.
    number: u64,
    /// The requests that were put into the used ring and are not published yet.
    batch: Vec<u16>,
}

/// A queue's part of an area, as it was found.
pub struct Recovered {
    /// The state to continue with.
    pub in_flight: InFlight,
    /// The requests in flight, in the order in which they were taken.
    pub heads: Vec<u16>,
    /// The first entry of the available ring that was not taken; `None` if the area was never used.
    pub next_available: Option<u16>,
}

impl InFlight {
    /// Recovers a queue's part of an area. `used_index` is the ring's index, as the driver sees it.
    pub fn recover(
        area: &Arc<InFlightArea>,
        queue: usize,
        ring_size: u16,
        used_index: u16,
    ) -> Result<Recovered, InFlightError> {
        let InFlightDescription { queues, queue_size, .. } = area.description;
        if queue >= usize::from(queues) || ring_size > queue_size {
            return Err(InFlightError::Contradiction("the ring is not in the area, or larger than it says"));
        }
        let start = queue as u64 * area.description.queue_bytes();
        let mut in_flight = Self {
            area: Arc::clone(area),
            start,
            ring_size,
            number: 0,
            batch: Vec::with_capacity(ring_size.into()),
        };
        match in_flight.load_u16(VERSION_AT)? {
            0 => {
                in_flight.store_u16(DESCRIPTORS_AT, queue_size)?;
                in_flight.store_u16(USED_AT, used_index)?;
                in_flight.store_u16(VERSION_AT, VERSION)?;
                return Ok(Recovered { in_flight, heads: Vec::new(), next_available: None });
            }
            VERSION => {}
            other => return Err(InFlightError::Version(other)),
        }
        in_flight.finish_last_batch(used_index)?;
        let mut found = Vec::new();
        for head in 0..ring_size {
            if in_flight.is_taken(head)? {
                found.push((in_flight.area.memory.load_u64(in_flight.entry(head, NUMBER_AT))?, head));
            }
        }
        found.sort_unstable();
        in_flight.number = found.last().map_or(0, |(number, _)| number.wrapping_add(1));
        let heads: Vec<u16> = found.into_iter().map(|(_, head)| head).collect();
        let next_available = Some(used_index.wrapping_add(heads.len() as u16));
        Ok(Recovered { in_flight, heads, next_available })
    }

    /// Clears the flags of requests whose answers the driver has seen.
    fn finish_last_batch(&self, used_index: u16) -> Result<(), InFlightError> {
        let count = used_index.wrapping_sub(self.load_u16(USED_AT)?);
        if count > self.ring_size {
            return Err(InFlightError::Contradiction(
                "the used index is further ahead than the ring is long",
            ));
        }
        let mut head = self.load_u16(LAST_BATCH_AT)?;
        for _ in 0..count {
            if head >= self.ring_size {
                return Err(InFlightError::Contradiction("the last batch leads out of the ring"));
            }
            self.set_taken(head, false)?;
            head = self.area.memory.load_u16(self.entry(head, NEXT_AT))?;
        }
        self.store_u16(USED_AT, used_index)
    }

    /// Notes that a request was taken from the available ring.
    pub fn take(&mut self, head: u16) -> Result<(), InFlightError> {
        if self.is_taken(head)? {
            return Err(InFlightError::Contradiction(
                "the driver made a request available that is in flight",
            ));
        }
        self.area.memory.store_u64(self.entry(head, NUMBER_AT), self.number)?;
        self.number = self.number.wrapping_add(1);
        self.set_taken(head, true)
    }

    /// Notes that its answer was put into the used ring.
    pub fn put_used(&mut self, head: u16) -> Result<(), InFlightError> {
        let last = self.load_u16(LAST_BATCH_AT)?;
        self.area.memory.store_u16(self.entry(head, NEXT_AT), last)?;
        self.store_u16(LAST_BATCH_AT, head)?;
        self.batch.push(head);
        Ok(())
    }

    /// Publishes all answers up to `used_index` to the driver with `show`, and only then clears
    /// their requests: in the other order, a kill in between would lose a request that the driver
    /// still waits for. If `show` fails, the requests stay in flight.
    pub fn publish<E: From<InFlightError>>(
        &mut self,
        used_index: u16,
        show: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        show()?;
        Ok(self.forget_batch(used_index)?)
    }

    fn forget_batch(&mut self, used_index: u16) -> Result<(), InFlightError> {
        for head in &self.batch {
            self.set_taken(*head, false)?;
        }
        self.batch.clear();
        self.store_u16(USED_AT, used_index)
    }

    fn is_taken(&self, head: u16) -> Result<bool, InFlightError> {
        Ok(self.area.memory.load_u8(self.entry(head, FLAG_AT))? != 0)
    }

    fn set_taken(&self, head: u16, taken: bool) -> Result<(), InFlightError> {
        Ok(self.area.memory.store_u8(self.entry(head, FLAG_AT), u8::from(taken))?)
    }

    /// A field of a head's entry; heads are less than the ring's size.
    fn entry(&self, head: u16, field: u64) -> GuestAddress {
        GuestAddress(self.start + ENTRIES_AT + ENTRY_BYTES * u64::from(head) + field)
    }

    fn load_u16(&self, field: u64) -> Result<u16, InFlightError> {
        Ok(self.area.memory.load_u16(GuestAddress(self.start + field))?)
    }

    fn store_u16(&self, field: u64, value: u16) -> Result<(), InFlightError> {
        Ok(self.area.memory.store_u16(GuestAddress(self.start + field), value)?)
    }
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
