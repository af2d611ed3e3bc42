//! The first-write log of a thin layer. It makes first writes atomic and fast.
//!
//! A first write has no old content to fall back on: torn by a power cut, it would leave a block
//! that is part ciphertext and part zeroes, which decrypts to noise. It is also slow, because the
//! file system must find space for it. So blocks that are "nothing here" are written into a log
//! first. The log is a file whose space is allocated, to which records of many blocks are appended,
//! each block with a check. An append to a segment that was written before changes no metadata of
//! the file system, so new segments are filled with zeroes ahead of the records. Writes are
//! acknowledged from the log, and brought to the layer later, sorted by address ([`destage`]).
//!
//! ```text
//!             route                    append                       destage
//! a write ------------> log: pending -----------> log: live ----------------------> in the layer
//!           |              |                       |    (log durable -> no transfer of before under way -> written
//!           v              |                       |     in place -> layer durable -> tail durable)
//!     in place, if all its blocks                  v
//!     are written, and the log has nothing       reads, and further writes of the block, come here
//!     of them
//! ```
//!
//! What must never happen:
//! - a block's content is brought to its place before its record is durable: torn there, it would
//!   be nowhere;
//! - a block is overwritten in place while the log could still be read after a crash: its old entry
//!   would win;
//! - a segment's space is reused before the tail has durably passed it, or while it is read;
//! - the tail passes an entry whose replacement is not durable yet;
//! - zeroes are written to a segment that holds records or has space reserved for one.
//!
//! Bounded memory: an index entry for each block of a log of at most 64 MiB, 640 KiB for the cache
//! of the layer's map, and a few MiB of buffers while the log is appended to or destaged.

pub(super) mod destage;
pub(super) mod epochs;
mod file;
mod format;
mod index;
mod recover;
mod state;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use strongroom_io::{IoError, Waker};
use strongroom_memory::{BufferPool, Padded};
use strongroom_types::{Extent, VolumeSize};

use self::epochs::Epochs;
use self::file::{read_superblock, write_superblock};
use self::format::{BLOCK, LogId, SEGMENTS_START, Superblock, content_check, encode_record};
use self::index::Index;
use self::recover::{recover, rewrite};
use self::state::{State, Unloaded};
use super::descriptor::LogRecord;
use super::disk::LogFacts;
use super::known;
use super::storage::StoredFile;
use super::syncs::Unsynced;

pub(super) use file::{FileState, check_identity, create, damaged, describe, is_closed_empty, record_for};
pub use file::{LogError, LogUse};
pub use format::{LOG_BYTES_MAX, LOG_BYTES_MIN};
pub(super) use format::{LOG_BYTES_STEP, LogEntry};
pub use state::End;
pub(super) use state::{Attempts, LogBlock, Reservation, Route, Run};

/// The most blocks of a record, which make 256 KiB with its header. In a longer record the first
/// block would wait for the last.
pub(super) const RECORD_BLOCKS_MAX: u32 = 63;

/// Once this many segments are in use, the log is emptied even if the guest is busy.
const SEGMENTS_BUSY: usize = format::SEGMENTS * 3 / 4;

/// The log of an open layer, shared by all its channels.
pub(super) struct Log {
    pub(super) file: Arc<dyn StoredFile>,
    pub(super) epochs: Epochs,
    /// Whether there may be a record that is not durable yet.
    pub(super) unsynced: Unsynced,
    id: LogId,
    bytes: u64,
    /// The least bytes of a first write that goes in place.
    fill_bytes_min: Option<u64>,
    /// The count of blocks in the index. It is usually zero, and then reads take no lock. Every
    /// read loads it, so it is on a separate cache line from the lock that every append takes.
    entries: Padded<AtomicUsize>,
    state: Mutex<State>,
    superblock: Mutex<Superblock>,
}

/// The result of [`Log::reserve`].
pub(super) enum Room {
    /// Space for a record.
    At {
        /// The reserved space.
        reservation: Reservation,
        /// Its offset in the log's file, in bytes.
        offset: u64,
    },
    /// No space until some of the log is emptied.
    Later {
        /// The attempts to empty the log that have begun.
        begun: Attempts,
        /// The last attempt that failed for lack of space, if any did.
        failed: Attempts,
    },
}

/// The end of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordEnd {
    /// It is in the log.
    Arrived,
    /// It has failed, and nothing of it can be found.
    Erased,
    /// It has failed, and may be found or not.
    Unknown,
}

impl Log {
    /// Opens the log of a locked layer, with the index of a predecessor if there is one. With write
    /// access, it removes the mark that the log was closed empty.
    pub(super) fn open(
        file: Arc<dyn StoredFile>,
        index: Option<OwnedFd>,
        facts: LogFacts,
        size: VolumeSize,
        read_only: bool,
    ) -> Result<Self, LogError> {
        let new_state = |superblock: &Superblock| {
            State::new(facts.bytes, size.bytes(), superblock.next.unwrap_or(superblock.tail))
        };
        let segment_blocks = State::segment_blocks_of(facts.bytes);
        let index = index.filter(|_| facts.handed_over || read_only);
        if let Some(index) = index.and_then(|index| Index::of_file(&index, segment_blocks, size)) {
            let superblock = index.superblock.clone();
            let mut state = new_state(&superblock);
            state.take_over(index);
            return Ok(Self::of(file, facts, superblock, state));
        }
        let mut superblock = read_superblock(&*file, None)?;
        let pool = BufferPool::brief();
        let mut state = new_state(&superblock);
        match superblock.next {
            None => {
                recover(&*file, &superblock, &mut state, size, &pool)?;
                if !read_only && !facts.handed_over {
                    rewrite(&*file, &state, &pool)?;
                    write_superblock(&*file, &superblock, &pool)?;
                }
            }
            Some(_) if read_only => {}
            Some(next) => {
                // Its writer may have been killed before it was durable. If the other place were
                // then torn, there would be no superblock left.
                write_superblock(&*file, &superblock, &pool)?;
                let generation = superblock.generation + 1;
                superblock = Superblock { generation, tail: next, next: None, ..superblock };
                // Before the first record.
                write_superblock(&*file, &superblock, &pool)?;
            }
        }
        Ok(Self::of(file, facts, superblock, state))
    }

    fn of(file: Arc<dyn StoredFile>, facts: LogFacts, superblock: Superblock, mut state: State) -> Self {
        // Without a map, nothing is filled.
        state.note_written_until(file.next_hole(SEGMENTS_START).unwrap_or(u64::MAX));
        Self {
            file,
            epochs: Epochs::default(),
            // A predecessor's last records may be found although they are not durable.
            unsynced: Unsynced::new(!state.is_empty()),
            id: superblock.log,
            bytes: facts.bytes,
            fill_bytes_min: facts.fill_bytes_min,
            entries: Padded::new(AtomicUsize::new(state.entries())),
            state: Mutex::new(state),
            superblock: Mutex::new(superblock),
        }
    }

    /// Its index, for a successor, when nothing is under way. `None` if the successor must read the
    /// log, because the end of a record is unknown or there is no memory.
    pub(super) fn index(&self) -> Option<OwnedFd> {
        let superblock = self.superblock.lock();
        if superblock.next.is_some() {
            return None;
        }
        self.state.lock().index(&superblock)?.to_file().ok()?
    }

    /// The index of a log to which nothing was written.
    pub(super) fn index_of_new(file: &dyn StoredFile) -> Option<OwnedFd> {
        let superblock = read_superblock(file, None).ok().filter(|found| found.next.is_none())?;
        let next_sequence = superblock.tail;
        let index = Index { superblock, next_sequence, segments: Vec::new(), blocks: Vec::new() };
        index.to_file().ok()?
    }

    /// Bytes of blocks that the log of a layer holds. The log may be in use.
    pub(super) fn held_bytes(
        file: &dyn StoredFile,
        LogRecord { bytes }: LogRecord,
        size: VolumeSize,
    ) -> Result<u64, LogError> {
        let superblock = read_superblock(file, None)?;
        let mut state = State::new(bytes, size.bytes(), superblock.tail);
        if superblock.next.is_none() {
            recover(file, &superblock, &mut state, size, &BufferPool::brief())?;
        }
        Ok(state.entries() as u64 * BLOCK as u64)
    }

    /// Releases the state, and publishes the count for readers without the lock.
    fn done(&self, state: MutexGuard<'_, State>) {
        self.entries.store(state.entries(), Ordering::SeqCst);
    }

    /// Whether it holds no block at all.
    pub(super) fn answers_for_nothing(&self) -> bool {
        self.entries.load(Ordering::SeqCst) == 0
    }

    /// Bytes for records, and bytes that records use.
    pub(super) fn size_and_use(&self) -> (u64, u64) {
        (self.bytes, self.state.lock().used_bytes())
    }

    /// Decides how a write of whole blocks goes.
    pub(super) fn route(&self, layer: &dyn StoredFile, blocks: Extent) -> Result<Route, Errno> {
        let fills = self.fill_bytes_min.is_some_and(|least| blocks.length() >= least);
        loop {
            let mut state = self.state.lock();
            match state.route(blocks, fills) {
                Ok(route) => {
                    self.done(state);
                    return Ok(route);
                }
                Err(Unloaded { chunk, changes }) => {
                    drop(state);
                    let loaded = known::load(layer, chunk)?;
                    self.state.lock().known.insert(&loaded, changes);
                }
            }
        }
    }

    /// Notes that a first write in place is done.
    pub(super) fn filled(&self, blocks: Extent) {
        self.state.lock().known.set(blocks);
    }

    /// Notes that these blocks are about to be, or have been, made "nothing here" in their place.
    pub(super) fn cleared(&self, blocks: Extent) {
        self.state.lock().known.clear(blocks);
    }

    /// The runs of blocks that it has, or will have, entries of.
    pub(super) fn runs(&self, blocks: Extent) -> VecDeque<Run> {
        if self.answers_for_nothing() { VecDeque::new() } else { self.state.lock().runs(blocks) }
    }

    /// Appends to `live` the blocks of an extent that it answers for, in order. Each block with
    /// content must be released with [`Self::release`].
    pub(super) fn pin(&self, blocks: Extent, live: &mut Vec<LogBlock>) {
        self.state.lock().pin(blocks, live);
    }

    /// Ends reads of so many blocks in this segment.
    pub(super) fn release(&self, segment: usize, blocks: usize) {
        self.state.lock().release(segment, blocks);
    }

    /// Whether something is being read from its file. Once the log is empty no other read begins.
    pub(super) fn is_being_read(&self) -> bool {
        self.state.lock().is_being_read()
    }

    /// Calls `run` with each run of blocks that it answers for, and whether they hold data.
    pub(super) fn for_each_run(&self, blocks: Extent, run: impl FnMut(Extent, bool)) {
        if !self.answers_for_nothing() {
            self.state.lock().for_each_run(blocks, run);
        }
    }

    /// Reserves space for a record; see [`State::reserve`]. Fails if space will not become free by
    /// itself.
    ///
    /// If the last attempt to empty the log failed for lack of space, the file system may have some
    /// by now. So a write fails only after an attempt that began after it; [`Room::Later`] has the
    /// numbers.
    pub(super) fn reserve(&self, payload: u32, waker: &Arc<Waker>) -> Result<Room, IoError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(IoError::Closed);
        }
        if let Some(reservation) = state.reserve(payload, waker) {
            let offset = state.offset(reservation.segment, reservation.at);
            if reservation.at == 0
                && state.lacks_filled_segments()
                && let Some(destager) = &state.destager
            {
                destager.wake();
            }
            return Ok(Room::At { reservation, offset });
        }
        let later = Room::Later { begun: state.attempts, failed: state.failed };
        match (state.stalled, &state.destager) {
            (Some(IoError::NoSpace) | None, Some(destager)) => {
                destager.wake();
                Ok(later)
            }
            (Some(error), _) => Err(error),
            (None, None) if state.is_destager_expected => Ok(later),
            // There is no destager to make room.
            (None, None) => Err(IoError::NoSpace),
        }
    }

    /// Requests a new attempt to empty the log, for a write that waits.
    pub(super) fn want_attempt(&self) {
        let mut state = self.state.lock();
        state.is_attempt_wanted = true;
        if let Some(destager) = &state.destager {
            destager.wake();
        }
    }

    /// Encodes the header of a record into its first block.
    pub(super) fn encode(&self, into: &mut [u8], reservation: &Reservation, entries: &[LogEntry]) {
        encode_record(into, &self.id, reservation.sequence, entries);
    }

    /// The entry of a block with this content, in this record.
    pub(super) fn entry(&self, reservation: &Reservation, block: u64, content: &[u8]) -> LogEntry {
        LogEntry::Data { block, check: content_check(content, reservation.sequence, block) }
    }

    /// Takes the end of a record.
    pub(super) fn ended(&self, reservation: &Reservation, entries: &[LogEntry], end: RecordEnd) {
        let mut state = self.state.lock();
        match end {
            RecordEnd::Arrived => state.commit(reservation, entries),
            RecordEnd::Erased => state.erase(reservation, entries),
            RecordEnd::Unknown => state.fail(reservation, entries),
        }
        if let Some(destager) = &state.destager
            && (!state.is_watched || state.segments_in_use() >= SEGMENTS_BUSY)
        {
            destager.wake();
        }
        self.done(state);
    }

    /// Sets whether there will be a destager to make room.
    pub(super) fn expect_destager(&self, is_expected: bool) {
        let mut state = self.state.lock();
        state.is_destager_expected = is_expected;
        state.wake_waiting();
    }

    /// Lets no cycle begin as long as there is room, or lets them begin again.
    pub(super) fn hold_destaging(&self, is_held: bool) {
        let mut state = self.state.lock();
        state.is_held = is_held;
        if let Some(destager) = &state.destager {
            destager.wake();
        }
    }

    /// Asks destaging to end.
    pub(super) fn end_destaging(&self, end: End) {
        let mut state = self.state.lock();
        state.ending = Some(end);
        if let Some(destager) = &state.destager {
            destager.wake();
        }
    }

    /// Gives up a record whose completion will never arrive.
    pub(super) fn lost(&self, reservation: &Reservation, entries: &[LogEntry]) {
        let mut state = self.state.lock();
        state.lose(reservation, entries);
        self.done(state);
    }

    /// Gives up a write that was routed through the log and failed before it was sent there.
    pub(super) fn give_up(&self, blocks: Extent) {
        let mut state = self.state.lock();
        state.give_up(blocks);
        self.done(state);
    }
}
