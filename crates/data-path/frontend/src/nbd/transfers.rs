//! Requests that the disk works on: cut into pieces on the way down, joined into one reply on the
//! way up.
//!
//! Pieces are cut at multiples of the piece size on the disk, so that no two of them share a block.
//! A read takes the memory for all of its pieces at once, or waits until it can: requests that hold
//! memory always end without needing more. A write takes memory for one piece at a time, as its
//! content arrives.

use std::sync::Arc;
use std::time::Instant;

use strongroom_io::{Channel, Disk, Done, InFlight, Io, IoError, Plain, Request, Slot};
use strongroom_memory::{Buffer, BufferPool, GuestSlice};
use strongroom_ring::points;
use strongroom_statistics::{Operation, Recorder};
use strongroom_types::Extent;

use super::handshake::Agreement;
use super::outbox::Outbox;
use super::protocol::{IOS_IN_FLIGHT_MAX, REQUESTS_IN_FLIGHT_MAX};
use super::reply::{BlockStatus, ErrorNumber, ReplyHeader, error_chunk};
use crate::failure::{kind_of, tell_completed};

/// The requests of one connection that are not answered yet.
pub struct Transfers {
    agreement: Agreement,
    disk: Arc<dyn Disk<Plain>>,
    channel: Box<dyn Channel<Plain>>,
    pool: BufferPool,
    recorder: Recorder,
    /// The time at which the present requests are taken or answered; the clock is read once for all
    /// of them.
    now: Option<Instant>,
    pending: InFlight<Pending>,
    /// Count of pieces, flushes and other operations in the disk.
    ios: usize,
    submitted: bool,
    done: Vec<Done<Plain>>,
    /// Emptied vectors of finished requests, so that requests of one piece allocate nothing.
    spare: Vec<Vec<Option<Buffer>>>,
}

struct Pending {
    cookie: u64,
    /// The operation that it is counted as, its start, and its bytes. A write counts from the
    /// arrival of its content: until then it waits for the client.
    counted: Option<Counted>,
    /// The content that the reply carries.
    reads: Option<Extent>,
    writes: bool,
    /// Whether pieces are written durably.
    durable: bool,
    /// Whether a flush follows once every piece is done.
    flush_after: bool,
    /// Count of its pieces in the disk.
    ios: usize,
    /// Whether more pieces may follow.
    open: bool,
    error: Option<IoError>,
    /// The content that was read, by piece.
    content: Vec<Option<Buffer>>,
}

#[derive(Clone, Copy)]
struct Counted {
    operation: Operation,
    taken: Instant,
    bytes: u64,
}

impl Transfers {
    /// Transfers on a channel opened with a depth of [`IOS_IN_FLIGHT_MAX`], with memory from
    /// `pool`.
    pub fn new(
        agreement: Agreement,
        disk: Arc<dyn Disk<Plain>>,
        channel: Box<dyn Channel<Plain>>,
        pool: BufferPool,
        recorder: Recorder,
    ) -> Self {
        Self {
            agreement,
            disk,
            channel,
            pool,
            recorder,
            now: None,
            pending: InFlight::with_depth(REQUESTS_IN_FLIGHT_MAX),
            ios: 0,
            submitted: false,
            done: Vec::with_capacity(IOS_IN_FLIGHT_MAX),
            spare: Vec::with_capacity(REQUESTS_IN_FLIGHT_MAX),
        }
    }

    /// Begins a new batch of requests: the clock is read with the first of them.
    pub fn take_now(&mut self) {
        self.now = None;
    }

    fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    /// Counts a request that was refused at once.
    pub fn refused(&mut self, operation: Option<Operation>) {
        if let Some(operation) = operation {
            self.recorder.refused(operation);
        }
    }

    fn count(&mut self, slot: Slot, operation: Operation, bytes: u64) {
        let taken = self.now();
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.counted = Some(Counted { operation, taken, bytes });
            self.recorder.taken(taken);
            points::request_taken(slot.tag(), operation as u32, bytes);
        }
    }

    /// The count of requests that are not answered.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// The count of pieces in the disk.
    pub fn ios(&self) -> usize {
        self.ios
    }

    /// Whether the disk takes one more piece.
    pub fn has_room(&self) -> bool {
        self.ios < IOS_IN_FLIGHT_MAX
    }

    /// Memory for a piece; `None` while there is none.
    pub fn memory(&self, extent: Extent) -> Option<Buffer> {
        self.pool.take(extent.length() as usize)
    }

    /// The pieces of an extent.
    pub fn pieces(&self, extent: Extent) -> impl Iterator<Item = Extent> + use<> {
        let unit = u64::from(self.agreement.geometry.transfer_bytes_max);
        let mut rest = extent;
        std::iter::from_fn(move || {
            let boundary = (rest.offset() / unit + 1).saturating_mul(unit);
            let piece = Extent::between(rest.offset(), rest.end().min(boundary));
            rest = Extent::between(piece.end(), rest.end());
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Starts a read. Returns `false` if it must wait for memory or for others to end.
    pub fn read(&mut self, cookie: u64, extent: Extent) -> bool {
        self.start_read(cookie, extent, Some(extent))
    }

    /// Starts reading ahead. Returns `false` as for a read. It reads no more than a client could
    /// read at once, and ignores the rest of the hint.
    pub fn cache(&mut self, cookie: u64, extent: Extent, outbox: &mut Outbox) -> bool {
        let geometry = &self.agreement.geometry;
        let most = u64::from(geometry.payload_bytes_max()).min(extent.length());
        let ahead = Extent::between(extent.offset(), extent.offset() + most)
            .narrowed_to(u64::from(geometry.block_bytes));
        if ahead.is_empty() {
            self.answer(cookie, outbox);
            return true;
        }
        self.start_read(cookie, ahead, None)
    }

    fn start_read(&mut self, cookie: u64, extent: Extent, reads: Option<Extent>) -> bool {
        let count = self.pieces(extent).count();
        if self.ios + count > IOS_IN_FLIGHT_MAX {
            return false;
        }
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.extend(self.pieces(extent).map_while(|piece| self.memory(piece).map(Some)));
        if memory.len() < count {
            memory.clear();
            self.spare.push(memory);
            return false;
        }
        let slot = self.insert(cookie);
        if reads.is_some() {
            self.count(slot, Operation::Read, extent.length());
        }
        for (index, extent) in self.pieces(extent).enumerate() {
            if let Some(buffer) = memory[index].take() {
                let into = GuestSlice::from_buffer(buffer);
                self.submit(slot, index, Request::Read { extent, into });
            }
        }
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.content = memory;
            pending.reads = reads;
        }
        true
    }

    /// Starts a write, whose pieces follow.
    pub fn write(&mut self, cookie: u64, extent: Extent, durable: bool) -> Slot {
        // One flush at the end is cheaper than force-unit-access for each of many pieces.
        let is_cut = self.pieces(extent).nth(1).is_some();
        let slot = self.insert(cookie);
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.writes = true;
            pending.open = true;
            pending.durable = durable && !is_cut;
            pending.flush_after = durable && is_cut;
        }
        slot
    }

    /// Adds a piece to a write. There must be room.
    pub fn write_piece(&mut self, slot: Slot, extent: Extent, content: Buffer) {
        let durable = self.pending.get_mut(slot).is_some_and(|write| write.durable);
        let from = GuestSlice::from_buffer(content);
        self.submit(slot, 0, Request::Write { extent, from, durable });
    }

    /// Notes that the write has all of its pieces.
    pub fn close_write(&mut self, slot: Slot, bytes: u64, outbox: &mut Outbox) {
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.open = false;
        }
        self.count(slot, Operation::Write, bytes);
        self.settle(slot, outbox);
    }

    /// Starts a flush.
    pub fn flush(&mut self, cookie: u64) {
        let slot = self.insert(cookie);
        self.count(slot, Operation::Flush, 0);
        self.submit(slot, 0, Request::Flush);
    }

    /// Starts a discard. The disk interface has no durable discard, so a flush follows.
    pub fn discard(&mut self, cookie: u64, extent: Extent, durable: bool) {
        let slot = self.insert(cookie);
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.writes = true;
            pending.flush_after = durable;
        }
        self.count(slot, Operation::Discard, extent.length());
        self.submit(slot, 0, Request::Discard { extent });
    }

    /// Starts a zeroing.
    pub fn write_zeroes(&mut self, cookie: u64, extent: Extent, may_unmap: bool, durable: bool) {
        let slot = self.insert(cookie);
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.writes = true;
        }
        self.count(slot, Operation::WriteZeroes, extent.length());
        let request = Request::WriteZeroes { extent, may_unmap, durable };
        self.submit(slot, 0, request);
    }

    /// Answers a request for block status, synchronously: it may wait only for the file system's
    /// metadata, and a client that sends it is copying the disk, not running on it.
    pub fn block_status(&mut self, cookie: u64, extent: Extent, one: bool, outbox: &mut Outbox) {
        self.kick();
        let mut status = BlockStatus::new(extent, one);
        let told = self.disk.allocation(extent, &mut |run, allocation| status.add(run, allocation));
        match told {
            Ok(()) => outbox.push_text(status.into_chunk(cookie)),
            Err(error) => self.fail(cookie, ErrorNumber::of(&error, false), &error.to_string(), outbox),
        }
    }

    /// Submits requests and takes completions. Returns `false` if nothing ended.
    pub fn advance(&mut self, outbox: &mut Outbox) -> bool {
        self.kick();
        let mut done = std::mem::take(&mut self.done);
        self.channel.poll(&mut done);
        let moved = !done.is_empty();
        if moved {
            self.now = Some(Instant::now());
        }
        for end in done.drain(..) {
            self.ended(end, outbox);
        }
        self.done = done;
        moved
    }

    fn kick(&mut self) {
        if std::mem::take(&mut self.submitted) {
            self.channel.kick();
        }
    }

    fn insert(&mut self, cookie: u64) -> Slot {
        self.pending.insert(Pending {
            cookie,
            counted: None,
            reads: None,
            writes: false,
            durable: false,
            flush_after: false,
            ios: 0,
            open: false,
            error: None,
            content: Vec::new(),
        })
    }

    fn submit(&mut self, slot: Slot, piece: usize, request: Request<Plain>) {
        if let Some(pending) = self.pending.get_mut(slot) {
            pending.ios += 1;
        }
        points::request_submitted(slot.tag());
        self.ios += 1;
        self.submitted = true;
        let tag = slot.tag() | (piece as u64) << u32::BITS;
        self.channel.submit(Io { tag, request });
    }

    fn ended(&mut self, done: Done<Plain>, outbox: &mut Outbox) {
        let Some(slot) = Slot::from_tag(done.tag & u64::from(u32::MAX)) else {
            return;
        };
        let Some(pending) = self.pending.get_mut(slot) else {
            return;
        };
        self.ios -= 1;
        pending.ios -= 1;
        if let Err(error) = done.result {
            pending.error.get_or_insert(error);
        }
        let piece = (done.tag >> u32::BITS) as usize;
        if pending.reads.is_some()
            && let Some(content) = pending.content.get_mut(piece)
        {
            *content = done.memory.and_then(GuestSlice::into_buffer);
        }
        self.settle(slot, outbox);
    }

    /// Answers a request if none of its work is left.
    fn settle(&mut self, slot: Slot, outbox: &mut Outbox) {
        let Some(pending) = self.pending.get_mut(slot) else {
            return;
        };
        if pending.ios > 0 || pending.open {
            return;
        }
        if std::mem::take(&mut pending.flush_after) && pending.error.is_none() {
            return self.submit(slot, 0, Request::Flush);
        }
        let Some(mut pending) = self.pending.take(slot) else {
            return;
        };
        if let Some(Counted { operation, taken, bytes }) = pending.counted {
            let now = self.now();
            let result = pending.error.map_or(Ok(bytes), |error| Err(kind_of(&error)));
            let latency_ns = self.recorder.answered(operation, result, taken, now);
            tell_completed(slot, operation, latency_ns, result.is_err());
        }
        match (pending.error, pending.reads) {
            (Some(error), _) => {
                let number = ErrorNumber::of(&error, pending.writes);
                self.fail(pending.cookie, number, &error.to_string(), outbox);
            }
            (None, Some(extent)) => {
                let header = if self.agreement.structured_replies {
                    ReplyHeader::data(pending.cookie, extent)
                } else {
                    ReplyHeader::simple(pending.cookie)
                };
                outbox.push_content(header, pending.content.drain(..).flatten());
            }
            (None, None) => self.answer(pending.cookie, outbox),
        }
        pending.content.clear();
        if pending.content.capacity() > 0 {
            self.spare.push(pending.content);
        }
    }

    /// Answers with success. A simple reply is shorter, and allowed for every reply without
    /// content.
    fn answer(&self, cookie: u64, outbox: &mut Outbox) {
        outbox.push_header(ReplyHeader::simple(cookie));
    }

    /// Answers with an error.
    pub fn fail(&self, cookie: u64, error: ErrorNumber, reason: &str, outbox: &mut Outbox) {
        if self.agreement.structured_replies {
            outbox.push_text(error_chunk(cookie, error, reason));
        } else {
            outbox.push_header(ReplyHeader::simple_error(cookie, error));
        }
    }
}
