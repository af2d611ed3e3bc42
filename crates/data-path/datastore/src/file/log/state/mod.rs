//! What the log holds: which blocks, where, and which space is free. All channels of a volume share
//! it, under one mutex.
//!
//! A block has a *live* entry from the moment its record is in the log until it has been brought to
//! the layer, the layer is durable, and the log's tail has durably passed the record. Until then
//! the log is where it is read and overwritten. A block of which a record is on its way is
//! *pending*, and is overwritten through the log too.
//!
//! Versions are sequence numbers of records, and the place in the record: a higher one is a later
//! one, on whichever channel. Space is taken by the segment; each holds the records of a range of
//! sequence numbers, so that the tail passes whole segments, oldest first.

mod cycle;
mod reads;
mod records;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use strongroom_io::{IoError, Waker};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::destage::End;
use super::format::{ENTRIES_MAX, SEGMENTS, SEGMENTS_START};
use super::known::Known;

pub(super) use cycle::Planned;
pub(in crate::file) use reads::{LogBlock, Run};
pub(super) use records::Unloaded;
pub(in crate::file) use records::{Reservation, Route};

/// Sequence number of the record, and place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64);

impl Version {
    pub fn new(sequence: u64, place: usize) -> Self {
        debug_assert!(place < 256 && ENTRIES_MAX < 256);
        Self(sequence << 8 | place as u64)
    }
}

/// Where the content of a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub version: Version,
    pub segment: usize,
    /// Block of the segment that holds the content; none says that the block is "nothing here".
    pub at: Option<u32>,
}

#[derive(Debug, Default)]
struct Entry {
    live: Option<Live>,
    /// Entries for this block in records that are on their way, or of which nobody knows whether
    /// they arrived.
    pending: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Records are appended to it.
    Open,
    Full,
    /// It may still be written to by a record that nobody hears of any more. It is not used again.
    Lost,
}

#[derive(Debug)]
struct Segment {
    state: Use,
    /// Of its first record.
    first: u64,
    used_blocks: u32,
    records_under_way: u32,
    /// Blocks of it that are being read, counted once for each reader.
    readers: usize,
    /// Blocks of records that failed, and may be found all the same after a crash: they stay
    /// pending while they can be.
    doomed: Vec<u64>,
}

/// A count of attempts to empty some of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempts(u64);

impl Attempts {
    /// One more has begun.
    pub fn begin(&mut self) {
        self.0 += 1;
    }
}

/// What the log holds.
pub(super) struct State {
    index: BTreeMap<u64, Entry>,
    segments: [Segment; SEGMENTS],
    /// Segments that hold records, oldest first; the last one may be open.
    in_use: VecDeque<usize>,
    segment_blocks: u32,
    next_sequence: u64,
    pub known: Known,
    /// Threads with a write that waits for room.
    waiting: Vec<Arc<Waker>>,
    /// Why the log is not being emptied.
    pub stalled: Option<IoError>,
    /// Attempts to empty some of it that have begun.
    pub attempts: Attempts,
    /// Of those, how many had begun when the last one to fail did.
    pub failed: Attempts,
    /// A write came after the last failure, so the next attempt does not wait.
    pub is_attempt_wanted: bool,
    /// Whoever empties the log, to be woken when there is enough to do.
    pub destager: Option<Arc<Waker>>,
    /// Whether there will be one.
    pub is_destager_expected: bool,
    /// How destaging is to end.
    pub ending: Option<End>,
    /// Whether the destager looks at times by itself. Otherwise it is woken by the first record.
    pub is_watched: bool,
    /// Nothing is appended any more.
    pub is_closed: bool,
    /// Records so far, to see whether it is quiet.
    pub records: u64,
}

impl State {
    pub fn new(bytes: u64, size_bytes: u64, next_sequence: u64) -> Self {
        let segment = |_| Segment {
            state: Use::Free,
            first: 0,
            used_blocks: 0,
            records_under_way: 0,
            readers: 0,
            doomed: Vec::new(),
        };
        Self {
            index: BTreeMap::new(),
            segments: std::array::from_fn(segment),
            in_use: VecDeque::with_capacity(SEGMENTS),
            segment_blocks: (bytes / SEGMENTS as u64 / BLOCK_BYTES) as u32,
            next_sequence,
            known: Known::new(size_bytes),
            waiting: Vec::new(),
            stalled: None,
            attempts: Attempts::default(),
            failed: Attempts::default(),
            is_attempt_wanted: false,
            destager: None,
            is_destager_expected: false,
            ending: None,
            is_watched: false,
            is_closed: false,
            records: 0,
        }
    }

    /// Where a block of a segment lies in the log's file.
    pub fn offset(&self, segment: usize, at: u32) -> u64 {
        SEGMENTS_START + (segment as u64 * u64::from(self.segment_blocks) + u64::from(at)) * BLOCK_BYTES
    }

    pub fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// Count of blocks that the log answers for.
    pub fn entries(&self) -> usize {
        self.index.len()
    }

    /// Bytes that records take.
    pub fn used_bytes(&self) -> u64 {
        let blocks = self.in_use.iter().map(|segment| u64::from(self.segments[*segment].used_blocks));
        blocks.sum::<u64>() * BLOCK_BYTES
    }

    /// Segments in use, of all that can be.
    pub fn segments_in_use(&self) -> usize {
        self.segments.iter().filter(|segment| segment.state != Use::Free).count()
    }

    /// Whether nothing is in the log, or on its way there.
    pub fn is_empty(&self) -> bool {
        self.in_use.is_empty()
    }

    /// Blocks of a segment that records have.
    pub fn used_blocks(&self, segment: usize) -> u32 {
        self.segments[segment].used_blocks
    }

    /// Oldest first.
    pub fn segments_with_records(&self) -> impl Iterator<Item = usize> {
        self.in_use.iter().copied()
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Has everybody look again who waits for room.
    pub fn wake_waiting(&mut self) {
        self.waiting.drain(..).for_each(|waker| waker.wake());
    }
}

/// First block, and the one after the last.
fn numbers(blocks: Extent) -> (u64, u64) {
    (blocks.offset() / BLOCK_BYTES, blocks.end() / BLOCK_BYTES)
}

fn extent_of(first: u64, end: u64) -> Extent {
    Extent::between(first * BLOCK_BYTES, end * BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
