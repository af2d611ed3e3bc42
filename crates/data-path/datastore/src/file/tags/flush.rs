//! A pass makes data and tags durable. It runs on a channel that waits for it.
//!
//! ```text
//! flush of the disk below, beside: dirty pages to the file -> fsync of the file -> presence of new pages
//! -> now and then: marks taken away from what has been quiet -> all who wait are answered
//! ```
//!
//! Data and tags of changes that ended before the pass may have become durable in any order. Marks,
//! set before and removed after the pass, cover that. Presence becomes durable after the tags of
//! its pages: otherwise a power cut could leave a page that exists but lacks tags, even of blocks
//! that were not being written.

use strongroom_io::{FileOperation, IoError};

use super::channel::{FileWork, Owner, STORES_AT_ONCE, TagsChannel};
use super::disk::State;
use super::pages::PageSlot;
use super::presence::PresencePage;
use crate::file::bits::Bits;
use crate::file::tagging::PAGE_BYTES;

/// The result of sending a page of presence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    UnderWay,
    /// It waits for memory.
    NoMemory,
    /// The tags of its pages are not durable.
    NotNow,
}

/// The pass that runs on a channel.
pub struct Pass {
    /// The regions' count of changes when it began.
    covers: u64,
    /// Whether an era began with it.
    new_era: bool,
    /// Pages that are not in the file yet.
    unwritten: Bits,
    stores: u32,
    syncing: bool,
    /// The pages of presence to write when the fsync has ended.
    to_be_said: Vec<PresencePage>,
    /// How many of those are being written.
    saying: u32,
    /// The result of the flush below, once it has ended.
    pub below: Option<Result<(), IoError>>,
    /// The result of the sidecar's fsync, once it has ended.
    pub synced: Option<Result<(), IoError>>,
    error: Option<IoError>,
}

impl TagsChannel {
    /// Begins a pass, unless one is under way on some channel.
    pub(super) fn begin_pass(&mut self, state: &mut State) {
        if !state.passes.begin() {
            return;
        }
        let mut pass = Pass {
            covers: state.regions.changes().0,
            new_era: state.begin_era(self.shared.quiet()),
            unwritten: Bits::default(),
            stores: 0,
            syncing: false,
            to_be_said: Vec::new(),
            saying: 0,
            below: None,
            synced: None,
            error: None,
        };
        state.pages.unwritten(&mut pass.unwritten);
        self.pass = Some(pass);
        self.flush_below();
    }

    /// Ends the write of a page of the pass, which has succeeded or not.
    pub(super) fn stored_by_pass(&mut self, slot: PageSlot, result: Result<(), IoError>) {
        let Some(pass) = &mut self.pass else { return };
        pass.stores -= 1;
        pass.unwritten.remove(slot as u64);
        pass.error = pass.error.or(result.err());
    }

    /// Ends the durable write of a page of presence, which has succeeded or not.
    pub(super) fn said_by_pass(&mut self, result: Result<(), IoError>) {
        let Some(pass) = &mut self.pass else { return };
        pass.saying -= 1;
        pass.error = pass.error.or(result.err());
    }

    /// Advances this channel's pass, if it has one.
    pub(super) fn run_pass(&mut self) {
        let Some(mut pass) = self.pass.take() else { return };
        let shared = std::sync::Arc::clone(&self.shared);
        let mut state = shared.state();
        let ended = self.run(&mut pass, &mut state);
        let Some(result) = ended else {
            // Another channel may be writing a page that this one waits for.
            state.wake_me(&self.waker);
            self.pass = Some(pass);
            return;
        };
        state.passes.end(result);
        if result.is_ok() && !state.passes.have_failed() {
            state.covered = Some(pass.covers);
        }
        state.wake_others(&self.waker);
        drop(state);
        self.look_again();
    }

    fn run(&mut self, pass: &mut Pass, state: &mut State) -> Option<Result<(), IoError>> {
        self.store_unwritten(pass, state);
        if pass.unwritten.count() > 0 || pass.stores > 0 {
            return None;
        }
        if !std::mem::replace(&mut pass.syncing, true) {
            if let Some(presence) = &mut state.presence {
                pass.to_be_said = presence.take_unsaid();
            }
            // Pages that others are writing now are not covered; they set `unsynced` again once
            // written.
            match std::mem::take(&mut state.unsynced) {
                true => self.send(FileWork::Sync, FileOperation::SyncData),
                false => pass.synced = Some(Ok(())),
            }
        }
        let synced = pass.synced?;
        if !self.say(pass, state, synced.is_ok()) {
            return None;
        }
        let result = pass.below?.and(synced).and(pass.error.map_or(Ok(()), Err));
        if result.is_ok() && !state.passes.have_failed() {
            if std::mem::take(&mut pass.new_era) {
                state.regions.unmark_quiet();
            }
            if self.unmark(state) {
                return None;
            }
        }
        Some(result)
    }

    /// Writes the pages of presence. Returns whether that is done. If the tags are not durable,
    /// nothing is written.
    fn say(&mut self, pass: &mut Pass, state: &mut State, are_durable: bool) -> bool {
        while let Some(page) = pass.to_be_said.pop() {
            let sent = match are_durable && pass.error.is_none() {
                true => self.say_presence(&page),
                false => Ok(Said::NotNow),
            };
            match sent {
                Ok(Said::UnderWay) => pass.saying += 1,
                Ok(Said::NoMemory) => {
                    pass.to_be_said.push(page);
                    return false;
                }
                Ok(Said::NotNow) | Err(_) => {
                    pass.error = pass.error.or(sent.err());
                    if let Some(presence) = &mut state.presence {
                        presence.not_said(page.number);
                    }
                }
            }
        }
        pass.saying == 0
    }

    fn store_unwritten(&mut self, pass: &mut Pass, state: &mut State) {
        let mut from = 0;
        while let Some(number) = pass.unwritten.next(from) {
            from = number + 1;
            let slot = number as PageSlot;
            if state.pages.is_writing(slot) {
                continue;
            }
            if !state.pages.is_dirty(slot) {
                pass.unwritten.remove(number);
                continue;
            }
            if pass.stores == STORES_AT_ONCE || !self.store(state, slot, Owner::Pass) {
                return;
            }
            pass.stores += 1;
        }
    }

    /// Writes a page of marks from which marks can be removed. Returns `true` while one is being
    /// written. Marks that are not removed now are removed the next time, and are harmless
    /// meanwhile.
    fn unmark(&mut self, state: &mut State) -> bool {
        if self.unmarking {
            return true;
        }
        let Some(from) = self.pool.take(PAGE_BYTES) else { return false };
        let Some(marks_page) = state.regions.begin_unmarking() else { return false };
        let sent = self.send_marks(state, marks_page, from, FileWork::Unmark { marks_page });
        if sent.is_err() {
            state.regions.end_unmarking(marks_page, false);
        }
        self.unmarking = sent.is_ok();
        self.unmarking
    }
}
