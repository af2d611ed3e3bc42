//! Routes writes, and tracks their records into the log.

use std::sync::Arc;

use strongroom_io::Waker;
use strongroom_types::Extent;

use super::super::format::LogEntry;
use super::{Live, Segment, State, Use, Version, numbers};
use crate::file::known::Knowledge;

/// The route of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file) enum Route {
    /// In place: all its blocks are written, and the log has no entries of them.
    InPlace,
    /// In place too, but some of its blocks were "nothing here".
    /// [`Log::filled`](super::super::Log::filled) must be called when it is done.
    FirstInPlace,
    /// Through the log. Its blocks are pending now.
    Log,
}

/// The chunk of the file system's map that must be read before a write can be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file::log) struct Unloaded {
    pub chunk: u64,
    /// The count to pass to [`Known::insert`](crate::file::known::Known::insert) with the map.
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
    /// Routes a write. `fills` tells whether its first writes may go in place.
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

    /// Reserves space for a record with a header and up to `payload` blocks; it may get fewer.
    /// Returns `None` if the log is full, and calls `waker` when that may have changed.
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
                let written = |segment: &Segment| free(segment) && segment.is_written;
                let place = self.segments.iter().position(written);
                let Some(free) = place.or_else(|| self.segments.iter().position(free)) else {
                    if !self.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
                        self.waiting.push(Arc::clone(waker));
                    }
                    return None;
                };
                let taken = &mut self.segments[free];
                (taken.state, taken.first, taken.used_blocks) = (Use::Open, self.next_sequence, 0);
                taken.is_written = true;
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

    /// Commits a record that has arrived: its entries are valid from now on.
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

    /// Notes a failed record of which nothing is in the log.
    pub fn erase(&mut self, reservation: &Reservation, entries: &[LogEntry]) {
        self.segments[reservation.segment].records_under_way -= 1;
        for entry in entries {
            if let LogEntry::Data { block, .. } = *entry {
                self.end_pending(block);
            }
        }
    }

    /// Notes a failed record that could not be erased: its entries may be found or not, until the
    /// log's tail has passed it.
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

    /// Gives up a record whose completion will never arrive.
    pub fn lose(&mut self, reservation: &Reservation, entries: &[LogEntry]) {
        self.fail(reservation, entries);
        self.segments[reservation.segment].state = Use::Lost;
    }

    /// Gives up a write that was routed through the log.
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

    /// Adds entries also for blocks that the log no longer holds: older content may have been under
    /// way to the layer when they were cleared there, and have landed afterwards.
    fn make_nothing(&mut self, first: u64, count: u64, version: Version, segment: usize) {
        for block in first..first.saturating_add(count) {
            let entry = self.index.entry(block).or_default();
            if entry.live.is_none_or(|live| live.version < version) {
                entry.live = Some(Live { version, segment, at: None });
            }
        }
    }

    /// Takes the entries of a record that was found when the log was opened. Older records come
    /// first.
    pub fn recover(&mut self, segment: usize, sequence: u64, entries: &[(usize, LogEntry, u32)]) {
        let found = &mut self.segments[segment];
        if found.state == Use::Free {
            found.state = Use::Full;
            found.first = sequence;
            // The space between and after its records is unknown, and is not used.
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
