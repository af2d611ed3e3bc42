//! What becomes of a write: how it goes, and its record's way into the log.

use std::sync::Arc;

use strongroom_io::Waker;
use strongroom_types::Extent;

use super::super::format::LogEntry;
use super::super::known::Knowledge;
use super::{Live, Segment, State, Use, Version, numbers};

/// How a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum Route {
    /// In its place: all its blocks are written, and the log holds nothing of them.
    InPlace,
    /// In its place too, but some of its blocks were "nothing here"; to be told to
    /// [`Log::filled`](super::super::Log::filled) when it is done.
    FirstInPlace,
    /// Through the log. Its blocks are pending now.
    Log,
}

/// This chunk of the file system's map has to be read before a write can be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file::log) struct Unloaded {
    pub chunk: u64,
    /// To be told to [`Known::insert`](super::super::known::Known::insert) with it.
    pub changes: u64,
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

impl State {
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

    /// Takes space for a record of a header and up to `payload` blocks; what there is at once may
    /// be less. Nothing if the log is full: then `waker` is woken when that may have changed.
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

    pub(super) fn end_pending(&mut self, block: u64) {
        if let Some(entry) = self.index.get_mut(&block) {
            entry.pending = entry.pending.saturating_sub(1);
            if entry.pending == 0 && entry.live.is_none() {
                self.index.remove(&block);
            }
        }
    }

    /// Also of blocks that the log holds nothing of any more: an older content may have been on its
    /// way to the layer when they were made "nothing here" there, and have come after.
    fn make_nothing(&mut self, first: u64, count: u64, version: Version, segment: usize) {
        for block in first..first.saturating_add(count) {
            let entry = self.index.entry(block).or_default();
            if entry.live.is_none_or(|live| live.version < version) {
                entry.live = Some(Live { version, segment, at: None });
            }
        }
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
}
