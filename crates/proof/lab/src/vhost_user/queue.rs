//! Block requests of one queue (VIRTIO 1.2, 5.2.6), in chains of any shape.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use strongroom_memory::{GuestAddress, GuestMemory};
pub use strongroom_types::Extent;
use strongroom_types::SECTOR_BYTES;
use thiserror::Error;

use super::guest::{Run, gather, scatter};
use super::protocol::{DESCRIPTOR_BYTES, SERIAL_BYTES, block_request as kind};
use super::ring::{Descriptor, DriverRing, RingError};

/// Memory of a slot beside its content: the header's pieces, the status, an indirect table.
pub const SLOT_META_BYTES: u64 = 8192;
/// The distance between the header's pieces in it.
const HEADER_STEP: u64 = 40;
const STATUS_AT: u64 = 1001;
const TABLE_AT: u64 = 1024;
/// The most descriptors of a chain, limited by the room for its table.
pub const DESCRIPTORS_MAX: usize = ((SLOT_META_BYTES - TABLE_AT) / DESCRIPTOR_BYTES) as usize;

/// Bytes of a request's header.
const HEADER_BYTES: u32 = 16;

/// The value of a status byte before the device has written it.
pub const STATUS_UNWRITTEN: u8 = 0xEE;

/// A queue that cannot be driven.
#[derive(Debug, Error)]
pub enum QueueError {
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The ring has no room for a request.
    #[error("the ring has no room for the request")]
    Full,
    /// The eventfds for requests and answers.
    #[error("an event cannot be told: {0}")]
    Event(#[from] Errno),
}

impl From<strongroom_memory::GuestError> for QueueError {
    fn from(error: strongroom_memory::GuestError) -> Self {
        RingError::from(error).into()
    }
}

/// The operation of a request. Extents are in bytes, of whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Content from the disk into memory.
    Read(Extent),
    /// Content from memory to the disk.
    Write(Extent),
    /// Everything answered must survive a power cut.
    Flush,
    /// The serial number.
    Identify,
    /// The content of these is no longer needed.
    Discard(Vec<Extent>),
    /// These become zeroes, and may become holes.
    WriteZeroes(Vec<Extent>, MayUnmap),
}

/// Whether zeroes may become a hole.
pub type MayUnmap = bool;

impl Operation {
    /// The parts of the disk that it reads or changes.
    pub fn extents(&self) -> &[Extent] {
        match self {
            Operation::Read(extent) | Operation::Write(extent) => std::slice::from_ref(extent),
            Operation::Discard(extents) | Operation::WriteZeroes(extents, _) => extents,
            Operation::Flush | Operation::Identify => &[],
        }
    }

    /// Bytes that it transfers, without header and status.
    pub fn content_bytes(&self) -> u32 {
        match self {
            Operation::Read(extent) | Operation::Write(extent) => extent.length() as u32,
            Operation::Flush => 0,
            Operation::Identify => SERIAL_BYTES,
            Operation::Discard(extents) | Operation::WriteZeroes(extents, _) => 16 * extents.len() as u32,
        }
    }

    /// Whether the device writes its content.
    pub fn device_writes(&self) -> bool {
        matches!(self, Operation::Read(_) | Operation::Identify)
    }

    fn header(&self) -> [u8; HEADER_BYTES as usize] {
        let (kind, sector) = match self {
            Operation::Read(extent) => (kind::IN, extent.offset() / SECTOR_BYTES),
            Operation::Write(extent) => (kind::OUT, extent.offset() / SECTOR_BYTES),
            Operation::Flush => (kind::FLUSH, 0),
            Operation::Identify => (kind::GET_ID, 0),
            Operation::Discard(_) => (kind::DISCARD, 0),
            Operation::WriteZeroes(..) => (kind::WRITE_ZEROES, 0),
        };
        (u128::from(kind) | u128::from(sector) << 64).to_le_bytes()
    }

    /// The content that follows from the operation itself.
    fn segments(&self) -> Option<Vec<u8>> {
        let (extents, flags) = match self {
            Operation::Discard(extents) => (extents, 0_u128),
            Operation::WriteZeroes(extents, may_unmap) => (extents, u128::from(*may_unmap)),
            _ => return None,
        };
        let segment = |extent: &Extent| {
            let (sector, sectors) = (extent.offset() / SECTOR_BYTES, extent.length() / SECTOR_BYTES);
            (u128::from(sector) | u128::from(sectors) << 64 | flags << 96).to_le_bytes()
        };
        Some(extents.iter().flat_map(segment).collect())
    }
}

/// The layout of a request in memory; all layouts are equivalent to a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Where the header is cut, in bytes from its start, ascending; at most 15 cuts.
    pub header_cuts: Vec<u32>,
    /// Where the content is cut, in bytes from its start, ascending.
    pub content_cuts: Vec<u32>,
    /// Bytes between two pieces of the content.
    pub gap_bytes: u32,
    /// The descriptors are in a table of their own.
    pub indirect: bool,
    /// Whether the status is the last byte of the content's last descriptor, if the device writes
    /// that.
    pub status_joined: bool,
}

/// Memory for one request at a time.
#[derive(Debug)]
pub struct Slot {
    meta: GuestAddress,
    content: GuestAddress,
    runs: Vec<Run>,
    status: GuestAddress,
}

impl Slot {
    /// A slot with [`SLOT_META_BYTES`] at `meta`, and room for content and gaps from `content` on.
    pub fn new(meta: GuestAddress, content: GuestAddress) -> Self {
        Self { meta, content, runs: Vec::new(), status: meta }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The slot it was in.
    pub slot: usize,
    /// Its status byte.
    pub status: u8,
    /// The number of bytes that the device reports as written, including the status.
    pub written_bytes: u32,
}

/// A queue, with the eventfds for both directions.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<GuestMemory>,
    ring: DriverRing,
    slots: Vec<Slot>,
    /// By head: the slot in flight.
    owners: Vec<Option<usize>>,
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    kicks: u64,
}

impl Queue {
    /// A queue of requests in `slots`.
    pub fn new(memory: &Arc<GuestMemory>, ring: DriverRing, slots: Vec<Slot>) -> Result<Self, QueueError> {
        let owners = vec![None; usize::from(ring.size())];
        let (kick, call, error) = (event(0)?, event(0)?, event(0)?);
        Ok(Self { memory: Arc::clone(memory), ring, slots, owners, kick, call, error, kicks: 0 })
    }

    /// Its ring.
    pub fn ring(&self) -> &DriverRing {
        &self.ring
    }

    /// Its ring, for violations of the protocol.
    pub fn ring_mut(&mut self) -> &mut DriverRing {
        &mut self.ring
    }

    /// The eventfd that notifies the device of requests.
    pub fn kick_file(&self) -> &impl AsFd {
        &self.kick
    }

    /// The eventfd with which the device signals answers.
    pub fn call_file(&self) -> &impl AsFd {
        &self.call
    }

    /// The eventfd with which the server signals a broken ring.
    pub fn error_file(&self) -> &impl AsFd {
        &self.error
    }

    /// The number of kicks.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Makes new files, like QEMU for a restarted server: already kicked, because the dead server
    /// may have consumed kicks.
    pub fn renew_files(&mut self) -> Result<(), QueueError> {
        (self.kick, self.call, self.error) = (event(1)?, event(0)?, event(0)?);
        Ok(())
    }

    /// Whether the ring has room for one more request of this shape.
    pub fn has_room(&self, shape: &Shape) -> bool {
        // Each cut makes two pieces of one, and the status may have its own descriptor.
        let parts = shape.header_cuts.len() + shape.content_cuts.len() + 3;
        self.ring.free_descriptors() >= if shape.indirect { 1 } else { parts }
    }

    /// Makes a request available. The device sees it after [`Self::publish`]. `content` is a
    /// write's data; for a read it is the memory's initial content.
    pub fn submit(
        &mut self,
        slot: usize,
        operation: &Operation,
        shape: &Shape,
        content: &[u8],
    ) -> Result<(), QueueError> {
        let segments = operation.segments();
        let content = segments.as_deref().unwrap_or(content);
        let bytes = operation.content_bytes();
        let Slot { meta, content: start, .. } = self.slots[slot];
        let meta = |offset| GuestAddress(meta.0 + offset);
        let header = pieces(meta(0), HEADER_BYTES, &shape.header_cuts, HEADER_STEP as u32);
        let mut runs = pieces(start, bytes, &shape.content_cuts, shape.gap_bytes);
        let content_runs = runs.clone();
        let device_writes = operation.device_writes();
        let mut status = meta(STATUS_AT);
        if let Some((address, length)) = runs.last_mut()
            && shape.status_joined
            && device_writes
        {
            status = GuestAddress(address.0 + u64::from(*length));
            *length += 1;
        } else {
            runs.push((status, 1));
        }
        let mut parts: Vec<_> =
            header.iter().map(|run| Descriptor { run: *run, device_writes: false }).collect();
        parts.extend(runs.iter().map(|run| Descriptor { run: *run, device_writes }));
        if let Some(last) = parts.last_mut() {
            last.device_writes = true;
        }
        scatter(&self.memory, &header, &operation.header())?;
        scatter(&self.memory, &content_runs, &content[..bytes as usize])?;
        self.memory.write(status, &[STATUS_UNWRITTEN])?;
        let table = shape.indirect.then(|| meta(TABLE_AT));
        let head = self.ring.put(&parts, table)?.ok_or(QueueError::Full)?;
        self.owners[usize::from(head)] = Some(slot);
        (self.slots[slot].runs, self.slots[slot].status) = (content_runs, status);
        Ok(())
    }

    /// Publishes submitted requests to the device, and kicks it if requested.
    pub fn publish(&mut self) -> Result<(), QueueError> {
        if self.ring.publish()? { self.kick() } else { Ok(()) }
    }

    /// Kicks the device.
    pub fn kick(&mut self) -> Result<(), QueueError> {
        self.kicks += 1;
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        Ok(())
    }

    /// The next request that was answered.
    pub fn take_answered(&mut self) -> Result<Option<Answered>, QueueError> {
        let Some(used) = self.ring.take_used()? else { return Ok(None) };
        let owner = self.owners[usize::from(used.head)].take();
        let slot = owner.ok_or(RingError::NotInFlight(u32::from(used.head)))?;
        let [status] = self.memory.read(self.slots[slot].status)?;
        Ok(Some(Answered { slot, status, written_bytes: used.written_bytes }))
    }

    /// Copies out the data that a slot's request has read.
    pub fn content(&self, slot: usize, into: &mut [u8]) -> Result<(), QueueError> {
        gather(&self.memory, &self.slots[slot].runs, into)?;
        Ok(())
    }

    /// Requests a call for the next answer; returns `true` if there already is one.
    pub fn listen(&mut self) -> Result<bool, QueueError> {
        // Read before checking the ring, so that no call is lost.
        let _ = rustix::io::read(&self.call, &mut [0_u8; 8]);
        Ok(self.ring.listen()?)
    }
}

/// Cuts `bytes` bytes from `start` on into runs that are `gap_bytes` apart.
fn pieces(start: GuestAddress, bytes: u32, cuts: &[u32], gap_bytes: u32) -> Vec<Run> {
    let mut runs = Vec::with_capacity(cuts.len() + 1);
    let (mut address, mut done) = (start.0, 0);
    for cut in cuts.iter().copied().chain([bytes]) {
        let length = cut.min(bytes) - done;
        if length > 0 {
            runs.push((GuestAddress(address), length));
            address += u64::from(length) + u64::from(gap_bytes);
            done += length;
        }
    }
    runs
}

fn event(count: u32) -> Result<OwnedFd, Errno> {
    eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_cut_where_it_should_be() {
        let at = |address, length| (GuestAddress(address), length);
        assert_eq!(pieces(GuestAddress(10), 100, &[1, 1, 60], 7), [at(10, 1), at(18, 59), at(84, 40)]);
        assert_eq!(pieces(GuestAddress(10), 100, &[], 7), [at(10, 100)]);
        assert!(pieces(GuestAddress(10), 0, &[], 7).is_empty());
    }

    #[test]
    fn segments_of_a_discard_are_as_the_standard_has_them() {
        let extent = Extent::new(1024, 512).unwrap();
        let segments = Operation::WriteZeroes(vec![extent], true).segments().unwrap();
        assert_eq!(segments, [2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(Operation::Discard(vec![extent; 3]).content_bytes(), 48);
    }
}
