//! Block requests of one queue (VIRTIO 1.2, 5.2.6): taken from chains, cut into pieces for the
//! disk, answered in any order.
//!
//! Data is transferred directly between the guest's memory and the disk. A request may be of any
//! length: its rest waits here, and at most [`IOS_IN_FLIGHT_MAX`] pieces are in the disk. The
//! vectors are reused, so that no request allocates once they have grown to the depth in use.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{Channel, Done, InFlight, Io, IoError, Plain, Request, Slot, TRANSFER_BYTES_MAX};
use strongroom_memory::{GuestAddress, Segment};
use strongroom_ring::points;
use strongroom_statistics::{ErrorKind, Operation, Recorder};
use strongroom_types::{Extent, SECTOR_BYTES};

use super::chain::{Chain, Run, take_first, take_last, total_bytes};
use super::device::{Device, QueueChannel};
use super::pending::{Outcome, Pending, Status, answer, first_piece};
use super::protocol::{
    DISCARD_SECTORS_MAX, DISCARD_SEGMENTS_MAX, IOS_IN_FLIGHT_MAX, WRITE_ZEROES_UNMAP, block_request as kind,
};
use super::split_ring::{RingError, SplitRing};
use crate::failure::tell_completed;

/// How requests that wait for room are treated when their queue ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// They are not answered. The successor of the queue finds them in the in-flight area, and
    /// repeats them.
    Left,
    /// They fail, because there is no area, or the area stays behind.
    Failed,
}

/// The requests of one queue that are not answered yet.
pub struct Transfers {
    device: Arc<Device>,
    /// The features that the driver agreed on.
    features: u64,
    channel: QueueChannel,
    recorder: Recorder,
    /// The time at which the present requests are taken or answered; the clock is read once for all
    /// of them.
    now: Instant,
    /// Set when the queue ends: how requests that find no room are treated.
    without_room: Option<Unfinished>,
    /// Pieces are cut at multiples of this on the disk, so that no two share a block.
    piece_bytes: u64,
    pending: InFlight<Pending>,
    /// Requests with pieces that are still to be submitted.
    waiting: VecDeque<Slot>,
    /// Count of pieces, flushes and other operations in the disk.
    ios: usize,
    submitted: bool,
    /// Bytes of reads and writes that were submitted and not yet sent to the disk.
    unsent_bytes: u64,
    done: Vec<Done<Plain>>,
    chain: Chain,
    spare_runs: Vec<Vec<Run>>,
    spare_segments: Vec<Vec<Segment>>,
}

impl Transfers {
    /// Transfers on a channel of the device.
    pub fn new(device: Arc<Device>, features: u64, channel: QueueChannel) -> Self {
        let limits = device.disk().limits();
        let piece_bytes = limits.transfer_bytes_max.clamp(limits.block_bytes.max(1), TRANSFER_BYTES_MAX);
        Self {
            recorder: device.claim_recorder(),
            now: Instant::now(),
            device,
            features,
            channel,
            without_room: None,
            piece_bytes: 1 << piece_bytes.ilog2(),
            pending: InFlight::with_depth(IOS_IN_FLIGHT_MAX),
            waiting: VecDeque::new(),
            ios: 0,
            submitted: false,
            unsent_bytes: 0,
            done: Vec::with_capacity(IOS_IN_FLIGHT_MAX),
            chain: Chain::default(),
            spare_runs: Vec::new(),
            spare_segments: Vec::new(),
        }
    }

    /// Whether another request can be taken.
    pub fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.ios + DISCARD_SEGMENTS_MAX <= IOS_IN_FLIGHT_MAX
    }

    /// Bytes of reads and writes that [`Self::advance`] will send to the disk.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Ends all waiting for room, and for limits, because the queue ends.
    pub fn give_up(&mut self, unfinished: Unfinished) {
        self.without_room = Some(unfinished);
        self.channel.hasten();
        self.channel.below_mut().give_up();
    }

    /// Whether no request is in the disk or waits for it.
    pub fn is_quiet(&self) -> bool {
        self.ios == 0 && self.waiting.is_empty()
    }

    /// Sets the time at which the following requests are taken.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Takes the request of a chain. There must be room.
    pub fn start(&mut self, ring: &mut SplitRing, head: u16, indirect: bool) -> Result<(), RingError> {
        let memory = Arc::clone(ring.memory());
        let mut chain = std::mem::take(&mut self.chain);
        chain.walk(&memory, ring.layout(), head, indirect)?;
        let place = take_last(&mut chain.writable).ok_or(RingError::NoStatus)?;
        let header: Option<[u8; 16]> = take_first(&memory, &mut chain.readable)?;
        let result = match header.map(u128::from_le_bytes) {
            None => answer(ring, head, place, 1, Status::Failed),
            Some(header) => {
                let (kind, sector) = (header as u32, (header >> 64) as u64);
                self.dispatch(ring, &mut chain, head, place, kind, sector)
            }
        };
        self.chain = chain;
        result.and_then(|()| self.submit_waiting(ring))
    }

    fn dispatch(
        &mut self,
        ring: &mut SplitRing,
        chain: &mut Chain,
        head: u16,
        place: GuestAddress,
        kind: u32,
        sector: u64,
    ) -> Result<(), RingError> {
        let read_only = self.device.disk().limits().read_only;
        let status = match kind {
            kind::IN => match self.transfer(head, place, &mut chain.writable, sector, Operation::Read) {
                true => return Ok(()),
                false => Status::Failed,
            },
            kind::FLUSH => {
                let slot = self.insert(head, place, Operation::Flush, Extent::default());
                self.submit(slot, Request::Flush);
                return Ok(());
            }
            kind::GET_ID => return self.identify(ring, chain, head, place),
            kind::OUT | kind::DISCARD | kind::WRITE_ZEROES if read_only => Status::Failed,
            kind::OUT => match self.transfer(head, place, &mut chain.readable, sector, Operation::Write) {
                true => return Ok(()),
                false => Status::Failed,
            },
            kind::DISCARD | kind::WRITE_ZEROES => {
                match self.clear(ring, chain, head, place, kind == kind::DISCARD)? {
                    None => return Ok(()),
                    Some(status) => status,
                }
            }
            _ => Status::Unsupported,
        };
        if let Some(operation) = operation_of(kind) {
            self.recorder.refused(operation);
        }
        answer(ring, head, place, 1, status)
    }

    /// Starts a read or a write. Returns `false` if the range is empty, unaligned or out of bounds.
    fn transfer(
        &mut self,
        head: u16,
        place: GuestAddress,
        runs: &mut Vec<Run>,
        sector: u64,
        operation: Operation,
    ) -> bool {
        let writes = operation == Operation::Write;
        let bytes = total_bytes(runs);
        let Some(extent) = sector.checked_mul(SECTOR_BYTES).and_then(|at| Extent::new(at, bytes).ok()) else {
            return false;
        };
        let inside = extent.end() <= self.device.disk().limits().size_bytes;
        if !inside || extent.is_empty() || !extent.is_aligned_to(SECTOR_BYTES) {
            return false;
        }
        let through = writes && self.device.writes_through(self.features);
        // One flush at the end is cheaper than force-unit-access for each of many pieces.
        let is_cut = first_piece(extent, self.piece_bytes) != extent;
        let slot = self.insert(head, place, operation, extent);
        let empty = self.spare_runs.pop().unwrap_or_default();
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.runs = std::mem::replace(runs, empty);
            pending.durable = through && !is_cut;
            pending.flush_after = through && is_cut;
            // A length that does not fit is cut: the field is defined as a lower bound.
            let content_bytes = if writes { 0 } else { bytes };
            pending.written_bytes = u32::try_from(content_bytes + 1).unwrap_or(u32::MAX);
        }
        self.waiting.push_back(slot);
        true
    }

    /// Starts the discards or zeroings of a request; returns the answer to one that is refused.
    fn clear(
        &mut self,
        ring: &mut SplitRing,
        chain: &mut Chain,
        head: u16,
        place: GuestAddress,
        discards: bool,
    ) -> Result<Option<Status>, RingError> {
        let mut extents = [(Extent::default(), 0); DISCARD_SEGMENTS_MAX];
        let size_bytes = self.device.disk().limits().size_bytes;
        let mut count = 0;
        while let Some(segment) = take_first::<16>(ring.memory(), &mut chain.readable)? {
            let word = u128::from_le_bytes(segment);
            let (sector, sectors, flags) = (word as u64, (word >> 64) as u32, (word >> 96) as u32);
            if flags & !WRITE_ZEROES_UNMAP != 0 || discards && flags != 0 {
                return Ok(Some(Status::Unsupported));
            }
            let start = sector.checked_mul(SECTOR_BYTES);
            let extent = start.and_then(|at| Extent::new(at, u64::from(sectors) * SECTOR_BYTES).ok());
            match extent {
                Some(extent)
                    if extent.end() <= size_bytes
                        && sectors <= DISCARD_SECTORS_MAX
                        && count < DISCARD_SEGMENTS_MAX =>
                {
                    extents[count] = (extent, flags);
                }
                _ => return Ok(Some(Status::Failed)),
            }
            count += 1;
        }
        if count == 0 || !chain.readable.is_empty() {
            return Ok(Some(Status::Failed));
        }
        let through = self.device.writes_through(self.features);
        let operation = if discards { Operation::Discard } else { Operation::WriteZeroes };
        let slot = self.insert(head, place, operation, Extent::default());
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.bytes = extents[..count].iter().map(|(extent, _)| extent.length()).sum();
            // The disk interface has no durable discard, so a flush follows.
            pending.flush_after = through && discards;
        }
        for (extent, flags) in &extents[..count] {
            self.submit(
                slot,
                if discards {
                    Request::Discard { extent: *extent }
                } else {
                    Request::WriteZeroes { extent: *extent, may_unmap: *flags != 0, durable: through }
                },
            );
        }
        Ok(None)
    }

    /// Answers with as much of the serial number as there is room for.
    fn identify(
        &self,
        ring: &mut SplitRing,
        chain: &Chain,
        head: u16,
        place: GuestAddress,
    ) -> Result<(), RingError> {
        let mut rest = &self.device.serial()[..];
        let mut written_bytes = 1;
        for (address, length) in &chain.writable {
            let (now, later) = rest.split_at(rest.len().min(*length as usize));
            ring.memory().write(*address, now)?;
            written_bytes += now.len() as u32;
            rest = later;
        }
        answer(ring, head, place, written_bytes, Status::Ok)
    }

    /// Submits requests and takes completions. Returns `false` if there was nothing to do.
    pub fn advance(&mut self, ring: &mut SplitRing) -> Result<bool, RingError> {
        self.submit_waiting(ring)?;
        if std::mem::take(&mut self.submitted) {
            self.unsent_bytes = 0;
            self.channel.kick();
        }
        let mut done = std::mem::take(&mut self.done);
        self.channel.poll(&mut done);
        let moved = !done.is_empty();
        if moved {
            self.now = Instant::now();
        }
        let mut result = Ok(());
        for end in done.drain(..) {
            // Take every completion, even after one whose answer could not be stored.
            result = result.and(self.ended(end, ring));
        }
        self.done = done;
        result.map(|()| moved)
    }

    /// Submits pieces of the requests that wait, as far as there is room.
    fn submit_waiting(&mut self, ring: &SplitRing) -> Result<(), RingError> {
        while self.ios < IOS_IN_FLIGHT_MAX
            && let Some(slot) = self.waiting.front().copied()
        {
            let segments = self.spare_segments.pop().unwrap_or_default();
            let request = match self.pending.get_mut(slot) {
                Some(pending) if !pending.rest.is_empty() => {
                    let request = pending.next_piece(ring, self.piece_bytes, segments);
                    if request.is_err() {
                        // Its memory existed when the chain was walked. If it no longer does, the
                        // queue ends.
                        self.waiting.pop_front();
                    }
                    request?
                }
                _ => {
                    self.spare_segments.push(segments);
                    self.waiting.pop_front();
                    continue;
                }
            };
            self.submit(slot, request);
        }
        // A request all of whose pieces are submitted only waits for their completions.
        while let Some(slot) = self.waiting.front()
            && self.pending.get_mut(*slot).is_none_or(|pending| pending.rest.is_empty())
        {
            self.waiting.pop_front();
        }
        Ok(())
    }

    fn insert(&mut self, head: u16, place: GuestAddress, operation: Operation, rest: Extent) -> Slot {
        self.recorder.taken(self.now);
        let slot = self.pending.insert(Pending::new(head, place, operation, rest, self.now));
        points::request_taken(slot.tag(), operation as u32, rest.length());
        slot
    }

    fn submit(&mut self, slot: Slot, request: Request<Plain>) {
        let mut tag = slot.tag();
        if let Some(pending) = self.pending.get_mut(slot) {
            // No two pieces of one request in flight have the same number.
            tag |= u64::from(pending.pieces) << u32::BITS;
            pending.pieces = pending.pieces.wrapping_add(1);
            pending.ios += 1;
        }
        points::request_submitted(slot.tag());
        self.ios += 1;
        self.submitted = true;
        if let Request::Read { extent, .. } | Request::Write { extent, .. } = &request {
            self.unsent_bytes += extent.length();
        }
        self.channel.submit(Io { tag, request });
    }

    fn ended(&mut self, done: Done<Plain>, ring: &mut SplitRing) -> Result<(), RingError> {
        self.ios -= 1;
        if let Some(memory) = done.memory {
            self.spare_segments.push(memory.into_segments());
        }
        let Some(slot) = Slot::from_tag(done.tag & u64::from(u32::MAX)) else { return Ok(()) };
        let Some(pending) = self.pending.get_mut(slot) else { return Ok(()) };
        pending.ios -= 1;
        match (done.result, self.without_room) {
            (Ok(()), _) => {}
            (Err(IoError::NoSpace), Some(Unfinished::Left)) => pending.leave(),
            (Err(error), _) => pending.fail(&error),
        }
        if pending.ios > 0 || !pending.rest.is_empty() {
            return Ok(());
        }
        if std::mem::take(&mut pending.flush_after) && pending.outcome == Outcome::Done {
            self.submit(slot, Request::Flush);
            return Ok(());
        }
        let Some(mut pending) = self.pending.take(slot) else { return Ok(()) };
        let runs = std::mem::take(&mut pending.runs);
        if runs.capacity() > 0 {
            self.spare_runs.push(runs);
        }
        let result = match pending.outcome {
            Outcome::Done => Ok(pending.bytes),
            Outcome::Failed => Err(pending.failure.unwrap_or(ErrorKind::Other)),
            Outcome::Left => {
                self.recorder.left();
                return Ok(());
            }
        };
        let latency_ns = self.recorder.answered(pending.operation, result, pending.taken, self.now);
        tell_completed(slot, pending.operation, latency_ns, result.is_err());
        match result {
            Ok(_) => answer(ring, pending.head, pending.place, pending.written_bytes, Status::Ok),
            Err(_) => answer(ring, pending.head, pending.place, 1, Status::Failed),
        }
    }
}

/// The operation that a kind of request is counted as, if it is.
fn operation_of(kind: u32) -> Option<Operation> {
    match kind {
        kind::IN => Some(Operation::Read),
        kind::OUT => Some(Operation::Write),
        kind::FLUSH => Some(Operation::Flush),
        kind::DISCARD => Some(Operation::Discard),
        kind::WRITE_ZEROES => Some(Operation::WriteZeroes),
        _ => None,
    }
}
