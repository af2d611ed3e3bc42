//! Pages of tags in memory: a write-back cache of bounded size, shared by a volume's channels.

use std::collections::HashMap;

use super::layout::{TAGS_PER_PAGE, set_tag_at, tag_at};
use crate::file::bits::Bits;
use crate::file::tagging::{NOTHING, PAGE_BYTES, Tag};

/// A page's place in memory.
pub type PageSlot = usize;

type PageContent = Box<[u8; PAGE_BYTES]>;

/// In memory: a place without a tag, in a page where each block has one. No block fits it.
const MISSING: Tag = Tag::MAX;

/// What a tag of zeroes in the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroTag {
    /// There is nothing: of the former format.
    Nothing,
    /// A tag is missing.
    Missing,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Here.
    Present(PageSlot),
    /// On its way in, by whichever channel.
    Loading,
    /// In the file only.
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Loading {
        /// What comes is of no use any more: it has become zeroes meanwhile.
        zeroed: bool,
    },
    Present,
}

struct Entry {
    page: u64,
    state: State,
    /// Since the hand came by.
    used: bool,
    /// The file has a place for it: it can always be written.
    has_place: bool,
    /// What is on its way to the file was zeroed meanwhile.
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
    /// Changed since it was last sent to the file.
    dirty: Bits,
    /// On its way to the file.
    writing: Bits,
}

impl Pages {
    /// No page, and room for so many; memory is taken as they come.
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

    /// Takes a place for an absent page, which the caller loads; `None` while every page is dirty
    /// or on its way.
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
        // Twice round: the first time may only forget which were used.
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

    /// A claimed page has come.
    pub fn loaded(&mut self, slot: PageSlot, content: &[u8]) {
        let entry = &mut self.entries[slot];
        match entry.state {
            State::Loading { zeroed: false } => {
                entry.content.copy_from_slice(content);
                // Of a hole nothing but zeroes comes.
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

    /// A claimed page is not there: it need not come, and says "nothing here".
    pub fn blank(&mut self, slot: PageSlot) {
        let entry = &mut self.entries[slot];
        entry.content.fill(0);
        entry.state = State::Present;
    }

    /// A claimed page does not come.
    pub fn not_loaded(&mut self, slot: PageSlot) {
        let entry = &mut self.entries[slot];
        entry.state = State::Free;
        self.by_page.remove(&entry.page);
        self.free.push(slot);
    }

    /// The content of a page that is here.
    pub fn content(&self, slot: PageSlot) -> &[u8; PAGE_BYTES] {
        &self.entries[slot].content
    }

    /// The content, to be changed.
    pub fn change(&mut self, slot: PageSlot) -> &mut [u8; PAGE_BYTES] {
        self.dirty.add(slot as u64);
        &mut self.entries[slot].content
    }

    /// Zeroes whatever is here, or on its way here, of these pages, as they are being zeroed in the
    /// file.
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
                    // What is on its way to the file may come after the zeroes.
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

    /// Whether the page in a place can be written whatever room there is.
    pub fn has_place(&self, slot: PageSlot) -> bool {
        self.entries[slot].has_place
    }

    /// Whether as much is dirty as should be: half, so that there is always something to evict.
    pub fn is_half_dirty(&self) -> bool {
        2 * self.dirty.count() > self.pages_max
    }

    /// A dirty page that is not on its way, from the hand on: the one that is used least, more or
    /// less.
    pub fn next_dirty(&self) -> Option<PageSlot> {
        let hand = self.hand as u64;
        let mut slots = self.dirty.within(hand..u64::MAX).chain(self.dirty.within(0..hand));
        slots.find(|slot| !self.writing.has(*slot)).map(|slot| slot as PageSlot)
    }

    /// What has to reach the file for all that is changed now to be there.
    pub fn unwritten(&self, slots: &mut Bits) {
        slots.copy_union(&self.dirty, &self.writing);
    }

    /// The pages that are dirty, or on their way to the file.
    pub fn unwritten_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.dirty.all().chain(self.writing.all()).map(|slot| self.entries[slot as usize].page)
    }

    /// Whether the page in a place is on its way to the file.
    pub fn is_writing(&self, slot: PageSlot) -> bool {
        self.writing.has(slot as u64)
    }

    /// Whether the page in a place is dirty.
    pub fn is_dirty(&self, slot: PageSlot) -> bool {
        self.dirty.has(slot as u64)
    }

    /// A page goes to the file. Two writes of one page at a time could end in either order.
    pub fn begin_writing(&mut self, slot: PageSlot) -> (u64, &[u8; PAGE_BYTES]) {
        debug_assert!(!self.is_writing(slot), "a page is written twice at a time");
        self.writing.add(slot as u64);
        self.dirty.remove(slot as u64);
        (self.entries[slot].page, &self.entries[slot].content)
    }

    /// A page has reached the file, or not. Says which page is in the file now; none if it was
    /// zeroed meanwhile.
    pub fn end_writing(&mut self, slot: PageSlot, written: bool) -> Option<u64> {
        self.writing.remove(slot as u64);
        let entry = &mut self.entries[slot];
        let is_current = !std::mem::take(&mut entry.outdated);
        entry.has_place |= written && is_current;
        // What never had a place has nothing in it.
        if !written && entry.has_place {
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
