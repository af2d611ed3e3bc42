//! The state of a request in a channel.

use strongroom_io::{IoError, Lock, Request, Sealed};
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use super::layout::{PAGE_DATA_BYTES, REGION_BYTES, TAGS_PER_PAGE, blocks, pages, set_tag_at, tag_at};
use super::passes::PassNumber;
use crate::file::tagging::{NOTHING, Tag};

/// The most bytes that are zeroed at a time: 1 GiB, so that a discard of the whole disk does not
/// mark all of it at once.
const ZERO_AT_ONCE: u64 = 64 * REGION_BYTES;

/// The origin of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asker {
    /// The user of the disk, under this tag.
    Submitter(u64),
    /// The settling after a crash.
    #[default]
    Settling,
    /// The examination of a failed change's blocks.
    Doubt,
}

/// What a request does with its pages of tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// Gives each page that will exist a place in the file. Pages that have one are only
    /// prefetched.
    #[default]
    Reserve,
    /// Loads them into memory.
    Fetch,
    /// Reads the tags from them.
    Take,
    /// Writes the tags into them.
    Put,
}

/// A request under way.
#[derive(Default)]
pub struct Active {
    pub asker: Asker,
    /// Its extent; for a zeroing, the part that is being done.
    pub extent: Extent,
    pub lock: Option<Lock>,
    pub work: Work,
    pub memory: Option<Buffer>,
    /// The tags of its blocks: those that a read must match, or those that a write leaves.
    pub tags: Vec<Tag>,
    /// What it is doing with its pages of tags.
    pub aim: Aim,
    /// The pages for which that is done, one bit each from the first on.
    pub placed: u8,
    /// Whether a read that did not match has reread its tags.
    pub looked_again: bool,
    /// The result from the disk below.
    pub returned: Option<Result<(), IoError>>,
    /// The error with which it fails once none of its operations is under way.
    pub error: Option<IoError>,
    /// The count of pages that it is writing to the file to make room for others.
    pub stores: u32,
    /// Whether it must wait for room for a page.
    pub wants_room: bool,
    /// Whether it is in the list of requests that are tried again after each change.
    pub stalled: bool,
}

/// The work of a request.
#[derive(Default)]
pub enum Work {
    #[default]
    None,
    /// Waits for its lock.
    Locking(Request<Sealed>),
    Read,
    /// A read whose blocks are accepted as they are.
    Adopt,
    Write {
        durable: bool,
        step: Step,
    },
    Zero {
        /// The rest that follows.
        rest: Extent,
        may_unmap: bool,
        durable: bool,
        step: Step,
        /// The progress of freeing its whole pages of tags.
        freeing: Freeing,
    },
    /// Waits for a pass.
    Flush(PassNumber),
    /// A failed change, whose blocks are examined before the failure is reported.
    Failed(IoError),
}

/// The progress of freeing whole pages of tags that no longer cover any block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freeing {
    /// The blocks are not zeroes yet.
    #[default]
    NotYet,
    /// Their space is being freed.
    UnderWay,
    Done,
}

/// The progress of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// The tags may not have their places yet.
    #[default]
    Reserving,
    /// Its regions are not marked yet.
    Marking,
    /// Data is being written, and then its tags are put into their pages.
    Changing,
    /// It is done, and pages are being written to the file to make room for others.
    Tidying,
}

impl Active {
    /// Goes to the next part of a zeroing; an empty one is the end.
    pub fn next_part(&mut self) {
        let Work::Zero { rest, step, freeing, .. } = &mut self.work else { return };
        let end = (rest.offset() / ZERO_AT_ONCE + 1) * ZERO_AT_ONCE;
        self.extent = rest.intersection(Extent::between(rest.offset(), end));
        *rest = Extent::between(self.extent.end().min(rest.end()), rest.end());
        (*step, *freeing) = (Step::Marking, Freeing::NotYet);
        (self.aim, self.placed, self.returned) = (Aim::default(), 0, None);
    }

    /// The pages of tags that a zeroing covers completely.
    pub fn whole_pages(&self) -> std::ops::Range<u64> {
        match &self.work {
            Work::Zero { .. } => pages(self.extent.narrowed_to(PAGE_DATA_BYTES)),
            _ => 0..0,
        }
    }

    /// The next page of tags that is not done, with its index among those of the request, which are
    /// at most three.
    pub fn next_page(&self) -> Option<(u8, u64)> {
        let (all, whole) = (pages(self.extent), self.whole_pages());
        let (before, after) =
            if whole.is_empty() { (all, 0..0) } else { (all.start..whole.start, whole.end..all.end) };
        (0..).zip(before.chain(after)).find(|(at, _)| self.placed >> at & 1 == 0)
    }

    /// Whether a page is one of those that are not done.
    pub fn needs_page(&self, page: u64) -> bool {
        let from = self.next_page().map_or(u64::MAX, |(_, next)| next);
        (from..pages(self.extent).end).contains(&page)
    }

    /// The places in a page of the request's blocks, and the index of the first in the request.
    fn places(&self, page: u64) -> (std::ops::Range<usize>, usize) {
        let (blocks, first) = (blocks(self.extent), page * TAGS_PER_PAGE);
        let (from, to) = (blocks.start.max(first), blocks.end.min(first + TAGS_PER_PAGE));
        ((from - first) as usize..(to - first) as usize, (from - blocks.start) as usize)
    }

    /// Sets the aim, and starts over with its pages if the aim is new.
    pub fn aim_at(&mut self, aim: Aim) {
        if self.aim != aim {
            (self.aim, self.placed) = (aim, 0);
        }
    }

    /// Takes its blocks' tags from a page that does not exist.
    pub fn take_nothing(&mut self, page: u64) {
        let (places, first) = self.places(page);
        self.tags[first..first + places.len()].fill(NOTHING);
    }

    /// Whether all of its blocks in a page are "nothing here".
    pub fn has_nothing_for(&self, page: u64) -> bool {
        let (places, first) = self.places(page);
        (first..first + places.len()).all(|at| self.tags.get(at).is_none_or(|tag| *tag == NOTHING))
    }

    /// Reads its blocks' tags from a page.
    pub fn take_tags(&mut self, page: u64, content: &[u8]) {
        let (places, first) = self.places(page);
        for (place, tag) in places.zip(&mut self.tags[first..]) {
            *tag = tag_at(content, place);
        }
    }

    /// Whether a page has its blocks' tags already.
    pub fn agrees(&self, page: u64, content: &[u8]) -> bool {
        let (places, first) = self.places(page);
        let mut pairs = (first..).zip(places);
        pairs.all(|(at, place)| tag_at(content, place) == self.tags.get(at).copied().unwrap_or(NOTHING))
    }

    /// Puts its blocks' tags into a page; those of a zeroing are `nothing`, as for any absent
    /// block.
    pub fn put_tags(
        &self,
        page: u64,
        content: &mut [u8],
        nothing: impl Fn(u64) -> Result<Tag, IoError>,
    ) -> Result<(), IoError> {
        let (places, first) = self.places(page);
        for (at, place) in (first..).zip(places) {
            let tag = match self.tags.get(at).copied().unwrap_or(NOTHING) {
                NOTHING => nothing(page * TAGS_PER_PAGE + place as u64)?,
                tag => tag,
            };
            set_tag_at(content, place, tag);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages_of(mut active: Active) -> Vec<u64> {
        std::iter::from_fn(|| {
            let (at, page) = active.next_page()?;
            active.placed |= 1 << at;
            Some(page)
        })
        .collect()
    }

    #[test]
    fn a_transfer_sees_to_all_of_its_pages() {
        let extent = Extent::between(PAGE_DATA_BYTES - 4096, 2 * PAGE_DATA_BYTES + 4096);
        assert_eq!(pages_of(Active { extent, work: Work::Read, ..Active::default() }), [0, 1, 2]);
    }

    #[test]
    fn a_zeroing_sees_to_the_pages_that_it_covers_in_part() {
        let zero = |start, end| {
            let rest = Extent::between(start, end);
            let (step, freeing) = (Step::Marking, Freeing::NotYet);
            let work = Work::Zero { rest, may_unmap: true, durable: false, step, freeing };
            let mut active = Active { work, ..Active::default() };
            active.next_part();
            active
        };
        let page = PAGE_DATA_BYTES;
        let whole = |active: &Active| (active.whole_pages().count(), active.extent.length());
        let active = zero(page - 4096, 5 * page + 4096);
        assert_eq!((whole(&active), pages_of(active)), ((4, 4 * page + 8192), vec![0, 5]));
        let active = zero(page, 5 * page);
        assert_eq!((whole(&active), pages_of(active)), ((4, 4 * page), vec![]));
        let active = zero(page + 4096, page + 8192);
        assert_eq!((whole(&active).0, pages_of(active)), (0, vec![1]));
        let active = zero(page - 4096, page + 4096);
        assert_eq!((whole(&active).0, pages_of(active)), (0, vec![0, 1]));
        let mut active = zero(ZERO_AT_ONCE - 4096, 3 * ZERO_AT_ONCE + 4096);
        let mut parts = vec![];
        while !active.extent.is_empty() {
            parts.push(active.extent.length());
            active.next_part();
        }
        assert_eq!(parts, [4096, ZERO_AT_ONCE, ZERO_AT_ONCE, 4096]);
    }

    #[test]
    fn tags_go_to_their_places() {
        let extent = Extent::between(PAGE_DATA_BYTES - 4096, PAGE_DATA_BYTES + 8192);
        let mut active = Active { extent, tags: vec![7, 8, 9], work: Work::Read, ..Active::default() };
        let (mut first, mut second) = ([0; 4096], [0; 4096]);
        let nothing = |block| Ok(1000 + Tag::from(block));
        active.put_tags(0, &mut first, nothing).unwrap();
        active.put_tags(1, &mut second, nothing).unwrap();
        assert_eq!((tag_at(&first, 255), tag_at(&second, 0), tag_at(&second, 1)), (7, 8, 9));
        active.tags = vec![0; 3];
        active.take_tags(1, &second);
        active.take_tags(0, &first);
        assert_eq!(active.tags, [7, 8, 9]);
        active.take_nothing(1);
        assert_eq!(active.tags, [7, 0, 0]);
        assert!(active.has_nothing_for(1) && !active.has_nothing_for(0));
        active.put_tags(1, &mut second, nothing).unwrap();
        assert_eq!((tag_at(&second, 0), tag_at(&second, 1), tag_at(&second, 2)), (1256, 1257, 0));
    }
}
