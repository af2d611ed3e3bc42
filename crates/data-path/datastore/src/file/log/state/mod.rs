//! The state of the log: which blocks it holds, where, and which space is free. All channels of a
//! volume share it, under one mutex.
//!
//! A block has a *live* entry from the moment its record is in the log until it has been brought to
//! the layer, the layer is durable, and the log's tail has durably passed the record. Until then it
//! is read from the log and overwritten through it. A block whose record is being written is
//! *pending*, and is overwritten through the log too.
//!
//! A version is a record's sequence number and a place in the record: a higher version is later, on
//! any channel. Space is allocated by the segment; each holds the records of a range of sequence
//! numbers, so that the tail passes whole segments, oldest first.

mod cycle;
mod filling;
mod reads;
mod records;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use strongroom_io::{IoError, Waker};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::format::{ENTRIES_MAX, SEGMENTS, SEGMENTS_START, Superblock};
use super::index::Index;
use crate::file::known::Known;

pub(super) use cycle::Planned;
pub(super) use filling::FillingEnd;
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

/// The location of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub version: Version,
    pub segment: usize,
    /// The block of the segment that holds the content; `None` means that the block is "nothing
    /// here".
    pub at: Option<u32>,
}

/// A block that the log holds, as a successor learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBlock {
    pub block: u64,
    /// The number of a [`Version`].
    pub version: u64,
    pub segment: usize,
    /// As in [`Live`].
    pub at: Option<u32>,
}

/// A segment that holds records, as a successor learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedSegment {
    pub number: usize,
    /// The sequence number of its first record.
    pub first: u64,
    pub used_blocks: u32,
}

#[derive(Debug, Default)]
struct Entry {
    live: Option<Live>,
    /// Entries for this block in records that are being written, or whose result is unknown.
    pending: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// Records are appended to it.
    Open,
    Full,
    /// The destager is writing zeroes to it.
    Filling,
    /// A record whose completion will never arrive may still be written to it. It is not reused.
    Lost,
}

#[derive(Debug)]
struct Segment {
    state: Use,
    /// Whether it was written before, so that an append to it changes no metadata of the file
    /// system.
    is_written: bool,
    /// The sequence number of its first record.
    first: u64,
    used_blocks: u32,
    records_under_way: u32,
    /// Blocks of it that are being read, counted once for each reader.
    readers: usize,
    /// Blocks of failed records, which may still be found after a crash: they stay pending as long
    /// as that is possible.
    doomed: Vec<u64>,
}

/// How destaging ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Once the log is empty: then the layer is complete.
    Empty,
    /// Once the current cycle is done.
    Now,
}

/// A count of attempts to empty some of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempts(u64);

impl Attempts {
    /// Counts one more attempt.
    pub fn begin(&mut self) {
        self.0 += 1;
    }
}

/// The state of the log.
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
    /// Why the log is not being emptied, if it is not.
    pub stalled: Option<IoError>,
    /// How many attempts to empty the log have begun.
    pub attempts: Attempts,
    /// How many of those had begun when the last failed attempt began.
    pub failed: Attempts,
    /// Whether a write waits that came after the last failure, so that the next attempt must not
    /// wait.
    pub is_attempt_wanted: bool,
    /// The destager's waker, called when there is enough to do.
    pub destager: Option<Arc<Waker>>,
    /// Whether there will be a destager.
    pub is_destager_expected: bool,
    /// How destaging should end, if it was asked to.
    pub ending: Option<End>,
    /// Whether no cycle begins as long as there is room.
    pub is_held: bool,
    /// Whether the destager has set a timer. Otherwise the first record wakes it.
    pub is_watched: bool,
    /// Whether the log is closed: nothing more is appended.
    pub is_closed: bool,
    /// The count of records so far, which shows whether the guest is quiet.
    pub records: u64,
}

impl State {
    pub fn new(bytes: u64, size_bytes: u64, next_sequence: u64) -> Self {
        let segment = |_| Segment {
            state: Use::Free,
            is_written: true,
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
            segment_blocks: Self::segment_blocks_of(bytes),
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
            is_held: false,
            is_watched: false,
            is_closed: false,
            records: 0,
        }
    }

    /// What a successor must know of the log that has this superblock. `None` if that cannot be
    /// said, because the end of a record is unknown.
    pub fn index(&self, superblock: &Superblock) -> Option<Index> {
        if self.segments.iter().any(|segment| segment.records_under_way > 0) {
            return None;
        }
        let used = |number: &usize| {
            let Segment { first, used_blocks, .. } = self.segments[*number];
            UsedSegment { number: *number, first, used_blocks }
        };
        // A block of a record that failed, or whose completion will never arrive, is pending.
        let held = |(block, entry): (&u64, &Entry)| match entry {
            Entry { live: Some(Live { version: Version(version), segment, at }), pending: 0 } => {
                Some(HeldBlock { block: *block, version: *version, segment: *segment, at: *at })
            }
            _ => None,
        };
        Some(Index {
            superblock: superblock.clone(),
            next_sequence: self.next_sequence,
            segments: self.in_use.iter().map(used).collect(),
            blocks: self.index.iter().map(held).collect::<Option<_>>()?,
        })
    }

    /// Takes over what a predecessor knew of a log that it had opened.
    pub fn take_over(&mut self, Index { superblock: _, next_sequence, segments, blocks }: Index) {
        self.next_sequence = next_sequence;
        for UsedSegment { number, first, used_blocks } in segments {
            let segment = &mut self.segments[number];
            (segment.state, segment.first, segment.used_blocks) = (Use::Full, first, used_blocks);
            self.in_use.push_back(number);
        }
        let held = blocks.into_iter().map(|HeldBlock { block, version, segment, at }| {
            (block, Entry { live: Some(Live { version: Version(version), segment, at }), pending: 0 })
        });
        self.index = held.collect();
    }

    /// Where a block of a segment lies in the log's file.
    pub fn offset(&self, segment: usize, at: u32) -> u64 {
        SEGMENTS_START + (segment as u64 * u64::from(self.segment_blocks) + u64::from(at)) * BLOCK_BYTES
    }

    /// Blocks of each segment of a log with so many bytes for records.
    pub fn segment_blocks_of(bytes: u64) -> u32 {
        (bytes / SEGMENTS as u64 / BLOCK_BYTES) as u32
    }

    pub fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// Count of blocks that the log answers for.
    pub fn entries(&self) -> usize {
        self.index.len()
    }

    /// Bytes that records use.
    pub fn used_bytes(&self) -> u64 {
        let blocks = self.in_use.iter().map(|segment| u64::from(self.segments[*segment].used_blocks));
        blocks.sum::<u64>() * BLOCK_BYTES
    }

    /// The count of segments in use.
    pub fn segments_in_use(&self) -> usize {
        let is_in_use = |segment: &&Segment| match segment.state {
            Use::Free | Use::Filling => false,
            Use::Open | Use::Full | Use::Lost => true,
        };
        self.segments.iter().filter(is_in_use).count()
    }

    /// Whether no segment holds records or has space reserved for one.
    pub fn is_empty(&self) -> bool {
        self.in_use.is_empty()
    }

    /// The count of blocks of a segment that records use.
    pub fn used_blocks(&self, segment: usize) -> u32 {
        self.segments[segment].used_blocks
    }

    /// The segments that hold records, oldest first.
    pub fn segments_with_records(&self) -> impl Iterator<Item = usize> {
        self.in_use.iter().copied()
    }

    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Whether a cycle may begin.
    pub fn allows_a_cycle(&self) -> bool {
        !self.is_held || !self.waiting.is_empty() || self.is_attempt_wanted
    }

    /// Wakes all threads that wait for room.
    pub fn wake_waiting(&mut self) {
        self.waiting.drain(..).for_each(|waker| waker.wake());
    }
}

/// The first block, and the one after the last.
fn numbers(blocks: Extent) -> (u64, u64) {
    (blocks.offset() / BLOCK_BYTES, blocks.end() / BLOCK_BYTES)
}

fn extent_of(first: u64, end: u64) -> Extent {
    Extent::between(first * BLOCK_BYTES, end * BLOCK_BYTES)
}

#[cfg(test)]
mod tests;
