//! Pages of tags in memory: a write-back cache of bounded size, shared by a volume's channels.

use std::collections::HashMap;

use super::layout::{TAGS_PER_PAGE, set_tag_at, tag_at};
use crate::file::bits::Bits;
use crate::file::tagging::{NOTHING, PAGE_BYTES, Tag};

/// A page's place in memory.
pub type PageSlot = usize;

type PageContent = Box<[u8; PAGE_BYTES]>;

/// In memory: a missing tag in a page where each block should have one. No block matches it.
const MISSING: Tag = Tag::MAX;

/// The meaning of a tag of zeroes in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroTag {
    /// "Nothing here", in the former format.
    Nothing,
    /// A missing tag.
    Missing,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In memory.
    Present(PageSlot),
    /// Being loaded, by any channel.
    Loading,
    /// Only in the file.
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Loading {
        /// Whether the page was zeroed meanwhile, so that the loaded content is obsolete.
        zeroed: bool,
    },
    Present,
}

struct Entry {
    page: u64,
    state: State,
    /// Whether it was used since the hand passed.
    used: bool,
    /// Whether the file has space for it, so that it can always be written.
    has_place: bool,
    /// Whether the page was zeroed while an older content is being written to the file.
    outdated: bool,
    content: PageContent,
}

/// The pages in memory.
pub struct Pages {
    pages_max: usize,
    zero_tag: ZeroTag,
    entries: Vec<Entry>,
    by_page: HashMap<u64, PageSlot>,
    free: Vec<PageSlot>,
    /// Goes round in search of a page that was not used for long (the CLOCK algorithm).
    hand: PageSlot,
    /// Pages that changed since they were last sent to the file.
    dirty: Bits,
    /// Pages that are being written to the file.
    writing: Bits,
}

impl Pages {
    /// An empty cache for at most `pages_max` pages. Memory is allocated as they are loaded.
    pub fn new(pages_max: usize, zero_tag: ZeroTag) -> Self {
        Self {
            pages_max,
            zero_tag,
            entries: Vec::new(),
            by_page: HashMap::with_capacity(pages_max),
            free: Vec::new(),
            hand: 0,
            dirty: Bits::default(),
            writing: Bits::default(),
        }
    }

    /// Looks for a page.
    pub fn find(&mut self, page: u64) -> Found {
        let Some(slot) = self.by_page.get(&page) else { return Found::Absent };
        let entry = &mut self.entries[*slot];
        entry.used = true;
        match entry.state {
            State::Present => Found::Present(*slot),
            State::Loading { .. } | State::Free => Found::Loading,
        }
    }

    /// Claims a place for an absent page, which the caller loads; `None` while every page is dirty
    /// or being transferred.
    pub fn claim(&mut self, page: u64) -> Option<PageSlot> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.entries.len() < self.pages_max => {
                let content = Box::new([0; PAGE_BYTES]);
                self.entries.push(Entry {
                    page,
                    state: State::Free,
                    used: false,
                    has_place: false,
                    outdated: false,
                    content,
                });
                self.entries.len() - 1
            }
            None => self.evict()?,
        };
        let entry = &mut self.entries[slot];
        (entry.page, entry.state, entry.used) = (page, State::Loading { zeroed: false }, true);
        entry.has_place = false;
        self.by_page.insert(page, slot);
        Some(slot)
    }

    fn evict(&mut self) -> Option<PageSlot> {
        // Go round twice: the first time may only clear the `used` flags.
        for _ in 0..2 * self.entries.len() {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.entries.len();
            let busy = self.dirty.has(slot as u64) || self.writing.has(slot as u64);
            let entry = &mut self.entries[slot];
            if busy || entry.state != State::Present {
                continue;
            }
            if !std::mem::take(&mut entry.used) {
                self.by_page.remove(&entry.page);
                return Some(slot);
            }
        }
        None
    }

    /// Takes the content of a claimed page.
    pub fn loaded(&mut self, slot: PageSlot, content: &[u8]) {
        let entry = &mut self.entries[slot];
        match entry.state {
            State::Loading { zeroed: false } => {
                entry.content.copy_from_slice(content);
                // A hole reads as zeroes.
                entry.has_place = content.iter().any(|byte| *byte != 0);
                if self.zero_tag == ZeroTag::Missing {
                    for at in 0..TAGS_PER_PAGE as usize {
                        if tag_at(content, at) == NOTHING {
                            set_tag_at(&mut entry.content[..], at, MISSING);
                        }
                    }
                }
            }
            _ => entry.content.fill(0),
        }
        entry.state = State::Present;
    }

    /// Fills a claimed page that does not exist: its blocks are all "nothing here", and nothing is
    /// loaded.
    pub fn blank(&mut self, slot: PageSlot) {
        let entry = &mut self.entries[slot];
        entry.content.fill(0);
        entry.state = State::Present;
    }

    /// Releases a claimed page that could not be loaded.
    pub fn not_loaded(&mut self, slot: PageSlot) {
        let entry = &mut self.entries[slot];
        entry.state = State::Free;
        self.by_page.remove(&entry.page);
        self.free.push(slot);
    }

    /// The content of a page in memory.
    pub fn content(&self, slot: PageSlot) -> &[u8; PAGE_BYTES] {
        &self.entries[slot].content
    }

    /// The content, mutable; marks the page as dirty.
    pub fn change(&mut self, slot: PageSlot) -> &mut [u8; PAGE_BYTES] {
        self.dirty.add(slot as u64);
        &mut self.entries[slot].content
    }

    /// Zeroes those of these pages that are in memory or being loaded, as they are being zeroed in
    /// the file.
    pub fn zero(&mut self, pages: std::ops::Range<u64>) {
        for (slot, entry) in self.entries.iter_mut().enumerate() {
            if !pages.contains(&entry.page) {
                continue;
            }
            match &mut entry.state {
                State::Free => {}
                State::Loading { zeroed } => *zeroed = true,
                State::Present => {
                    entry.content.fill(0);
                    entry.has_place = false;
                    self.dirty.remove(slot as u64);
                    // The write under way may land after the zeroes.
                    if self.writing.has(slot as u64) {
                        entry.outdated = true;
                        if self.zero_tag == ZeroTag::Nothing {
                            self.dirty.add(slot as u64);
                        }
                    }
                }
            }
        }
    }

    /// Whether the page in a place can be written even if the file system is full.
    pub fn has_place(&self, slot: PageSlot) -> bool {
        self.entries[slot].has_place
    }

    /// Whether more than half of the pages are dirty. That is the limit, so that there is always a
    /// page to evict.
    pub fn is_half_dirty(&self) -> bool {
        2 * self.dirty.count() > self.pages_max
    }

    /// The next dirty page from the hand on that is not being written: roughly the least used one.
    pub fn next_dirty(&self) -> Option<PageSlot> {
        let hand = self.hand as u64;
        let mut slots = self.dirty.within(hand..u64::MAX).chain(self.dirty.within(0..hand));
        slots.find(|slot| !self.writing.has(*slot)).map(|slot| slot as PageSlot)
    }

    /// Collects the pages that must reach the file for all present changes to be in it.
    pub fn unwritten(&self, slots: &mut Bits) {
        slots.copy_union(&self.dirty, &self.writing);
    }

    /// The pages that are dirty or being written to the file.
    pub fn unwritten_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.dirty.all().chain(self.writing.all()).map(|slot| self.entries[slot as usize].page)
    }

    /// Whether the page in a place is being written to the file.
    pub fn is_writing(&self, slot: PageSlot) -> bool {
        self.writing.has(slot as u64)
    }

    /// Whether the page in a place is dirty.
    pub fn is_dirty(&self, slot: PageSlot) -> bool {
        self.dirty.has(slot as u64)
    }

    /// Begins to write a page to the file. Only one write of a page may be under way: two could end
    /// in either order.
    pub fn begin_writing(&mut self, slot: PageSlot) -> (u64, &[u8; PAGE_BYTES]) {
        debug_assert!(!self.is_writing(slot), "a page is written twice at a time");
        self.writing.add(slot as u64);
        self.dirty.remove(slot as u64);
        (self.entries[slot].page, &self.entries[slot].content)
    }

    /// Ends the write of a page, which has succeeded or not. Returns the page that is now in the
    /// file; `None` if it was zeroed meanwhile.
    pub fn end_writing(&mut self, slot: PageSlot, written: bool) -> Option<u64> {
        self.writing.remove(slot as u64);
        let entry = &mut self.entries[slot];
        let is_current = !std::mem::take(&mut entry.outdated);
        entry.has_place |= written && is_current;
        // A page of zeroes without space in the file holds nothing yet: it was written to get its
        // place, and the request that wanted it fails.
        if !written && (entry.has_place || entry.content.iter().any(|byte| *byte != 0)) {
            self.dirty.add(slot as u64);
        }
        (written && is_current).then_some(entry.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pages: &mut Pages, page: u64) -> PageSlot {
        let slot = pages.claim(page).unwrap();
        assert_eq!(pages.find(page), Found::Loading);
        pages.loaded(slot, &[page as u8; PAGE_BYTES]);
        assert_eq!(pages.find(page), Found::Present(slot));
        slot
    }

    /// In a sidecar whose space is allocated at once, no page is written to get its place.
    #[test]
    fn tags_whose_first_write_fails_are_written_again() {
        let mut pages = Pages::new(3, ZeroTag::Missing);
        let (tags, nothing) = (pages.claim(1).unwrap(), pages.claim(2).unwrap());
        for slot in [tags, nothing] {
            pages.blank(slot);
        }
        pages.change(tags)[0] = 9;
        for slot in [tags, nothing] {
            pages.begin_writing(slot);
            assert_eq!(pages.end_writing(slot, false), None);
        }
        assert!(pages.is_dirty(tags) && !pages.is_dirty(nothing));
    }

    #[test]
    fn only_what_the_file_has_is_evicted() {
        let mut pages = Pages::new(3, ZeroTag::Nothing);
        let (dirty, writing, clean) = (load(&mut pages, 1), load(&mut pages, 2), load(&mut pages, 3));
        pages.change(dirty)[0] = 9;
        pages.change(writing)[0] = 9;
        pages.begin_writing(writing);
        assert_eq!(load(&mut pages, 4), clean);
        assert_eq!(pages.find(3), Found::Absent);
        assert_eq!(pages.next_dirty(), Some(dirty));
        assert!(!pages.is_half_dirty());
        pages.change(clean);
        assert_eq!(pages.claim(5), None);
        pages.end_writing(writing, true);
        assert_eq!(load(&mut pages, 5), writing);
        assert_eq!(pages.content(dirty)[0], 9);
    }

    #[test]
    fn a_failed_write_leaves_a_page_dirty_and_a_change_meanwhile_too() {
        let mut pages = Pages::new(3, ZeroTag::Nothing);
        let slot = load(&mut pages, 1);
        assert!(pages.has_place(slot));
        pages.change(slot);
        pages.begin_writing(slot);
        pages.end_writing(slot, false);
        assert!(pages.is_dirty(slot));
        pages.begin_writing(slot);
        pages.change(slot);
        pages.end_writing(slot, true);
        assert!(pages.is_dirty(slot) && !pages.is_writing(slot));
    }

    #[test]
    fn pages_are_zeroed_also_on_their_way_in() {
        let mut pages = Pages::new(3, ZeroTag::Nothing);
        let here = load(&mut pages, 1);
        pages.change(here);
        let coming = pages.claim(2).unwrap();
        pages.zero(1..3);
        pages.loaded(coming, &[7; PAGE_BYTES]);
        for slot in [here, coming] {
            let is_zero = pages.content(slot).iter().all(|byte| *byte == 0);
            assert!(is_zero && !pages.is_dirty(slot) && !pages.has_place(slot));
        }
        pages.change(here);
        pages.begin_writing(here);
        pages.zero(1..2);
        assert!(pages.is_dirty(here), "what is on its way may come after the zeroes");
        pages.end_writing(here, true);
        let failed = pages.claim(3).unwrap();
        pages.not_loaded(failed);
        assert_eq!(pages.find(3), Found::Absent);
        assert_eq!(pages.claim(4), Some(failed));
    }

    #[test]
    fn a_page_that_is_there_has_a_tag_for_each_block() {
        let mut pages = Pages::new(3, ZeroTag::Missing);
        let slot = pages.claim(1).unwrap();
        let mut content = [0; PAGE_BYTES];
        content[16] = 7;
        pages.loaded(slot, &content);
        assert_eq!((tag_at(pages.content(slot), 0), tag_at(pages.content(slot), 1)), (MISSING, 7));
        let blank = pages.claim(2).unwrap();
        pages.blank(blank);
        assert_eq!((pages.find(2), tag_at(pages.content(blank), 0)), (Found::Present(blank), NOTHING));
    }

    #[test]
    fn what_was_zeroed_on_its_way_to_the_file_is_not_there() {
        let mut pages = Pages::new(3, ZeroTag::Missing);
        let slot = load(&mut pages, 1);
        pages.change(slot);
        pages.begin_writing(slot);
        pages.zero(1..2);
        assert!(!pages.is_dirty(slot), "what lies there says nothing");
        pages.change(slot);
        assert_eq!(pages.end_writing(slot, true), None);
        assert!(!pages.has_place(slot) && pages.is_dirty(slot));
        pages.begin_writing(slot);
        assert_eq!(pages.end_writing(slot, true), Some(1));
    }
}
