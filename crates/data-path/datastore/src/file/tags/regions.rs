//! Tracks which regions of a layer may disagree with their tags on disk, and which may stay so.
//!
//! - **Marked**: the file durably says that blocks of the region, or their tags, may be in flight.
//!   A region is marked before anything in it changes. The mark is removed when a flush has covered
//!   all of it and it has been idle since.
//! - **Unsettled**: it was marked when the volume was opened after a crash. A block whose tag does
//!   not match may then have been in flight, which cannot be told from tampering: it is accepted as
//!   it is (*adopted*).
//! - **In doubt**: the blocks of a failed change, until they have been read or written again.

use std::ops::Range;

use super::layout::{REGIONS_PER_MARKS_PAGE, region_of};
use crate::file::bits::Bits;

/// The state of one region.
#[derive(Clone, Copy, Default)]
struct Region {
    /// The era in which it was last written.
    era: u32,
    /// Requests that change it now.
    in_flight: u32,
}

/// All regions of a layer. 8 bytes each, which is half a byte for each MiB of the layer.
#[derive(Default)]
pub struct Regions {
    table: Vec<Region>,
    marked: Bits,
    /// Regions to be marked, for requests that wait.
    wanted: Bits,
    /// Regions that are being marked.
    sent: Bits,
    /// Whether a page of marks is being written. Only one may be: two could end in either order.
    writing: bool,
    unsettled: Bits,
    /// Blocks that a failed change may have altered or not.
    doubts: Vec<Range<u64>>,
    /// Pages of marks that have more marks in the file than needed.
    stale: Bits,
    era: u32,
    in_flight: u64,
    /// Counts changes, to know whether there have been any.
    changes: u64,
    /// Counts failures.
    failures: u64,
}

impl Regions {
    /// Notes a region that is marked in the file. After a crash it is unsettled; after a hand-over
    /// it is only marked.
    pub fn found_marked(&mut self, region: u64, unsettled: bool) {
        self.marked.add(region);
        if unsettled {
            self.unsettled.add(region);
        }
    }

    /// Requests marks for those of these regions that have none. Returns whether all are marked.
    pub fn want_marked(&mut self, regions: Range<u64>) -> bool {
        let mut all = true;
        for region in regions {
            if !self.marked.has(region) {
                all = false;
                if !self.sent.has(region) {
                    self.wanted.add(region);
                }
            }
        }
        all
    }

    /// The page of marks to write next, if any is wanted and none is being written.
    pub fn begin_marking(&mut self) -> Option<u64> {
        if self.writing {
            return None;
        }
        let marks_page = self.wanted.next(0)? / REGIONS_PER_MARKS_PAGE;
        self.writing = true;
        let wanted: Vec<u64> = self.wanted.within(of_page(marks_page)).collect();
        for region in wanted {
            self.wanted.remove(region);
            self.sent.add(region);
        }
        self.stale.remove(marks_page);
        Some(marks_page)
    }

    /// Ends the write of a page of marks, which has succeeded or not.
    pub fn end_marking(&mut self, durable: bool) {
        let sent = std::mem::take(&mut self.sent);
        self.writing = false;
        if durable {
            sent.all().for_each(|region| self.marked.add(region));
        } else if let Some(region) = sent.next(0) {
            // The file may now have these marks although they do not count: at worst it has too
            // many.
            self.stale.add(region / REGIONS_PER_MARKS_PAGE);
        }
    }

    /// Sets the bits of one sector of marks.
    pub fn fill_sector(&self, first_region: u64, bits: &mut [u8]) {
        bits.fill(0);
        let range = first_region..first_region + bits.len() as u64 * 8;
        for region in self.marked.within(range.clone()).chain(self.sent.within(range)) {
            let at = region - first_region;
            bits[(at / 8) as usize] |= 1 << (at % 8);
        }
    }

    fn touch(&mut self, regions: Range<u64>, change: impl Fn(&mut Region)) {
        if self.table.len() < regions.end as usize {
            self.table.resize(regions.end as usize, Region::default());
        }
        for region in &mut self.table[regions.start as usize..regions.end as usize] {
            region.era = self.era;
            change(region);
        }
        self.changes += 1;
    }

    /// Begins a change in these regions, all of which are marked.
    pub fn begin_change(&mut self, regions: Range<u64>) {
        debug_assert!(regions.clone().all(|region| self.marked.has(region)));
        self.in_flight += 1;
        self.touch(regions, |region| region.in_flight += 1);
    }

    /// Ends a change, with its tags updated in memory.
    pub fn end_change(&mut self, regions: Range<u64>) {
        self.in_flight -= 1;
        self.touch(regions, |region| region.in_flight -= 1);
    }

    /// Marks whole regions as unsettled after a failed change that left their content unknown.
    pub fn unsettle(&mut self, regions: Range<u64>) {
        regions.for_each(|region| self.unsettled.add(region));
        self.failures += 1;
    }

    /// Puts the blocks of a failed change in doubt.
    pub fn doubt(&mut self, blocks: Range<u64>) {
        self.know(blocks.clone());
        self.doubts.push(blocks);
    }

    /// Ends the doubt about these blocks: their content is known and matches their tags.
    pub fn know(&mut self, blocks: Range<u64>) {
        if self.doubts.is_empty() {
            return;
        }
        let left = |doubt: &Range<u64>| {
            [doubt.start..doubt.end.min(blocks.start), doubt.start.max(blocks.end)..doubt.end]
        };
        self.doubts = self.doubts.iter().flat_map(left).filter(|doubt| !doubt.is_empty()).collect();
    }

    /// Whether a change of a block has failed, and the block has not been examined yet.
    pub fn is_in_doubt(&self, block: u64) -> bool {
        self.doubts.iter().any(|doubt| doubt.contains(&block))
    }

    /// Whether a block need not match its tag.
    pub fn is_unsettled(&self, block: u64) -> bool {
        self.unsettled.has(region_of(block)) || self.is_in_doubt(block)
    }

    fn is_doubted(&self, region: u64) -> bool {
        self.doubts.iter().any(|doubt| (region_of(doubt.start)..=region_of(doubt.end - 1)).contains(&region))
    }

    fn may_be_unmarked(&self, region: u64) -> bool {
        !self.unsettled.has(region) && !self.is_doubted(region)
    }

    /// The first unsettled region from `from` on.
    pub fn next_unsettled(&self, from: u64) -> Option<u64> {
        self.unsettled.next(from)
    }

    /// The count of regions that are unsettled or have blocks in doubt.
    pub fn unsettled_count(&self) -> usize {
        self.unsettled.count()
            + self
                .marked
                .all()
                .filter(|region| !self.unsettled.has(*region) && self.is_doubted(*region))
                .count()
    }

    /// Settles a region whose blocks all match their tags, unless the count of failures has changed
    /// from `failures`.
    pub fn settle(&mut self, region: u64, failures: u64) {
        if self.failures == failures {
            self.unsettled.remove(region);
        }
    }

    /// The count of failed changes.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// The count of changes, and whether any is under way.
    pub fn changes(&self) -> (u64, bool) {
        (self.changes, self.in_flight > 0)
    }

    /// Begins a new era for the writes from now on.
    pub fn begin_era(&mut self) {
        self.era += 1;
    }

    /// Removes the marks of regions last written before the previous era, all of which a flush has
    /// made durable.
    pub fn unmark_quiet(&mut self) {
        let line = self.era.saturating_sub(1);
        let is_quiet = |region: &u64| {
            let known = self.table.get(*region as usize).copied().unwrap_or_default();
            known.in_flight == 0 && known.era < line && self.may_be_unmarked(*region)
        };
        let quiet: Vec<u64> = self.marked.all().filter(is_quiet).collect();
        self.unmark(&quiet);
    }

    /// Removes the marks of all settled regions: everything is durable, and no change follows.
    pub fn unmark_settled(&mut self) {
        let settled: Vec<u64> = self.marked.all().filter(|region| self.may_be_unmarked(*region)).collect();
        self.unmark(&settled);
    }

    fn unmark(&mut self, regions: &[u64]) {
        for region in regions {
            self.marked.remove(*region);
            self.stale.add(region / REGIONS_PER_MARKS_PAGE);
        }
    }

    /// The next page from which marks can be removed in the file, unless a page of marks is being
    /// written.
    pub fn begin_unmarking(&mut self) -> Option<u64> {
        if self.writing {
            return None;
        }
        let marks_page = self.stale.next(0)?;
        self.stale.remove(marks_page);
        self.writing = true;
        Some(marks_page)
    }

    /// Ends the write of that page. If it failed, the page stays to be written.
    pub fn end_unmarking(&mut self, marks_page: u64, written: bool) {
        self.writing = false;
        if !written {
            self.stale.add(marks_page);
        }
    }
}

fn of_page(marks_page: u64) -> Range<u64> {
    marks_page * REGIONS_PER_MARKS_PAGE..(marks_page + 1) * REGIONS_PER_MARKS_PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(regions: &Regions, first: u64) -> Vec<u64> {
        let mut bits = [0; 2];
        regions.fill_sector(first, &mut bits);
        (0..16).filter(|at| bits[(at / 8) as usize] >> (at % 8) & 1 == 1).map(|at| first + at).collect()
    }

    #[test]
    fn a_region_is_marked_when_its_page_is_durable() {
        let mut regions = Regions::default();
        assert!(!regions.want_marked(3..5));
        assert_eq!(regions.begin_marking(), Some(0));
        assert_eq!(marked(&regions, 0), [3, 4]);
        assert!(!regions.want_marked(4..6), "on its way is not there");
        assert_eq!(regions.begin_marking(), None, "one page at a time");
        regions.end_marking(true);
        assert!(regions.want_marked(3..5));
        assert_eq!(regions.begin_marking(), Some(0));
        regions.end_marking(false);
        assert!(!regions.want_marked(5..6));
        assert_eq!(marked(&regions, 0), [3, 4]);
        assert!(!regions.want_marked(REGIONS_PER_MARKS_PAGE..REGIONS_PER_MARKS_PAGE + 1));
        assert_eq!(regions.begin_marking(), Some(0));
        regions.end_marking(true);
        assert_eq!(regions.begin_marking(), Some(1));
    }

    #[test]
    fn only_the_quiet_and_settled_lose_their_mark() {
        let mut regions = Regions::default();
        for region in 0..4 {
            regions.found_marked(region, region == 3);
        }
        regions.begin_era();
        regions.begin_change(0..1);
        regions.end_change(0..1);
        regions.begin_change(1..2);
        regions.begin_era();
        regions.unmark_quiet();
        assert_eq!(marked(&regions, 0), [0, 1, 3], "what was not written in this life is quiet");
        regions.begin_era();
        regions.unmark_quiet();
        assert_eq!(marked(&regions, 0), [1, 3], "in flight, and unsettled");
        assert_eq!((regions.begin_unmarking(), regions.begin_unmarking()), (Some(0), None));
        assert!(!regions.want_marked(9..10));
        assert_eq!(regions.begin_marking(), None, "one write of marks at a time");
        regions.end_unmarking(0, true);
        assert_eq!((regions.begin_unmarking(), regions.begin_marking()), (None, Some(0)));
        regions.end_marking(false);
        regions.end_change(1..2);
        regions.unmark_settled();
        assert_eq!(marked(&regions, 0), [3]);
    }

    #[test]
    fn a_failure_while_a_region_is_settled_leaves_it_unsettled() {
        let mut regions = Regions::default();
        regions.found_marked(7, true);
        let failures = regions.failures();
        regions.unsettle(7..8);
        regions.settle(7, failures);
        assert!(regions.is_unsettled(7 * 4096));
        regions.settle(7, regions.failures());
        assert_eq!(regions.unsettled_count(), 0);
    }

    #[test]
    fn only_the_blocks_of_a_failed_change_are_in_doubt_until_they_are_known() {
        let mut regions = Regions::default();
        (0..3).for_each(|region| regions.found_marked(region, false));
        regions.doubt(4090..4100);
        assert!(regions.is_unsettled(4090) && !regions.is_unsettled(4089) && !regions.is_unsettled(4100));
        assert_eq!(regions.unsettled_count(), 2);
        regions.know(4092..4094);
        assert!(regions.is_in_doubt(4091) && !regions.is_in_doubt(4093) && regions.is_in_doubt(4094));
        regions.unmark_settled();
        assert_eq!(marked(&regions, 0), [0, 1]);
        regions.know(4000..4096);
        assert_eq!(regions.unsettled_count(), 1);
        regions.know(4096..5000);
        regions.unmark_settled();
        assert_eq!((regions.unsettled_count(), marked(&regions, 0)), (0, vec![]));
    }
}
