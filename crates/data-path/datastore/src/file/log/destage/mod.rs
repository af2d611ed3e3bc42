//! Brings first writes from the log to the layer.
//!
//! A cycle takes the oldest segments through these steps, each of which needs the one before:
//!
//! 1. the log is made durable (`fdatasync`), because from now on a block may be torn in its place;
//!    meanwhile the segments are read, and earlier transfers in place come to an end;
//! 2. space is allocated ahead where blocks gather, then the blocks are written to the layer in the
//!    order of their addresses, and blocks that became "nothing here" are punched;
//! 3. the layer is made durable, and no concurrent sync has failed;
//! 4. a superblock whose tail is beyond the segments is made durable;
//! 5. the blocks are overwritten in place from now on, and the segments are free.
//!
//! A block that is rewritten meanwhile goes through the log again, and its new entry stays there.
//!
//! Between cycles it writes zeroes to segments that were never written ([`fill`]).

mod begin;
mod cycle;
mod fill;
mod place;
mod tail;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_io::{
    FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Reactor, Slot, Thread, Waker,
};
use strongroom_memory::{BufferPool, CHUNK_BYTES};

use self::cycle::{Cycle, Step};
use self::fill::Filling;
use super::Log;
use super::format::Superblock;
use super::state::{End, FillingEnd};
use crate::file::disk::Shared;
use crate::file::syncs::SyncTicket;

/// The segments of a cycle, rounded up to a pool's granularity, and the writes under way.
const POOL_BYTES: usize = 4 * CHUNK_BYTES;
/// The most writes to the layer under way: enough that a cycle ends before writers stall
/// (`docs/decisions/0008` has the figures), and fewer than a thread's operations in flight.
const WRITES_MAX: usize = 48;
/// A guest that has not written for this long is not disturbed by a cycle.
const QUIET: Duration = Duration::from_millis(250);
/// The delay between a failure and the next attempt, unless a write waits for one.
const RETRY: Duration = Duration::from_secs(1);

/// Empties the log of a layer while its channels fill it. It runs on a separate thread, or beside
/// channels: [`Self::poll`] does all available work, and the reactor wakes the thread when there is
/// more.
///
/// If it is dropped while it works, the log stays as it is, and no other destager can be created
/// until the volume is reopened.
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
    /// The segment that is being filled. No cycle begins meanwhile.
    filling: Option<Filling>,
    quiet: Duration,
    is_busy: bool,
    /// The count of records when it was last examined, and the time when it last changed.
    last_records: (u64, Instant),
    retry_at: Option<Instant>,
    ended: Option<Result<(), IoError>>,
}

enum Job {
    Sync(SyncTicket),
    /// The superblock, written durably.
    Superblock(SyncTicket, Superblock),
    Read(usize),
    /// Space allocated ahead. If that fails, the writes allocate what they need.
    Ahead,
    Write,
    /// Zeroes for a segment of the log.
    Fill,
}

impl Destager {
    pub(in crate::file) fn open(shared: Arc<Shared>, thread: &Thread) -> Result<Self, IoError> {
        let Some(log) = shared.log.clone() else { return Err(IoError::Closed) };
        let mut queue = shared.sync_order.queue(&*shared.layer, thread)?;
        let layer = queue.register(Arc::clone(&shared.layer) as _)?;
        let file = queue.register(Arc::clone(&log.file) as _)?;
        let waker = thread.reactor.waker();
        {
            let mut state = log.state.lock();
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
            filling: None,
            quiet: QUIET,
            is_busy: false,
            last_records: (0, Instant::now()),
            retry_at: None,
            ended: None,
        })
    }

    /// Sets how long the guest must be idle before the log is emptied although it has room.
    pub fn set_quiet(&mut self, quiet: Duration) {
        self.quiet = quiet;
    }

    /// Does all work that is possible now. Further work wakes the thread's reactor.
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

    /// The result, once it has ended as
    /// [`FileDisk::end_destaging`](crate::file::FileDisk::end_destaging) asked. An error means that
    /// the log is not empty.
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
        if let Job::Fill = job {
            return self.filled(done.result);
        }
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
            Job::Read(piece) => cycle.pieces[piece].content = done.buffer,
            Job::Ahead | Job::Fill => return,
            Job::Write => {}
        }
        cycle.failure = cycle.failure.or(result.err());
    }

    /// Does the next possible step. Returns whether there was one.
    fn advance(&mut self) -> bool {
        let Some(Cycle { step, failure, .. }) = self.cycle else {
            return if self.fills() { self.fill() } else { self.begin() };
        };
        let is_idle = self.sent.is_empty();
        let can_stop = matches!(step, Step::Preparing | Step::Allocating | Step::Writing);
        if failure.is_some() || can_stop && self.log.state.lock().ending == Some(End::Now) {
            return is_idle && self.abandon();
        }
        match step {
            Step::Preparing => {
                let ready = is_idle && self.log.epochs.is_over() && self.syncs_are_over();
                if ready && let Some(cycle) = &mut self.cycle {
                    let end_bytes = self.shared.limits().size_bytes;
                    cycle.ahead = self.log.state.lock().space_ahead(&cycle.planned, end_bytes);
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

    /// Whether the synced data is durable: of two concurrent syncs, one may receive the error of
    /// the other.
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

    /// Gives up a cycle. The next one writes its blocks again.
    fn abandon(&mut self) -> bool {
        let Some(Cycle { failure, .. }) = self.cycle.take() else { return false };
        let Some(error) = failure else { return true };
        let mut state = self.log.state.lock();
        if state.stalled != Some(error) {
            tracing::warn!(%error, "first writes cannot be brought from the log to the layer; they stay in the log");
        }
        state.stalled = Some(error);
        state.failed = state.attempts;
        state.wake_waiting();
        drop(state);
        self.retry_at = Instant::now().checked_add(RETRY);
        self.end_if_asked(Err(error));
        true
    }

    fn end_if_asked(&mut self, result: Result<(), IoError>) -> bool {
        let is_asked = self.log.state.lock().ending.is_some();
        if is_asked && self.ended.is_none() {
            self.ended = Some(result);
        }
        is_asked
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
                Some(Job::Read(_) | Job::Ahead | Job::Write | Job::Fill) | None => {}
            }
        }
        let mut state = self.log.state.lock();
        state.destager = None;
        if was_working {
            // Its writes may land at any time.
            state.stalled = Some(IoError::Closed);
        } else if let Some(Filling { segment, .. }) = self.filling {
            state.end_filling(segment, FillingEnd::Halted);
        }
        state.wake_waiting();
    }
}
