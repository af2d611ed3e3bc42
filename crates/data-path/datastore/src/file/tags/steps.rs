//! Advances requests: places for its tags and marks, then the data, then its tags, then the
//! comparison.
//!
//! The tags of a change are put into their pages once the data is written. If the write fails, the
//! pages still have the old tags, and reading the blocks shows what happened to them.

use strongroom_io::{FileOperation, IoError, Request, Slot};
use strongroom_memory::Buffer;

use super::channel::{FileWork, Next, Owner, STORES_AT_ONCE, TagsChannel};
use super::disk::{Shared, State};
use super::keys::TagError;
use super::layout::{TAGS_PER_PAGE, blocks, region_of, regions, set_tag_at};
use super::pages::{Found, PageSlot};
use super::request::{Active, Aim, Asker, Freeing, Step, Work};
use crate::file::tagging::{NOTHING, PAGE_BYTES, Tag};

/// Whether a request's aim is reached for all of its pages of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    All,
    NotYet,
}

impl Active {
    /// Whether it waits for marks.
    pub fn is_marking(&self) -> bool {
        matches!(self.work, Work::Write { step: Step::Marking, .. } | Work::Zero { step: Step::Marking, .. })
    }

    /// Takes the result of freeing a zeroing's whole pages of tags.
    pub fn freed(&mut self, result: Result<(), IoError>) {
        if let Work::Zero { freeing, .. } = &mut self.work {
            *freeing = Freeing::Done;
            self.error = self.error.or(result.err());
        }
    }

    fn set_step(&mut self, next: Step) {
        if let Work::Write { step, .. } | Work::Zero { step, .. } = &mut self.work {
            *step = next;
        }
    }
}

impl Shared {
    /// Computes the tags that these blocks must have.
    pub fn compute(&self, first: u64, buffer: &Buffer, tags: &mut Vec<Tag>) -> Result<(), IoError> {
        match self.keys.tags(&self.binding, first, buffer.bytes(), buffer.seals(), tags) {
            Ok(()) => Ok(()),
            Err(TagError::UnknownEpoch(epoch)) => Err(IoError::UnknownEpoch { block: first, epoch }),
            Err(TagError::Crypto(error)) => {
                tracing::error!(%error, "tags cannot be computed");
                Err(IoError::Cipher)
            }
        }
    }

    /// The tag of a block that is "nothing here".
    pub fn nothing(&self, block: u64) -> Result<Tag, IoError> {
        let Some(epoch) = self.absence else { return Ok(NOTHING) };
        match self.keys.nothing(&self.binding, epoch, block) {
            Ok(Some(tag)) => Ok(tag),
            Ok(None) => Err(IoError::UnknownEpoch { block, epoch }),
            Err(error) => {
                tracing::error!(%error, "a tag cannot be computed");
                Err(IoError::Cipher)
            }
        }
    }

    /// Whether a block matches its tag.
    fn fits(&self, block: u64, should: Tag, is: Tag) -> Result<bool, IoError> {
        if should == is {
            return Ok(true);
        }
        // Zeroes match "nothing here", whether the page does not exist or the tag says so.
        Ok(should == NOTHING && self.absence.is_some() && is == self.nothing(block)?)
    }

    /// A page whose blocks are all "nothing here".
    fn empty_page(&self, page: u64) -> Result<[u8; PAGE_BYTES], IoError> {
        let mut content = [0; PAGE_BYTES];
        for at in 0..TAGS_PER_PAGE {
            set_tag_at(&mut content, at as usize, self.nothing(page * TAGS_PER_PAGE + at)?);
        }
        Ok(content)
    }
}

impl TagsChannel {
    /// Advances a request as far as possible.
    pub(super) fn step(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        match request.work {
            Work::None | Work::Locking(_) | Work::Failed(_) => Next::Waits,
            Work::Read => self.step_read(slot, request, state),
            Work::Adopt => self.step_adopt(slot, request, state),
            Work::Write { durable, step } | Work::Zero { durable, step, .. } => match step {
                Step::Reserving => self.step_reserving(slot, request, state),
                Step::Marking => self.step_marking(slot, request, state),
                Step::Changing => self.step_changing(slot, request, state),
                Step::Tidying => self.step_tidying(slot, request, state, durable),
            },
            Work::Flush(number) => match state.passes.result(number) {
                Some(result) => Next::Ended(result),
                None => {
                    self.begin_pass(state);
                    Next::Stalled
                }
            },
        }
    }

    /// Reads data and tags concurrently.
    fn step_read(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        let placed = match request.error {
            None => self.place(Aim::Take, slot, request, state),
            Some(_) => Placed::NotYet,
        };
        match (request.returned, request.error) {
            (Some(Err(error)), _) | (Some(Ok(())), Some(error)) if request.stores == 0 => {
                Next::Ended(Err(error))
            }
            (Some(Ok(())), None) if placed == Placed::All && request.stores == 0 => Next::Verifies,
            (None, _) if placed == Placed::All || request.error.is_some() => Next::Waits,
            _ => Next::Stalled,
        }
    }

    /// Compares the blocks that were read with their tags. Returns those that do not match.
    pub(super) fn compare(&mut self, request: &mut Active) -> Result<Vec<u64>, IoError> {
        let Some(buffer) = &request.memory else { return Err(IoError::Closed) };
        let first = blocks(request.extent).start;
        self.shared.compute(first, buffer, &mut self.computed)?;
        let mut wrong = Vec::new();
        for ((should, is), block) in self.computed.iter().zip(&request.tags).zip(first..) {
            if !self.shared.fits(block, *should, *is)? {
                wrong.push(block);
            }
        }
        self.shared.counts.verified((self.computed.len() - wrong.len()) as u64);
        Ok(wrong)
    }

    /// Fails a read with a block that does not match, unless the block may have been in flight
    /// during a crash or failure.
    pub(super) fn judge(
        &mut self,
        slot: Slot,
        request: &mut Active,
        state: &mut State,
        wrong: Result<Vec<u64>, IoError>,
    ) -> Next {
        let wrong = match wrong {
            Ok(wrong) => wrong,
            Err(error) => return Next::Ended(Err(error)),
        };
        let mut settled = wrong.iter().filter(|block| !state.regions.is_unsettled(**block));
        if let Some(block) = settled.next().copied() {
            // Its tags may have been taken before the region was settled, or before another read
            // adopted the block.
            if !std::mem::replace(&mut request.looked_again, true) {
                request.placed = 0;
                return self.step_read(slot, request, state);
            }
            for block in std::iter::once(&block).chain(settled) {
                self.shared.counts.mismatched(&self.shared.binding, *block);
            }
            return Next::Ended(Err(IoError::Integrity { block }));
        }
        let (Some(first), Some(last)) = (wrong.first(), wrong.last()) else {
            state.regions.know(blocks(request.extent));
            return Next::Ended(Ok(()));
        };
        let in_flight = wrong.iter().filter(|block| !state.regions.is_in_doubt(**block)).count() as u64;
        self.shared.counts.adopted(in_flight);
        self.shared.counts.left_by_failures(wrong.len() as u64 - in_flight);
        if self.shared.read_only {
            return Next::Ended(Ok(()));
        }
        state.regions.begin_change(region_of(*first)..region_of(*last) + 1);
        state.regions.end_change(region_of(*first)..region_of(*last) + 1);
        request.work = Work::Adopt;
        // No write is concurrent, and another read that adopts the same block computes the same
        // tag.
        std::mem::swap(&mut request.tags, &mut self.computed);
        self.step_adopt(slot, request, state)
    }

    fn step_adopt(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        if request.error.is_none() && self.place(Aim::Put, slot, request, state) == Placed::NotYet {
            return Next::Stalled;
        }
        if request.stores > 0 {
            return Next::Waits;
        }
        match (request.error, request.asker) {
            (None, _) => {
                state.regions.know(blocks(request.extent));
                Next::Ended(Ok(()))
            }
            // A tag that cannot be put into its page is computed again by the next read.
            (Some(_), Asker::Submitter(_)) => Next::Ended(Ok(())),
            (Some(error), Asker::Settling | Asker::Doubt) => Next::Ended(Err(error)),
        }
    }

    /// Reserves places for the tags before anything is written: later there might be no room for
    /// them.
    fn step_reserving(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        let placed = match request.error {
            None => self.place(Aim::Reserve, slot, request, state),
            Some(_) => Placed::NotYet,
        };
        match request.error {
            _ if request.stores > 0 => Next::Waits,
            Some(error) => Next::Ended(Err(error)),
            None if placed == Placed::NotYet => Next::Stalled,
            None => {
                request.set_step(Step::Marking);
                self.step_marking(slot, request, state)
            }
        }
    }

    /// Waits until the regions are durably marked before anything changes.
    fn step_marking(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        if let Some(error) = request.error {
            return Next::Ended(Err(error));
        }
        let extent = request.extent;
        if !state.regions.want_marked(regions(extent)) {
            // A mark is a durable write.
            if state.passes.have_failed() {
                return Next::Ended(Err(IoError::FlushFailed));
            }
            if let Err(error) = self.mark(state) {
                return Next::Ended(Err(error));
            }
            return Next::Stalled;
        }
        state.regions.begin_change(regions(extent));
        request.set_step(Step::Changing);
        match &mut request.work {
            Work::Zero { may_unmap, .. } => {
                let may_unmap = *may_unmap;
                self.send_below(slot.tag(), Request::WriteZeroes { extent, may_unmap, durable: false });
            }
            _ => {
                if let Some(from) = request.memory.take() {
                    // The pass that follows makes it durable, with its tags.
                    self.send_below(slot.tag(), Request::Write { extent, from, durable: false });
                }
            }
        }
        self.step_changing(slot, request, state)
    }

    /// Writes the data, loads missing pages meanwhile, and then puts the tags in. The mark covers
    /// the time in which block and tag disagree.
    fn step_changing(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        let is_there = request.returned == Some(Ok(()));
        if is_there && request.error.is_none() {
            self.free_whole_pages(slot, request, state);
        }
        let placed = match request.error {
            None => self.place(if is_there { Aim::Put } else { Aim::Fetch }, slot, request, state),
            Some(_) => Placed::NotYet,
        };
        let is_freeing = matches!(request.work, Work::Zero { freeing: Freeing::UnderWay, .. });
        let (Some(returned), false, 0) = (request.returned, is_freeing, request.stores) else {
            return if placed == Placed::All || request.error.is_some() {
                Next::Waits
            } else {
                Next::Stalled
            };
        };
        if let Err(error) = returned.and(request.error.map_or(Ok(()), Err)) {
            return self.fail_change(slot, request, state, error);
        }
        if placed == Placed::NotYet {
            return Next::Stalled;
        }
        state.regions.know(blocks(request.extent));
        state.regions.end_change(regions(request.extent));
        if let Work::Zero { .. } = request.work {
            request.next_part();
            if !request.extent.is_empty() {
                return self.step_marking(slot, request, state);
            }
        }
        self.release(request.lock.take());
        request.set_step(Step::Tidying);
        if state.pages.is_half_dirty() {
            self.make_room(slot, request, state);
        }
        let durable =
            matches!(request.work, Work::Write { durable: true, .. } | Work::Zero { durable: true, .. });
        self.step_tidying(slot, request, state, durable)
    }

    /// Frees the pages of tags that a zeroing covers completely.
    fn free_whole_pages(&mut self, slot: Slot, request: &mut Active, state: &mut State) {
        let pages = request.whole_pages();
        let Work::Zero { freeing: freeing @ Freeing::NotYet, .. } = &mut request.work else { return };
        if pages.is_empty() {
            *freeing = Freeing::Done;
            return;
        }
        *freeing = Freeing::UnderWay;
        state.pages.zero(pages.clone());
        if let Some(presence) = &mut state.presence {
            presence.remove(pages.clone());
        }
        state.unsynced = true;
        let extent = self.shared.layout.place_of_pages(pages);
        // The sidecar of a layer that keeps its space keeps its own too.
        let free = match self.shared.limits().discards {
            true => FileOperation::Punch { extent },
            false => FileOperation::Zero { extent },
        };
        self.send(FileWork::Free { request: slot }, free);
    }

    /// Handles a failed change, whose blocks now have unknown content. They are examined before the
    /// failure is reported: then their content is known again, and later tampering is not mistaken
    /// for the result of the failure.
    fn fail_change(&mut self, slot: Slot, request: &mut Active, state: &mut State, error: IoError) -> Next {
        if matches!(request.work, Work::Zero { freeing: Freeing::Done, .. }) && state.presence.is_none() {
            // In the former format the file may still have tags that memory has dropped.
            state.regions.unsettle(regions(request.extent));
        }
        state.regions.doubt(blocks(request.extent));
        state.regions.end_change(regions(request.extent));
        self.release(request.lock.take());
        request.work = Work::Failed(error);
        self.look_at(slot, request.extent);
        Next::Waits
    }

    /// A writer that exceeds the bound of dirty tags helps to write them, and so waits.
    fn step_tidying(&mut self, slot: Slot, request: &mut Active, state: &mut State, durable: bool) -> Next {
        if request.stores > 0 {
            return Next::Waits;
        }
        if !durable {
            return Next::Ended(Ok(()));
        }
        request.work = Work::Flush(state.passes.next());
        self.step(slot, request, state)
    }

    /// Pursues an aim for the pages of a request's tags. Pages that are not in memory are loaded.
    fn place(&mut self, aim: Aim, slot: Slot, request: &mut Active, state: &mut State) -> Placed {
        request.aim_at(aim);
        // The pages that are being written may still make room.
        request.wants_room &= request.stores > 0;
        // All missing pages are loaded concurrently.
        let mut missing = 0;
        while let Some((at, page)) = request.next_page() {
            if !self.place_page(page, aim, slot, request, state) {
                missing |= 1 << at;
            }
            request.placed |= 1 << at;
        }
        request.placed &= !missing;
        if missing == 0 { Placed::All } else { Placed::NotYet }
    }

    /// Pursues the aim for one page. Returns whether it is done.
    fn place_page(
        &mut self,
        page: u64,
        aim: Aim,
        slot: Slot,
        request: &mut Active,
        state: &mut State,
    ) -> bool {
        let is_there = state.has_page(page);
        if !is_there && aim == Aim::Take {
            request.take_nothing(page);
            return true;
        }
        if !is_there && request.has_nothing_for(page) {
            return true;
        }
        let place = match state.pages.find(page) {
            Found::Present(place) => place,
            Found::Loading => return aim == Aim::Reserve,
            Found::Absent => match self.fetch(page, is_there, slot, request, state) {
                Some(place) => place,
                None => return aim == Aim::Reserve && is_there,
            },
        };
        match aim {
            Aim::Reserve => is_there || self.find_place(place, slot, request, state),
            Aim::Fetch => true,
            Aim::Take => {
                request.take_tags(page, state.pages.content(place));
                true
            }
            // In the former format, "nothing here" tags in a page without any other need no place
            // in the file.
            Aim::Put if state.presence.is_none() && request.agrees(page, state.pages.content(place)) => true,
            Aim::Put => self.find_place(place, slot, request, state) && self.put(page, place, request, state),
        }
    }

    /// Puts a request's tags into a page, which exists from then on.
    fn put(&mut self, page: u64, place: PageSlot, request: &mut Active, state: &mut State) -> bool {
        let shared = &self.shared;
        if let Some(presence) = state.presence.as_mut().filter(|presence| !presence.has(page)) {
            match shared.empty_page(page) {
                Ok(content) => *state.pages.change(place) = content,
                Err(error) => {
                    request.error = Some(error);
                    return false;
                }
            }
            presence.add(page);
        }
        let put = request.put_tags(page, state.pages.change(place), |block| shared.nothing(block));
        request.error = put.err();
        request.error.is_none()
    }

    /// Begins to load a page, or to make room for it. A page that does not exist is not loaded.
    fn fetch(
        &mut self,
        page: u64,
        is_there: bool,
        slot: Slot,
        request: &mut Active,
        state: &mut State,
    ) -> Option<PageSlot> {
        match state.pages.claim(page) {
            Some(place) if !is_there => {
                state.pages.blank(place);
                return Some(place);
            }
            Some(place) if !self.load(page, place) => state.pages.not_loaded(place),
            Some(_) => {}
            None => {
                request.wants_room = true;
                self.make_room(slot, request, state);
            }
        }
        None
    }

    /// Allocates a place in the file for a page, unless it has one. Otherwise a lack of room would
    /// fail a later flush instead of the write.
    fn find_place(&mut self, place: PageSlot, slot: Slot, request: &mut Active, state: &mut State) -> bool {
        // The sidecar of a layer whose space is allocated at once has its space too.
        if state.pages.has_place(place) || !self.shared.limits().discards {
            return true;
        }
        if !state.pages.is_writing(place) && self.store(state, place, Owner::Request(slot)) {
            request.wants_room = true;
            request.stores += 1;
        }
        false
    }

    /// Writes some dirty pages to the file. The request waits for them.
    fn make_room(&mut self, slot: Slot, request: &mut Active, state: &mut State) {
        if request.stores > 0 {
            return;
        }
        while request.stores < STORES_AT_ONCE
            && let Some(place) = state.pages.next_dirty()
        {
            if !self.store(state, place, Owner::Request(slot)) {
                return;
            }
            request.stores += 1;
        }
    }
}
