//! One queue's requests on their way through the stage: lock, then buffers, then below, once or
//! twice.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use strongroom_io::{
    Channel, Done, InFlight, Io, IoError, Limits, Lock, LockMode, LockQueue, LockTicket, Plain, Request,
    Slot, Thread,
};
use strongroom_memory::{Buffer, CHUNK_BYTES, GuestSlice, ReservedPool};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::Shared;
use super::span::Span;
use crate::ENOMEM;

const BLOCK: usize = BLOCK_BYTES as usize;

/// The most that one request takes: a widened transfer, which fits a chunk, and two blocks for its
/// edges.
const RESERVE_BYTES: usize = 2 * CHUNK_BYTES;

/// The most parts that one request has below at a time: head, middle and tail of a zeroing.
const PARTS_MAX: usize = 3;

pub struct BlocksizeChannel {
    shared: Arc<Shared>,
    /// What the disk offers; its size is read anew, since it may have grown.
    limits: Limits,
    below: Box<dyn Channel<Plain>>,
    pool: ReservedPool,
    locks: LockQueue,
    active: InFlight<Active>,
    /// Those that have their lock and wait for buffers, first come, first served.
    waiting: VecDeque<Slot>,
    /// Count of requests that hold buffers.
    buffered: usize,
    /// Whether something was submitted below since the last kick.
    unkicked: bool,
    granted: Vec<(LockTicket, Lock)>,
    returned: Vec<Done<Plain>>,
    ended: Vec<Done<Plain>>,
}

struct Active {
    tag: u64,
    lock: Option<Lock>,
    work: Work,
    /// Count of parts that are below.
    parts: usize,
    /// The first error of a part.
    error: Option<IoError>,
}

enum Work {
    /// Waits for its lock, or has it and waits for buffers.
    Waiting(Request<Plain>),
    /// Went down as it is; its memory comes back with it.
    Passed,
    /// The widened extent is being read.
    Reading { extent: Extent, into: GuestSlice },
    /// The blocks that are covered in part are being read.
    ReadingEdges { request: Request<Plain>, buffers: Buffers },
    /// What is to be stored is being stored.
    Storing { from: Option<GuestSlice> },
}

/// What a request that is not on block boundaries works in.
#[derive(Default)]
struct Buffers {
    head: Option<Buffer>,
    whole: Option<Buffer>,
    tail: Option<Buffer>,
}

/// Which part of a request something below is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole = 0,
    Head = 1,
    Tail = 2,
}

impl Part {
    /// The tag for below: the slot, and the part above it.
    fn tag(self, slot: Slot) -> u64 {
        (self as u64) << 32 | slot.tag()
    }

    fn from_tag(tag: u64) -> Option<(Slot, Self)> {
        let part = match tag >> 32 {
            0 => Part::Whole,
            1 => Part::Head,
            2 => Part::Tail,
            _ => return None,
        };
        Slot::from_tag(tag & u64::from(u32::MAX)).map(|slot| (slot, part))
    }
}

impl BlocksizeChannel {
    pub fn open(shared: Arc<Shared>, limits: Limits, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        Ok(Self {
            below: shared.below.open(thread, depth.saturating_mul(PARTS_MAX))?,
            pool: ReservedPool::new(&thread.pool, RESERVE_BYTES),
            locks: shared.locks.queue(thread.reactor.waker()),
            active: InFlight::with_depth(depth),
            waiting: VecDeque::with_capacity(depth),
            buffered: 0,
            unkicked: false,
            granted: Vec::new(),
            returned: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            shared,
            limits,
        })
    }

    /// The request has its lock (a flush needs none): sends it down, or lets it wait for buffers.
    fn begin(&mut self, slot: Slot, lock: Option<Lock>) {
        let Some(active) = self.active.get_mut(slot) else {
            debug_assert!(false, "a lock was granted to a request that is not there");
            return;
        };
        active.lock = lock;
        match mem::replace(&mut active.work, Work::Passed) {
            Work::Waiting(request) if request.extent().is_aligned_to(BLOCK_BYTES) => {
                active.parts = 1;
                self.below.submit(Io { tag: Part::Whole.tag(slot), request });
                self.unkicked = true;
            }
            work => {
                active.work = work;
                self.waiting.push_back(slot);
                if self.waiting.len() == 1 {
                    self.serve_waiting();
                }
            }
        }
    }

    /// Lets those go on that wait for buffers, in order, as far as there are any.
    fn serve_waiting(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            if !self.begin_unaligned(slot) {
                if self.buffered > 0 {
                    return;
                }
                // Even the untouched reserve could not be had: the system has no memory left.
                self.end(slot, Err(IoError::from_errno(ENOMEM)), None);
            }
            self.waiting.pop_front();
        }
    }

    /// Takes all buffers that the request will need and sends its reads below; `false` if there are
    /// not enough.
    fn begin_unaligned(&mut self, slot: Slot) -> bool {
        let Some(Active { work: work @ Work::Waiting(_), parts, .. }) = self.active.get_mut(slot) else {
            return true;
        };
        let Work::Waiting(request) = work else { return true };
        let span = Span::of(request.extent());
        let Some(mut buffers) = Buffers::take(&self.pool, request, &span) else { return false };
        self.buffered += 1;
        let mut read = |part: Part, extent: Extent, buffer: Option<Buffer>| {
            let Some(buffer) = buffer else { return };
            let request = Request::Read { extent, into: GuestSlice::from_buffer(buffer) };
            self.below.submit(Io { tag: part.tag(slot), request });
            *parts += 1;
        };
        *work = match mem::replace(work, Work::Passed) {
            Work::Waiting(Request::Read { extent, into }) => {
                read(Part::Whole, span.widened, buffers.whole.take());
                Work::Reading { extent, into }
            }
            Work::Waiting(request) => {
                read(Part::Head, span.head.unwrap_or_default(), buffers.head.take());
                read(Part::Tail, span.tail.unwrap_or_default(), buffers.tail.take());
                Work::ReadingEdges { request, buffers }
            }
            other => other,
        };
        self.unkicked = true;
        true
    }

    /// A part has come back. The request goes on once all of them have.
    fn on_returned(&mut self, done: Done<Plain>) {
        let slot = Part::from_tag(done.tag);
        let Some((slot, part, active)) =
            slot.and_then(|(slot, part)| Some((slot, part, self.active.get_mut(slot)?)))
        else {
            debug_assert!(false, "the disk below returned what was not submitted");
            return;
        };
        active.parts -= 1;
        if let Err(error) = done.result {
            active.error.get_or_insert(error);
        }
        let mut memory = done.memory;
        let is_read = matches!(active.work, Work::Reading { .. } | Work::ReadingEdges { .. });
        if is_read && memory.is_none() {
            // A transfer brings its memory back. Should one ever not, what was read is lost, and
            // nothing is done with it.
            active.error.get_or_insert(IoError::Short { done_bytes: 0, wanted_bytes: BLOCK_BYTES });
        }
        if let Work::ReadingEdges { buffers, .. } = &mut active.work {
            let buffer = memory.take().and_then(GuestSlice::into_buffer);
            match part {
                Part::Head => buffers.head = buffer,
                Part::Tail => buffers.tail = buffer,
                Part::Whole => debug_assert!(false, "only edges are read before a write"),
            }
        }
        if active.parts > 0 {
            return;
        }
        let result = active.error.map_or(Ok(()), Err);
        match mem::replace(&mut active.work, Work::Passed) {
            Work::Waiting(_) => debug_assert!(false, "a request that waits has no part below"),
            Work::Passed => self.end(slot, result, memory),
            Work::Reading { extent, mut into } => {
                if let (Ok(()), Some(buffer)) = (result, memory.and_then(GuestSlice::into_buffer)) {
                    let skip = (extent.offset() % BLOCK_BYTES) as usize;
                    into.copy_from(0, &buffer.bytes()[skip..skip + extent.length() as usize]);
                }
                self.end_buffered(slot, result, Some(into));
            }
            Work::ReadingEdges { request, .. } if result.is_err() => {
                self.end_buffered(slot, result, request.into_memory());
            }
            Work::ReadingEdges { request, buffers } => self.store(slot, request, buffers),
            Work::Storing { from } => self.end_buffered(slot, result, from),
        }
    }

    /// The edges have been read: stores them with their covered part changed, and what lies
    /// between.
    fn store(&mut self, slot: Slot, request: Request<Plain>, mut buffers: Buffers) {
        let Some(active) = self.active.get_mut(slot) else { return };
        let span = Span::of(request.extent());
        let mut submit = |part: Part, request: Request<Plain>| {
            self.below.submit(Io { tag: part.tag(slot), request });
            active.parts += 1;
        };
        active.work = match request {
            Request::Write { extent, from, durable } => {
                if let Some(buffer) = buffers.assemble(&span, extent, &from) {
                    let from = GuestSlice::from_buffer(buffer);
                    submit(Part::Whole, Request::Write { extent: span.widened, from, durable });
                }
                Work::Storing { from: Some(from) }
            }
            Request::WriteZeroes { extent, may_unmap, durable } => {
                for (part, block, buffer) in [
                    (Part::Head, span.head, buffers.head.take()),
                    (Part::Tail, span.tail, buffers.tail.take()),
                ] {
                    let (Some(block), Some(mut buffer)) = (block, buffer) else { continue };
                    buffer.bytes_mut()[within(block, extent)].fill(0);
                    let from = GuestSlice::from_buffer(buffer);
                    submit(part, Request::Write { extent: block, from, durable });
                }
                if !span.middle.is_empty() {
                    let extent = span.middle;
                    submit(Part::Whole, Request::WriteZeroes { extent, may_unmap, durable });
                }
                Work::Storing { from: None }
            }
            Request::Read { into, .. } => Work::Storing { from: Some(into) },
            Request::Flush | Request::Discard { .. } => Work::Storing { from: None },
        };
        self.unkicked = true;
    }

    fn end_buffered(&mut self, slot: Slot, result: Result<(), IoError>, memory: Option<GuestSlice>) {
        self.buffered -= 1;
        self.end(slot, result, memory);
    }

    fn end(&mut self, slot: Slot, result: Result<(), IoError>, memory: Option<GuestSlice>) {
        let Some(active) = self.active.take(slot) else { return };
        if let Some(lock) = active.lock {
            self.locks.release(lock);
        }
        let memory = match active.work {
            Work::Waiting(request) => request.into_memory(),
            _ => memory,
        };
        self.ended.push(Done { tag: active.tag, result, memory });
    }
}

impl Channel<Plain> for BlocksizeChannel {
    fn submit(&mut self, mut io: Io<Plain>) {
        let limits = Limits { size_bytes: self.shared.size_bytes(), ..self.limits };
        if let Err(error) = limits.check(&io.request) {
            return self.ended.push(io.end(Err(error)));
        }
        let extent = io.request.extent();
        let widened = extent.widened_to(BLOCK_BYTES);
        let lock = match &mut io.request {
            Request::Flush => None,
            Request::Discard { extent } => {
                *extent = extent.narrowed_to(BLOCK_BYTES);
                if extent.is_empty() {
                    return self.ended.push(io.end(Ok(())));
                }
                Some((*extent, LockMode::Exclusive))
            }
            Request::WriteZeroes { .. } if extent.is_empty() => {
                return self.ended.push(io.end(Ok(())));
            }
            Request::WriteZeroes { .. } => Some((widened, LockMode::Exclusive)),
            Request::Write { .. } if widened != extent => Some((widened, LockMode::Exclusive)),
            Request::Read { .. } | Request::Write { .. } => Some((widened, LockMode::Shared)),
        };
        let work = Work::Waiting(io.request);
        let slot = self.active.insert(Active { tag: io.tag, lock: None, work, parts: 0, error: None });
        match lock {
            None => self.begin(slot, None),
            Some((extent, mode)) => {
                if let Some(lock) = self.locks.acquire(extent, mode, LockTicket(slot.tag())) {
                    self.begin(slot, Some(lock));
                }
            }
        }
    }

    fn kick(&mut self) {
        self.unkicked = false;
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        self.below.poll(&mut self.returned);
        loop {
            self.locks.granted(&mut self.granted);
            if self.returned.is_empty() && self.granted.is_empty() {
                break;
            }
            let mut returned = mem::take(&mut self.returned);
            returned.drain(..).for_each(|done| self.on_returned(done));
            self.returned = returned;
            // Those that wait for buffers came before those whose lock is granted only now.
            self.serve_waiting();
            let mut granted = mem::take(&mut self.granted);
            for (ticket, lock) in granted.drain(..) {
                if let Some(slot) = Slot::from_tag(ticket.0) {
                    self.begin(slot, Some(lock));
                }
            }
            self.granted = granted;
            if self.unkicked {
                self.kick();
                self.below.poll(&mut self.returned);
            }
        }
        done.append(&mut self.ended);
    }
}

impl Buffers {
    /// What the request needs: a widened copy of a read or write, a block for each edge of a write
    /// or zeroing. A write within one block is assembled in the block that was read.
    fn take(pool: &ReservedPool, request: &Request<Plain>, span: &Span) -> Option<Self> {
        let is_read = matches!(request, Request::Read { .. });
        let has_whole = is_read || matches!(request, Request::Write { .. }) && !span.is_one_block();
        pool.take_all(|pool| {
            let take = |wanted: bool, length: usize| match wanted {
                true => pool.take(length).map(Some),
                false => Some(None),
            };
            Some(Self {
                head: take(!is_read && span.head.is_some(), BLOCK)?,
                whole: take(has_whole, span.widened.length() as usize)?,
                tail: take(!is_read && span.tail.is_some(), BLOCK)?,
            })
        })
    }

    /// The widened content of a write. Each byte of the guest's is read once.
    fn assemble(&mut self, span: &Span, extent: Extent, from: &GuestSlice) -> Option<Buffer> {
        let (head, tail) = (self.head.take(), self.tail.take());
        let mut whole = match self.whole.take() {
            Some(mut whole) => {
                if let Some(head) = &head {
                    whole.bytes_mut()[..BLOCK].copy_from_slice(head.bytes());
                }
                if let Some(tail) = &tail {
                    let start = whole.len() - BLOCK;
                    whole.bytes_mut()[start..].copy_from_slice(tail.bytes());
                }
                whole
            }
            None => head.or(tail)?,
        };
        from.copy_to(0, &mut whole.bytes_mut()[within(span.widened, extent)]);
        Some(whole)
    }
}

/// The part of `blocks` that `extent` covers, counted from the start of `blocks`.
fn within(blocks: Extent, extent: Extent) -> std::ops::Range<usize> {
    let covered = blocks.intersection(extent);
    let start = (covered.offset() - blocks.offset()) as usize;
    start..start + covered.length() as usize
}
