//! Tracks which pages of tags exist, and which changes must be written to the file.
//!
//! All blocks of a page that does not exist are "nothing here", so presence must be authenticated:
//! the bits lie in tagged sectors. If a sector does not verify, all of its pages count as existing,
//! and their blocks must match their tags. A bit is set in the file only when the page's tags are
//! durable; a pass ensures that, and until its end the region's mark covers any state that a power
//! cut leaves.

use std::ops::Range;

use super::layout::{PAGE_DATA_BYTES, PAGES_PER_PRESENCE_PAGE};
use crate::file::bits::Bits;
use crate::file::tagging::{PAGE_BYTES, bits_mut};

/// The pages of tags that exist.
#[derive(Default)]
pub struct Presence {
    present: Bits,
    /// Pages that exist, but whose tags have not reached the file yet.
    unstored: Bits,
    /// Pages of presence that are out of date in the file.
    stale: Bits,
}

/// A page of presence to be written to the file, without its tags.
pub struct PresencePage {
    pub number: u64,
    pub content: Box<[u8; PAGE_BYTES]>,
}

impl Presence {
    /// Notes a page that exists according to the file.
    pub fn found(&mut self, page: u64) {
        self.present.add(page);
    }

    /// Notes pages of tags whose presence in the file is damaged: they count as existing.
    pub fn found_damaged(&mut self, pages: Range<u64>) {
        if let Some(first) = pages.clone().next() {
            self.stale.add(first / PAGES_PER_PRESENCE_PAGE);
        }
        pages.for_each(|page| self.present.add(page));
    }

    /// Whether a page exists.
    pub fn has(&self, page: u64) -> bool {
        self.present.has(page)
    }

    /// The existing pages of a range.
    pub fn within(&self, pages: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.present.within(pages)
    }

    /// Notes that a page exists in memory from now on.
    pub fn add(&mut self, page: u64) {
        if !self.present.has(page) {
            self.present.add(page);
            self.unstored.add(page);
            self.stale.add(page / PAGES_PER_PRESENCE_PAGE);
        }
    }

    /// Removes pages all of whose blocks are "nothing here".
    pub fn remove(&mut self, pages: Range<u64>) {
        let gone: Vec<u64> = self.present.within(pages).collect();
        for page in gone {
            self.present.remove(page);
            self.unstored.remove(page);
            self.stale.add(page / PAGES_PER_PRESENCE_PAGE);
        }
    }

    /// Notes that a page's tags are in the file, though not yet durable.
    pub fn stored(&mut self, page: u64) {
        self.unstored.remove(page);
    }

    /// Whether the file is out of date.
    pub fn is_stale(&self) -> bool {
        self.stale.count() > 0
    }

    /// Takes the pages of presence to be written once a sync that begins now has succeeded.
    pub fn take_unsaid(&mut self) -> Vec<PresencePage> {
        let stale = std::mem::take(&mut self.stale);
        stale.all().map(|number| self.page(number)).collect()
    }

    fn page(&mut self, number: u64) -> PresencePage {
        let mut content = Box::new([0; PAGE_BYTES]);
        for (first, bits) in bits_mut(number, &mut content[..]) {
            for page in self.present.within(first..first + bits.len() as u64 * 8) {
                if self.unstored.has(page) {
                    self.stale.add(number);
                } else {
                    let at = page - first;
                    bits[(at / 8) as usize] |= 1 << (at % 8);
                }
            }
        }
        PresencePage { number, content }
    }

    /// Notes that a page of presence was not written.
    pub fn not_said(&mut self, number: u64) {
        self.stale.add(number);
    }
}

/// The pages of tags that one sector of presence covers, limited to a layer of `layer_bytes` bytes.
pub fn pages_of_sector(first: u64, count: u64, layer_bytes: u64) -> Range<u64> {
    let pages = layer_bytes.div_ceil(PAGE_DATA_BYTES);
    first.min(pages)..(first + count).min(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(presence: &mut Presence) -> Vec<(u64, Vec<usize>)> {
        let pages = presence.take_unsaid();
        let bits = |page: &PresencePage| {
            (0..8 * PAGE_BYTES).filter(|at| page.content[at / 8] >> (at % 8) & 1 == 1).collect()
        };
        pages.iter().map(|page| (page.number, bits(page))).collect()
    }

    /// Where the bit of the first page stands: behind the tag of its sector.
    const FIRST: usize = 16 * 8;

    #[test]
    fn the_file_is_told_of_what_it_has_and_of_no_more() {
        let mut presence = Presence::default();
        presence.found(1);
        assert_eq!(said(&mut presence), []);
        presence.add(2);
        presence.add(3);
        presence.stored(3);
        assert!(presence.has(2) && presence.is_stale());
        assert_eq!(said(&mut presence), [(0, vec![FIRST + 1, FIRST + 3])]);
        assert!(presence.is_stale(), "of page 2 it is still to be told");
        presence.stored(2);
        assert_eq!(said(&mut presence), [(0, vec![FIRST + 1, FIRST + 2, FIRST + 3])]);
        assert!(!presence.is_stale());
        presence.not_said(0);
        presence.add(4);
        presence.remove(1..5);
        assert_eq!(said(&mut presence), [(0, vec![])]);
        assert_eq!(said(&mut presence), []);
    }

    #[test]
    fn a_damaged_sector_takes_nothing_away() {
        let mut presence = Presence::default();
        presence.found_damaged(pages_of_sector(3968, 3968, 4000 << 20));
        assert!(presence.has(3968) && presence.has(3999) && !presence.has(4000) && !presence.has(3967));
        assert_eq!(said(&mut presence)[0].1.len(), 32);
        presence.found_damaged(pages_of_sector(3968, 3968, 1 << 20));
        assert!(!presence.is_stale());
    }
}
