//! What the log holds: which blocks, where, and which space is free. All channels of a volume share it, under one mutex.
//!
//! A block has a *live* entry from the moment its record is in the log until it has been brought to the layer, the layer is
//! durable, and the log's tail has durably passed the record. Until then the log is where it is read and overwritten. A block of which a record is
//! on its way is *pending*, and is overwritten through the log too.
//!
//! Versions are sequence numbers of records, and the place in the record: a higher one is a later one, on whichever
//! channel. Space is taken by the segment; each holds the records of a range of sequence numbers, so that the tail passes whole segments, oldest
//! first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use strongroom_io::{IoError, Waker};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::destage::End;
use super::format::{ENTRIES_MAX, LogEntry, SEGMENTS, SEGMENTS_START};
use super::known::{Knowledge, Known, REGION_BLOCKS};

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
    /// Entries for this block in records that are on their way, or of which nobody knows whether they arrived.
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
    /// Blocks of records that failed, and may be found all the same after a crash: they stay pending while they can be.
    doomed: Vec<u64>,
}

/// Space for a record.
#[derive(Debug)]
pub(in crate::file) struct Reservation {
    pub segment: usize,
    /// The record's first block in the segment.
    pub at: u32,
    pub blocks: u32,
    pub sequence: u64,
}

/// A segment's content is at most this much; the rest of a record that does not fit goes to the next.
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

/// What is known of a block when it is brought to the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub block: u64,
    pub live: Live,
}

/// A block that the log answers for.
#[derive(Clone, Copy, Debug)]
pub(in crate::file) struct LogBlock {
    pub block: u64,
    /// Segment, and offset in the log's file; nothing where the block is "nothing here".
    pub content: Option<(usize, u64)>,
}

/// Blocks one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) struct Run {
    pub first: u64,
    pub count: u64,
}

/// How a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum Route {
    /// In its place: all its blocks are written, and the log holds nothing of them.
    InPlace,
    /// In its place too, but some of its blocks were "nothing here"; to be told to [`Log::filled`](super::Log::filled) when it is done.
    FirstInPlace,
    /// Through the log. Its blocks are pending now.
    Log,
}

/// This chunk of the file system's map has to be read before a write can be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unloaded {
    pub chunk: u64,
    /// To be told to [`Known::insert`] with it.
    pub changes: u64,
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

    /// Takes in what a record says that was found when the log was opened. Older ones come first.
    pub fn recover(&mut self, segment: usize, sequence: u64, entries: &[(usize, LogEntry, u32)]) {
        let found = &mut self.segments[segment];
        if found.state == Use::Free {
            found.state = Use::Full;
            found.first = sequence;
            // What lies between and after its records is not known, and not used.
            found.used_blocks = self.segment_blocks;
            self.in_use.push_back(segment);
        }
        self.next_sequence = self.next_sequence.max(sequence + 1);
        for (place, entry, at) in entries {
            let version = Version::new(sequence, *place);
            match *entry {
                LogEntry::Data { block, .. } => {
                    let live = Live { version, segment, at: Some(*at) };
                    self.index.entry(block).or_default().live = Some(live);
                }
                LogEntry::Nothing { first, count } => self.make_nothing(first, count, version, segment),
            }
        }
    }

    /// Decides how a write goes. `fills` says whether it may make its first blocks in place.
    pub fn route(&mut self, blocks: Extent, fills: bool) -> Result<Route, Unloaded> {
        let (first, end) = numbers(blocks);
        let in_log = self.index.range(first..end).next().is_some();
        if !in_log {
            match self.known.of(blocks) {
                Knowledge::Written => return Ok(Route::InPlace),
                Knowledge::Unknown { chunk } => {
                    return Err(Unloaded { chunk, changes: self.known.changes() });
                }
                Knowledge::NotAll if fills => return Ok(Route::FirstInPlace),
                Knowledge::NotAll => {}
            }
        }
        for block in first..end {
            self.index.entry(block).or_default().pending += 1;
        }
        Ok(Route::Log)
    }

    /// The runs of blocks that the log holds, or will hold, anything of.
    pub fn runs(&self, blocks: Extent) -> VecDeque<Run> {
        let (first, end) = numbers(blocks);
        let mut runs: VecDeque<Run> = VecDeque::new();
        for block in self.index.range(first..end).map(|(block, _)| *block) {
            match runs.back_mut() {
                Some(run) if run.first + run.count == block => run.count += 1,
                _ => runs.push_back(Run { first: block, count: 1 }),
            }
        }
        runs
    }

    /// The blocks of an extent that the log answers for, with where they are. Their segments stay as they are until
    /// [`Self::release`].
    pub fn pin(&mut self, blocks: Extent, live: &mut Vec<LogBlock>) {
        let (first, end) = numbers(blocks);
        for (block, entry) in self.index.range(first..end) {
            let Some(Live { segment, at, .. }) = entry.live else { continue };
            live.push(LogBlock { block: *block, content: at.map(|at| (segment, self.offset(segment, at))) });
            if at.is_some() {
                self.segments[segment].readers += 1;
            }
        }
    }

    /// Ends reads of so many blocks of this segment.
    pub fn release(&mut self, segment: usize, blocks: usize) {
        self.segments[segment].readers -= blocks;
        if self.segments[segment].readers == 0 && self.segments[segment].state == Use::Free {
            self.wake_waiting();
        }
    }

    /// Calls with each run of blocks that the log answers for, and whether they hold data.
    pub fn for_each_run(&self, blocks: Extent, mut run: impl FnMut(Extent, bool)) {
        let (first, end) = numbers(blocks);
        // What is only on its way is not there yet.
        let live = self.index.range(first..end).filter_map(|(block, entry)| Some((*block, entry.live?)));
        let mut live = live.map(|(block, live)| (block, live.at.is_some())).peekable();
        while let Some((start, is_data)) = live.next() {
            let mut stop = start + 1;
            while live.next_if_eq(&(stop, is_data)).is_some() {
                stop += 1;
            }
            run(extent_of(start, stop), is_data);
        }
    }

    /// Takes space for a record of a header and up to `payload` blocks; what there is at once may be less. Nothing if the log is full:
    /// then `waker` is woken when that may have changed.
    pub fn reserve(&mut self, payload: u32, waker: &Arc<Waker>) -> Option<Reservation> {
        let least = payload.min(1) + 1;
        let open = self.in_use.back().copied().filter(|last| self.segments[*last].state == Use::Open);
        let segment = match open {
            Some(open) if self.segment_blocks - self.segments[open].used_blocks >= least => open,
            other => {
                if let Some(full) = other {
                    self.segments[full].state = Use::Full;
                }
                let free = |segment: &Segment| segment.state == Use::Free && segment.readers == 0;
                let Some(free) = self.segments.iter().position(free) else {
                    if !self.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
                        self.waiting.push(Arc::clone(waker));
                    }
                    return None;
                };
                let taken = &mut self.segments[free];
                (taken.state, taken.first, taken.used_blocks) = (Use::Open, self.next_sequence, 0);
                self.in_use.push_back(free);
                free
            }
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.records += 1;
        let taken = &mut self.segments[segment];
        let at = taken.used_blocks;
        let blocks = (payload + 1).min(self.segment_blocks - at);
        taken.used_blocks += blocks;
        taken.records_under_way += 1;
        Some(Reservation { segment, at, blocks, sequence })
    }

    /// A record has arrived: what it says holds from now on.
    pub fn commit(&mut self, reservation: &Reservation, entries: &[LogEntry]) {
        let Reservation { segment, at, sequence, .. } = *reservation;
        let mut content = at;
        for (place, entry) in entries.iter().enumerate() {
            let version = Version::new(sequence, place);
            match *entry {
                LogEntry::Data { block, .. } => {
                    content += 1;
                    let entry = self.index.entry(block).or_default();
                    entry.pending = entry.pending.saturating_sub(1);
                    if entry.live.is_none_or(|live| live.version < version) {
                        entry.live = Some(Live { version, segment, at: Some(content) });
                    }
                }
                LogEntry::Nothing { first, count } => self.make_nothing(first, count, version, segment),
            }
        }
        self.segments[segment].records_under_way -= 1;
    }

    /// A record has failed: what it says may hold or not, until the log's tail has passed it.
    pub fn fail(&mut self, reservation: &Reservation, entries: &[LogEntry]) {
        let segment = &mut self.segments[reservation.segment];
        segment.records_under_way -= 1;
        for entry in entries {
            match *entry {
                LogEntry::Data { block, .. } => segment.doomed.push(block),
                LogEntry::Nothing { first, count } => {
                    for block in first..first.saturating_add(count) {
                        self.index.entry(block).or_default().pending += 1;
                        segment.doomed.push(block);
                    }
                }
            }
        }
    }

    /// Nobody will hear of this record.
    pub fn lose(&mut self, reservation: &Reservation, entries: &[LogEntry]) {
        self.fail(reservation, entries);
        self.segments[reservation.segment].state = Use::Lost;
    }

    /// A write that was routed through the log will not be.
    pub fn give_up(&mut self, blocks: Extent) {
        let (first, end) = numbers(blocks);
        for block in first..end {
            self.end_pending(block);
        }
    }

    fn end_pending(&mut self, block: u64) {
        if let Some(entry) = self.index.get_mut(&block) {
            entry.pending = entry.pending.saturating_sub(1);
            if entry.pending == 0 && entry.live.is_none() {
                self.index.remove(&block);
            }
        }
    }

    /// Also of blocks that the log holds nothing of any more: an older content may have been on its way to the layer when they
    /// were made "nothing here" there, and have come after.
    fn make_nothing(&mut self, first: u64, count: u64, version: Version, segment: usize) {
        for block in first..first.saturating_add(count) {
            let entry = self.index.entry(block).or_default();
            if entry.live.is_none_or(|live| live.version < version) {
                entry.live = Some(Live { version, segment, at: None });
            }
        }
    }

    /// The oldest full segments, of `blocks_max` blocks in all but at least one, and what of them still holds, by block. With `all`
    /// the open one is closed too.
    pub fn plan(&mut self, blocks_max: u32, all: bool) -> Option<(Vec<usize>, Vec<Planned>)> {
        if all && let Some(last) = self.in_use.back() {
            let last = &mut self.segments[*last];
            if last.state == Use::Open {
                last.state = Use::Full;
            }
        }
        let mut chosen: Vec<usize> = Vec::new();
        let mut blocks = 0;
        for &number in &self.in_use {
            let segment = &self.segments[number];
            blocks += segment.used_blocks;
            let is_whole =
                segment.state == Use::Lost || segment.state == Use::Full && segment.records_under_way == 0;
            if !is_whole || (blocks > blocks_max && !chosen.is_empty()) {
                break;
            }
            chosen.push(number);
        }
        if chosen.is_empty() {
            return None;
        }
        let planned = self.index.iter().filter_map(|(block, entry)| {
            let live = entry.live.filter(|live| chosen.contains(&live.segment))?;
            Some(Planned { block: *block, live })
        });
        let planned = planned.collect();
        Some((chosen, planned))
    }

    /// Where space should be taken before these blocks are written, from the last to the first, up to the layer's end.
    pub fn space_ahead(&mut self, planned: &[Planned], end_bytes: u64) -> Vec<Extent> {
        let mut ahead: Vec<Extent> = Vec::new();
        let contents = || planned.iter().filter(|planned| planned.live.at.is_some());
        let mut blocks = contents().map(|planned| planned.block / REGION_BLOCKS).peekable();
        while let Some(region) = blocks.next() {
            let mut count = 1;
            while blocks.next_if_eq(&region).is_some() {
                count += 1;
            }
            if !self.known.should_reserve(region, count) {
                continue;
            }
            let wanted = extent_of(region * REGION_BLOCKS, (region + 1) * REGION_BLOCKS);
            let wanted = wanted.intersection(Extent::between(0, end_bytes));
            match ahead.last_mut() {
                Some(last) if last.end() == wanted.offset() => {
                    *last = Extent::between(last.offset(), wanted.end());
                }
                _ => ahead.push(wanted),
            }
        }
        ahead.reverse();
        ahead
    }

    /// The tail once the oldest `count` segments are gone.
    pub fn tail_after(&self, count: usize) -> u64 {
        self.in_use.get(count).map_or(self.next_sequence, |segment| self.segments[*segment].first)
    }

    /// The tail has durably passed these segments, whose planned blocks are in the layer: they are overwritten there from now on.
    pub fn trim(&mut self, segments: &[usize], planned: &[Planned]) {
        for Planned { block, live } in planned {
            let Some(entry) = self.index.get_mut(block) else { continue };
            if entry.live.is_some_and(|now| now.version == live.version) {
                entry.live = None;
                if entry.pending == 0 {
                    self.index.remove(block);
                }
                let place = extent_of(*block, *block + 1);
                match live.at {
                    Some(_) => self.known.set(place),
                    None => self.known.clear(place),
                }
            }
        }
        for &number in segments {
            debug_assert_eq!(self.in_use.front(), Some(&number));
            self.in_use.pop_front();
            let segment = &mut self.segments[number];
            if segment.state == Use::Full {
                segment.state = Use::Free;
            }
            for block in std::mem::take(&mut segment.doomed) {
                self.end_pending(block);
            }
        }
        self.wake_waiting();
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
#[path = "state_tests.rs"]
mod tests;
