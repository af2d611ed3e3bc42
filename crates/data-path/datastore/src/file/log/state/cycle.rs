//! The log's side of a destaging cycle: what the cycle takes, and what its end changes.

use strongroom_types::Extent;

use super::{Live, State, Use, extent_of};
use crate::file::known::REGION_BLOCKS;

/// A block that a cycle brings to the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::file::log) struct Planned {
    pub block: u64,
    pub live: Live,
}

impl State {
    /// The oldest full segments, with at most `blocks_max` blocks in all but at least one segment,
    /// and those of their entries that are still valid, by block. With `all`, the open segment is
    /// closed and included.
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

    /// The extents to allocate before these blocks are written, from the last to the first, up to
    /// the layer's end.
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

    /// Frees these segments, which the tail has durably passed. Their planned blocks are in the
    /// layer, and are overwritten there from now on.
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
}
