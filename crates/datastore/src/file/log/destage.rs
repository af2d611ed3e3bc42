//! Bringing first writes from the log to the layer.
//!
//! A cycle takes the oldest segments, and goes through these steps, each of which needs the one before:
//!
//! 1. what the log holds is made durable (`fdatasync`), because from now on a block may be torn in its place; beside it the
//!    segments are read, and transfers in place that began before end;
//! 2. space is taken ahead where blocks gather, then the blocks are written to the layer, in the order of their addresses, and what
//!    became "nothing here" is punched;
//! 3. the layer is made durable, with no other sync failed beside;
//! 4. a superblock with a tail beyond the segments is made durable;
//! 5. the blocks are overwritten in place from now on, and the segments are free.
//!
//! A block that is written anew meanwhile goes through the log again, and stays there.

use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use strongroom_io::{
    FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Reactor, Slot, Thread, Waker,
};
use strongroom_memory::{Buffer, BufferPool, CHUNK_BYTES};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::format::{BLOCK, SEGMENTS, Superblock};
use super::state::Planned;
use super::{Log, SEGMENTS_BUSY};
use crate::file::disk::Shared;
use crate::file::syncs::SyncTicket;

/// Blocks that a cycle holds in memory: a segment of the largest log.
const CYCLE_BLOCKS: u32 = 1024;
/// The segments of a cycle, rounded up to what a pool gives, and the writes under way.
const POOL_BYTES: usize = 4 * CHUNK_BYTES;
/// Read at once.
const PIECE_BLOCKS: u32 = 256;
/// Written at once.
const RUN_BLOCKS: usize = 64;
/// Writes to the layer under way: enough that a cycle is over before writers stand still (`docs/decisions/0008` has the
/// figures), and fewer than a thread's operations in flight.
const WRITES_MAX: usize = 48;
/// Once it is busy, it goes on until no more segments are in use than this.
const SEGMENTS_CALM: usize = SEGMENTS / 2;
/// A guest that has not written so long is not disturbed by a cycle.
const QUIET: Duration = Duration::from_millis(250);
/// After a failure, before the next attempt.
const RETRY: Duration = Duration::from_secs(1);

/// How destaging ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// When the log is empty: the layer is complete then.
    Empty,
    /// When what was begun is done.
    Now,
}

/// Empties the log of a layer while its channels fill it. It is run by a thread of its own, or beside channels: [`Self::poll`] does
/// what there is to do, and the reactor wakes the thread when there is more.
///
/// Dropped while it works, it leaves the log as it is, and no other one can be had until the volume is opened anew.
pub struct Destager {
    shared: Arc<Shared>,
    log: Arc<Log>,
    queue: Box<dyn FileQueue>,
    layer: FileToken,
    file: FileToken,
    pool: BufferPool,
    reactor: Rc<dyn Reactor>,
    waker: Arc<Waker>,
    sent: InFlight<Job>,
    file_done: Vec<FileDone>,
    cycle: Option<Cycle>,
    quiet: Duration,
    is_busy: bool,
    /// The count of records when it was last looked at, and when that changed.
    last_records: (u64, Instant),
    retry_at: Option<Instant>,
    ended: Option<Result<(), IoError>>,
}

enum Job {
    Sync(SyncTicket),
    /// The superblock, written durably.
    Superblock(SyncTicket, Superblock),
    Read(usize),
    /// Taking space ahead. Without it the writes take what they need.
    Ahead,
    Write,
}

struct Cycle {
    segments: Vec<usize>,
    planned: Vec<Planned>,
    /// What of the segments was read: segment, first block, content.
    pieces: Vec<(usize, u32, Option<Buffer>)>,
    step: Step,
    /// What to take space for first.
    ahead: Vec<Extent>,
    /// Planned blocks that were sent.
    next: usize,
    /// Its last sync is a success when those before this one have ended too. Later ones do not matter: a guest may sync without a pause.
    settles_before: SyncTicket,
    failure: Option<IoError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Preparing,
    Allocating,
    Writing,
    SyncingLayer,
    /// The superblock that says so is on its way.
    Trimming,
    /// The superblock that says that the log is empty.
    Closing,
}

impl Destager {
    pub(in crate::file) fn open(shared: Arc<Shared>, thread: &Thread) -> Result<Self, IoError> {
        let Some(log) = shared.log.clone() else { return Err(IoError::Closed) };
        let mut queue = shared.sync_order.queue(thread)?;
        let layer = queue.register(Arc::clone(&shared.layer) as _)?;
        let file = queue.register(Arc::clone(&log.file) as _)?;
        let waker = thread.reactor.waker();
        {
            let mut state = log.state();
            if state.destager.is_some() || state.stalled == Some(IoError::Closed) {
                return Err(IoError::Closed);
            }
            state.destager = Some(Arc::clone(&waker));
        }
        Ok(Self {
            shared,
            log,
            queue,
            layer,
            file,
            pool: BufferPool::new(POOL_BYTES).map_err(|_| IoError::NoSpace)?,
            reactor: Rc::clone(&thread.reactor),
            waker,
            sent: InFlight::with_depth(2 * WRITES_MAX),
            file_done: Vec::new(),
            cycle: None,
            quiet: QUIET,
            is_busy: false,
            last_records: (0, Instant::now()),
            retry_at: None,
            ended: None,
        })
    }

    /// How long the guest must not have written before what is in the log is brought to the layer though there is room.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = quiet;
    }

    /// Does what can be done now. Once it returns, whatever there will be to do wakes the thread's reactor.
    pub fn poll(&mut self) {
        loop {
            let mut file_done = std::mem::take(&mut self.file_done);
            self.queue.poll(&mut file_done);
            let mut moved = !file_done.is_empty();
            for done in file_done.drain(..) {
                self.finish(done);
            }
            self.file_done = file_done;
            moved |= self.advance();
            self.queue.kick();
            if !moved {
                return;
            }
        }
    }

    /// Whether it has ended, as [`FileDisk::end_destaging`](crate::file::FileDisk::end_destaging) asked; an error says that the log is not empty.
    pub fn ended(&self) -> Option<Result<(), IoError>> {
        self.ended
    }

    fn send(&mut self, file: FileToken, job: Job, operation: FileOperation) {
        let slot = self.sent.insert(job);
        self.queue.submit(FileIo { tag: slot.tag(), file, operation });
    }

    fn sync(&mut self, file: FileToken, ticket: SyncTicket) {
        self.send(file, Job::Sync(ticket), FileOperation::SyncData);
    }

    fn finish(&mut self, done: FileDone) {
        let Some(job) = Slot::from_tag(done.tag).and_then(|slot| self.sent.take(slot)) else { return };
        let Some(cycle) = &mut self.cycle else { return };
        let mut result = done.result;
        match job {
            Job::Sync(ticket) => {
                self.shared.syncs.end(ticket, result.is_err());
                cycle.settles_before = self.shared.syncs.next();
            }
            Job::Superblock(ticket, superblock) => {
                if result.is_ok() {
                    self.log.written(superblock);
                }
                result = self.shared.syncs.end_of_durable_write(ticket, result);
            }
            Job::Read(piece) => cycle.pieces[piece].2 = done.buffer,
            Job::Ahead => return,
            Job::Write => {}
        }
        cycle.failure = cycle.failure.or(result.err());
    }

    /// Goes on to what can be done next; whether there was anything.
    fn advance(&mut self) -> bool {
        let Some(Cycle { step, failure, .. }) = self.cycle else { return self.begin() };
        let is_idle = self.sent.is_empty();
        let can_stop = matches!(step, Step::Preparing | Step::Allocating | Step::Writing);
        if failure.is_some() || can_stop && self.log.state().ending == Some(End::Now) {
            return is_idle && self.abandon();
        }
        match step {
            Step::Preparing => {
                let ready = is_idle && self.log.epochs.is_over() && self.syncs_are_over();
                if ready && let Some(cycle) = &mut self.cycle {
                    let end_bytes = self.shared.limits().size_bytes;
                    cycle.ahead = self.log.state().space_ahead(&cycle.planned, end_bytes);
                    cycle.step = Step::Allocating;
                }
                ready
            }
            Step::Allocating => self.allocate_some(),
            Step::Writing => self.write_some(),
            Step::SyncingLayer => {
                let ready = is_idle && self.syncs_are_over();
                if ready {
                    self.trim();
                }
                ready
            }
            Step::Trimming => is_idle && self.trimmed(),
            Step::Closing => is_idle && self.closed(),
        }
    }

    /// Whether what was synced is durable: of two syncs beside each other one can hear of the other's failure.
    fn syncs_are_over(&mut self) -> bool {
        let syncs = &self.shared.syncs;
        let Some(cycle) = &mut self.cycle else { return false };
        if !syncs.have_ended_before(cycle.settles_before, &self.waker) {
            return false;
        }
        if syncs.have_failed() {
            cycle.failure = Some(IoError::FlushFailed);
            return false;
        }
        true
    }

    /// Begins a cycle, if it is time for one.
    fn begin(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let now = Instant::now();
        if self.shared.syncs.have_failed() {
            // The log keeps what it has until the volume is opened anew.
            let mut state = self.log.state();
            state.stalled = Some(IoError::FlushFailed);
            state.wake_waiting();
            drop(state);
            return self.end_if_asked(Err(IoError::FlushFailed));
        }
        let mut state = self.log.state();
        let ending = state.ending;
        if ending == Some(End::Now) && !state.is_empty() {
            drop(state);
            return self.end_if_asked(Ok(()));
        }
        if state.is_empty() {
            self.is_busy = false;
            state.is_watched = false;
            drop(state);
            // The memory of the last cycles goes back: a volume may have none for hours.
            if self.pool.resident_bytes() > 0
                && let Ok(pool) = BufferPool::new(POOL_BYTES)
            {
                self.pool = pool;
            }
            return ending.is_some() && self.close();
        }
        state.is_watched = true;
        if ending.is_none()
            && let Some(retry_at) = self.retry_at.filter(|at| *at > now)
        {
            self.reactor.wake_at(retry_at);
            return false;
        }
        self.is_busy = match state.segments_in_use() {
            busy if busy >= SEGMENTS_BUSY => true,
            calm if calm <= SEGMENTS_CALM => false,
            _ => self.is_busy,
        };
        if self.last_records.0 != state.records {
            self.last_records = (state.records, now);
        }
        let quiet_at = self.last_records.1.checked_add(self.quiet);
        let all = ending.is_some() || quiet_at.is_some_and(|at| at <= now);
        let plan = if all || self.is_busy { state.plan(CYCLE_BLOCKS, all) } else { None };
        let Some((segments, planned)) = plan else {
            // When it is quiet, or a record that is under way has arrived, it will be looked at again.
            let again_at = if all { now.checked_add(self.quiet) } else { quiet_at };
            if let Some(at) = again_at {
                self.reactor.wake_at(at);
            }
            return false;
        };
        let mut pieces = Vec::new();
        for segment in &segments {
            let end = state.used_blocks(*segment);
            for first in (0..end).step_by(PIECE_BLOCKS as usize) {
                let blocks = PIECE_BLOCKS.min(end - first);
                pieces.push((*segment, first, blocks, state.offset(*segment, first)));
            }
        }
        drop(state);
        let has_content = planned.iter().any(|planned| planned.live.at.is_some());
        let read = pieces.iter().map(|(segment, first, ..)| (*segment, *first, None)).collect();
        self.cycle = Some(Cycle {
            segments,
            planned,
            pieces: read,
            step: Step::Preparing,
            ahead: Vec::new(),
            next: 0,
            settles_before: self.shared.syncs.next(),
            failure: None,
        });
        self.log.epochs.turn(&self.waker);
        // Also where no mark says so: another's sync of what is planned may still be under way.
        let (ticket, _) = self.shared.syncs.begin_for([Some(&self.log.unsynced)]);
        self.sync(self.file, ticket);
        for (number, (_, _, blocks, offset)) in pieces.into_iter().enumerate().filter(|_| has_content) {
            match self.pool.take(blocks as usize * BLOCK) {
                Some(into) => self.send(self.file, Job::Read(number), FileOperation::Read { offset, into }),
                None => {
                    debug_assert!(false, "the pool has room for a cycle");
                    if let Some(cycle) = &mut self.cycle {
                        cycle.failure = Some(IoError::NoSpace);
                    }
                }
            }
        }
        true
    }

    /// Takes space ahead, and goes on to writing when that is done.
    fn allocate_some(&mut self) -> bool {
        let mut moved = false;
        while self.sent.len() < WRITES_MAX {
            let Some(cycle) = &mut self.cycle else { return moved };
            let Some(extent) = cycle.ahead.pop() else {
                let ready = self.sent.is_empty();
                if ready {
                    cycle.step = Step::Writing;
                }
                return moved | ready;
            };
            self.send(self.layer, Job::Ahead, FileOperation::Allocate { extent });
            moved = true;
        }
        moved
    }

    /// Sends writes to the layer, as many as may be under way.
    fn write_some(&mut self) -> bool {
        let mut moved = false;
        while self.sent.len() < WRITES_MAX {
            let Some(cycle) = &mut self.cycle else { return moved };
            let rest = &cycle.planned[cycle.next..];
            let Some(first) = rest.first() else {
                if self.sent.is_empty() {
                    cycle.pieces.clear();
                    cycle.step = Step::SyncingLayer;
                    let ticket = self.shared.syncs.begin();
                    self.sync(self.layer, ticket);
                    return true;
                }
                return moved;
            };
            let has_content = first.live.at.is_some();
            let follows = |(index, planned): &(usize, &Planned)| {
                planned.block == first.block + *index as u64 && planned.live.at.is_some() == has_content
            };
            let run: Vec<Planned> =
                rest.iter().enumerate().take_while(follows).map(|(_, planned)| *planned).collect();
            let run = &run[..if has_content { run.len().min(RUN_BLOCKS) } else { run.len() }];
            let start = first.block * BLOCK_BYTES;
            let operation = match has_content {
                false => FileOperation::Punch {
                    extent: Extent::between(start, start + run.len() as u64 * BLOCK_BYTES),
                },
                true => {
                    let Some(mut from) = self.pool.take(run.len() * BLOCK) else { return moved };
                    for (planned, into) in run.iter().zip(from.bytes_mut().chunks_mut(BLOCK)) {
                        match cycle.content_of(planned) {
                            Some(content) => into.copy_from_slice(content),
                            None => {
                                debug_assert!(false, "what was planned was read");
                                cycle.failure =
                                    Some(IoError::Short { done_bytes: 0, wanted_bytes: BLOCK_BYTES });
                                return true;
                            }
                        }
                    }
                    FileOperation::Write { offset: start, from, durable: false }
                }
            };
            cycle.next += run.len();
            self.send(self.layer, Job::Write, operation);
            moved = true;
        }
        moved
    }

    /// Sends the superblock that says that the segments are not needed.
    fn trim(&mut self) {
        let Some(cycle) = &mut self.cycle else { return };
        cycle.step = Step::Trimming;
        let tail = self.log.state().tail_after(cycle.segments.len());
        self.write_superblock(tail, None);
    }

    fn write_superblock(&mut self, tail: u64, next: Option<u64>) {
        let superblock = self.log.superblock_after(tail, next);
        let Some(mut from) = self.pool.take(BLOCK) else {
            debug_assert!(false, "the pool has room for a superblock");
            // The tail has not moved, then.
            if let Some(cycle) = &mut self.cycle {
                cycle.failure = Some(IoError::NoSpace);
            }
            return;
        };
        superblock.encode(from.bytes_mut());
        let ticket = self.shared.syncs.begin();
        let write = FileOperation::Write { offset: superblock.offset(), from, durable: true };
        self.send(self.file, Job::Superblock(ticket, superblock), write);
    }

    fn trimmed(&mut self) -> bool {
        let Some(Cycle { segments, planned, .. }) = self.cycle.take() else { return false };
        let mut state = self.log.state();
        state.trim(&segments, &planned);
        state.stalled = None;
        self.retry_at = None;
        self.log.done(state);
        true
    }

    /// Says that the log is empty, so that it need not be searched when it is opened.
    fn close(&mut self) -> bool {
        let next = {
            let mut state = self.log.state();
            // Nothing is appended from here on.
            state.is_closed = true;
            state.next_sequence()
        };
        let step = Step::Closing;
        let (segments, planned, pieces) = (Vec::new(), Vec::new(), Vec::new());
        let (ahead, settles_before) = (Vec::new(), self.shared.syncs.next());
        self.cycle =
            Some(Cycle { segments, planned, pieces, step, ahead, next: 0, settles_before, failure: None });
        self.write_superblock(next, Some(next));
        true
    }

    fn closed(&mut self) -> bool {
        self.cycle = None;
        self.ended = Some(Ok(()));
        true
    }

    /// Gives a cycle up; what it has written is written again.
    fn abandon(&mut self) -> bool {
        let Some(Cycle { failure, .. }) = self.cycle.take() else { return false };
        let Some(error) = failure else { return true };
        let mut state = self.log.state();
        if state.stalled != Some(error) {
            tracing::warn!(%error, "first writes cannot be brought from the log to the layer; they stay in the log");
        }
        state.stalled = Some(error);
        state.wake_waiting();
        drop(state);
        self.retry_at = Instant::now().checked_add(RETRY);
        self.end_if_asked(Err(error));
        true
    }

    fn end_if_asked(&mut self, result: Result<(), IoError>) -> bool {
        let is_asked = self.log.state().ending.is_some();
        if is_asked && self.ended.is_none() {
            self.ended = Some(result);
        }
        is_asked
    }
}

impl Cycle {
    fn content_of(&self, planned: &Planned) -> Option<&[u8]> {
        let at = planned.live.at?;
        let piece = self.pieces.iter().find(|(segment, first, _)| {
            *segment == planned.live.segment && (*first..*first + PIECE_BLOCKS).contains(&at)
        });
        let (_, first, content) = piece?;
        let start = (at - first) as usize * BLOCK;
        content.as_ref()?.bytes().get(start..start + BLOCK)
    }
}

impl Drop for Destager {
    fn drop(&mut self) {
        let mut slots = (0..).map_while(Slot::from_tag);
        let was_working = !self.sent.is_empty();
        while !self.sent.is_empty()
            && let Some(slot) = slots.next()
        {
            match self.sent.take(slot) {
                Some(Job::Sync(ticket)) => self.shared.syncs.abandon(ticket, [Some(&self.log.unsynced)]),
                Some(Job::Superblock(ticket, _)) => self.shared.syncs.end(ticket, false),
                Some(Job::Read(_) | Job::Ahead | Job::Write) | None => {}
            }
        }
        let mut state = self.log.state();
        state.destager = None;
        if was_working {
            // What it has sent may land at any time.
            state.stalled = Some(IoError::Closed);
        }
        state.wake_waiting();
    }
}

impl Log {
    /// The superblock that is to follow the last one.
    fn superblock_after(&self, tail: u64, next: Option<u64>) -> Superblock {
        let last = self.superblock.lock().unwrap_or_else(PoisonError::into_inner);
        Superblock { generation: last.generation + 1, tail, next, ..last.clone() }
    }

    /// A superblock is in the file.
    fn written(&self, superblock: Superblock) {
        *self.superblock.lock().unwrap_or_else(PoisonError::into_inner) = superblock;
    }
}
