//! How far a request can go: marks, then data and tags side by side, then the comparison.

use strongroom_io::{FileOperation, IoError, Request, Slot};
use strongroom_memory::Buffer;

use super::channel::{FileWork, Next, Owner, STORES_AT_ONCE, TagsChannel, place_of_pages};
use super::disk::{Shared, State};
use super::keys::UnknownEpoch;
use super::layout::{PAGE_DATA_BYTES, blocks, pages, region_of, regions};
use super::pages::{Found, PageSlot};
use super::request::{Active, Step, Work};
use crate::file::tagging::Tag;

/// Whether all of a request's pages of tags have been seen to.
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

    /// Whole pages of a zeroing's tags are freed, or not.
    pub fn freed(&mut self, result: Result<(), IoError>) {
        if let Work::Zero { freeing, .. } = &mut self.work {
            *freeing = false;
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
    /// What the tags of these blocks must be.
    pub fn compute(&self, first: u64, buffer: &Buffer, tags: &mut Vec<Tag>) -> Result<(), IoError> {
        match self.keys.tags(&self.binding, first, buffer.bytes(), buffer.seals(), tags) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(UnknownEpoch(epoch))) => Err(IoError::UnknownEpoch { block: first, epoch }),
            Err(error) => {
                tracing::error!(%error, "tags cannot be computed");
                Err(IoError::Cipher)
            }
        }
    }
}

impl TagsChannel {
    /// Goes on with a request as far as it can.
    pub(super) fn step(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        match request.work {
            Work::None | Work::Locking(_) => Next::Waits,
            Work::Read => self.step_read(slot, request, state),
            Work::Adopt => self.step_adopt(slot, request, state),
            Work::Write { durable, step } | Work::Zero { durable, step, .. } => match step {
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

    /// Data and tags are read side by side.
    fn step_read(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        let placed = match request.error {
            None => self.place(slot, request, state),
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

    /// Compares the blocks that were read with their tags; says which are wrong, or what else is.
    pub(super) fn compare(&mut self, request: &mut Active) -> Result<Vec<u64>, IoError> {
        let Some(buffer) = &request.memory else { return Err(IoError::Closed) };
        let first = blocks(request.extent).start;
        self.shared.compute(first, buffer, &mut self.computed)?;
        let pairs = self.computed.iter().zip(&request.tags).zip(first..);
        let wrong: Vec<u64> =
            pairs.filter(|((should, is), _)| should != is).map(|(_, block)| block).collect();
        self.shared.counts.verified((self.computed.len() - wrong.len()) as u64);
        Ok(wrong)
    }

    /// A block that does not match fails the read, unless it may be what was in flight when things went wrong.
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
        let mut settled = wrong.iter().filter(|block| !state.regions.is_unsettled(region_of(**block)));
        if let Some(block) = settled.next().copied() {
            // Its tags may have been taken before the region was settled, and by another read that adopted the block.
            if !std::mem::replace(&mut request.looked_again, true) {
                request.placed = 0;
                return self.step_read(slot, request, state);
            }
            for block in std::iter::once(&block).chain(settled) {
                self.shared.counts.mismatched(&self.shared.binding, *block);
            }
            return Next::Ended(Err(IoError::Integrity { block }));
        }
        let (Some(first), Some(last)) = (wrong.first(), wrong.last()) else { return Next::Ended(Ok(())) };
        self.shared.counts.adopted(wrong.len() as u64);
        if self.shared.read_only {
            return Next::Ended(Ok(()));
        }
        state.regions.begin_change(region_of(*first)..region_of(*last) + 1);
        state.regions.end_change(region_of(*first)..region_of(*last) + 1);
        request.work = Work::Adopt;
        request.placed = 0;
        // No write is beside it, and another read that adopts the same computes the same.
        std::mem::swap(&mut request.tags, &mut self.computed);
        self.step_adopt(slot, request, state)
    }

    fn step_adopt(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        // A tag that does not get into its page is computed again by the next read.
        if request.error.is_none() && self.place(slot, request, state) == Placed::NotYet {
            return Next::Stalled;
        }
        if request.stores > 0 { Next::Waits } else { Next::Ended(Ok(())) }
    }

    /// Nothing changes before its region is marked, durably.
    fn step_marking(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        if let Some(error) = request.error {
            return Next::Ended(Err(error));
        }
        let extent = request.extent;
        if !state.regions.are_marked(regions(extent)) {
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
            Work::Zero { may_unmap, freeing, .. } => {
                let may_unmap = *may_unmap;
                let pages = pages(extent.narrowed_to(PAGE_DATA_BYTES));
                *freeing = !pages.is_empty();
                if *freeing {
                    state.pages.zero(pages.clone());
                    state.unsynced = true;
                    let extent = place_of_pages(pages);
                    // The sidecar of a layer that keeps its space does too.
                    let free = match self.shared.limits().discards {
                        true => FileOperation::Punch { extent },
                        false => FileOperation::Zero { extent },
                    };
                    self.send(FileWork::Free { request: slot }, free);
                }
                self.send_below(slot.tag(), Request::WriteZeroes { extent, may_unmap, durable: false });
            }
            _ => {
                if let Some(from) = request.memory.take() {
                    // What makes it durable is the pass that follows, with its tags.
                    self.send_below(slot.tag(), Request::Write { extent, from, durable: false });
                }
            }
        }
        self.step_changing(slot, request, state)
    }

    /// Data and tags go their ways side by side; a mark says that they do.
    fn step_changing(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Next {
        let placed = match request.error {
            None => self.place(slot, request, state),
            Some(_) => Placed::NotYet,
        };
        let is_freeing = matches!(request.work, Work::Zero { freeing: true, .. });
        let (Some(returned), false, 0) = (request.returned, is_freeing, request.stores) else {
            return if placed == Placed::All || request.error.is_some() {
                Next::Waits
            } else {
                Next::Stalled
            };
        };
        if let Err(error) = returned.and(request.error.map_or(Ok(()), Err)) {
            state.regions.unsettle(regions(request.extent));
            state.regions.end_change(regions(request.extent));
            return Next::Ended(Err(error));
        }
        if placed == Placed::NotYet {
            return Next::Stalled;
        }
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

    /// Whoever makes more dirty than there should be helps to write it, and so waits.
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

    /// Sees to the pages of a request's tags: takes the tags out of them, or puts them in. What is not in memory is
    /// loaded.
    fn place(&mut self, slot: Slot, request: &mut Active, state: &mut State) -> Placed {
        // Whether what is on its way finds room is still to be heard of.
        request.wants_room &= request.stores > 0;
        let reads = matches!(request.work, Work::Read);
        // All that are missing are loaded side by side.
        let mut missing = 0;
        while let Some((at, page)) = request.next_page() {
            match state.pages.find(page) {
                Found::Present(place) if reads => request.take_tags(page, state.pages.content(place)),
                // Tags of nothing, where there are none, need no place in the file.
                Found::Present(place) if request.agrees(page, state.pages.content(place)) => {}
                Found::Present(place) if self.find_place(place, slot, request, state) => {
                    request.put_tags(page, state.pages.change(place));
                }
                Found::Present(_) | Found::Loading => missing |= 1 << at,
                Found::Absent => {
                    missing |= 1 << at;
                    self.fetch(page, slot, request, state);
                }
            }
            request.placed |= 1 << at;
        }
        request.placed &= !missing;
        if missing == 0 { Placed::All } else { Placed::NotYet }
    }

    /// Begins to load a page, if there is room for it; otherwise to make some.
    fn fetch(&mut self, page: u64, slot: Slot, request: &mut Active, state: &mut State) {
        match state.pages.claim(page) {
            Some(place) if !self.load(page, place) => state.pages.not_loaded(place),
            Some(_) => {}
            None => {
                request.wants_room = true;
                self.make_room(slot, request, state);
            }
        }
    }

    /// Has the file make a place for a page, unless it has one. Otherwise a flush would be the first to hear that there
    /// is no room, and not the write.
    fn find_place(&mut self, place: PageSlot, slot: Slot, request: &mut Active, state: &mut State) -> bool {
        // The sidecar of a layer that takes its space at once does too.
        if state.pages.has_place(place) || !self.shared.limits().discards {
            return true;
        }
        if !state.pages.is_writing(place) && self.store(state, place, Owner::Request(slot)) {
            request.wants_room = true;
            request.stores += 1;
        }
        false
    }

    /// Sends some dirty pages to the file, for as long as the request is here to wait for them.
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
