//! A round: writes the bits that several channels asked for, and makes them durable with one sync.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor, Thread,
};
use strongroom_memory::{Buffer, ReservedPool};

use super::{Discards, PURPOSE, no_cipher};
use crate::file::tagging::{EmptySector, PAGE_BYTES};

/// Pages of one round: 8 GiB of a layer that is discarded at once.
const PAGES_MAX: usize = 64;

/// The tag of the sync; the tags of writes are page numbers.
const SYNC_TAG: u64 = u64::MAX;

/// Records for one channel. Only one channel at a time has a round under way.
pub(in crate::file) struct Recorder {
    discards: Arc<Discards>,
    queue: Box<dyn FileQueue>,
    token: FileToken,
    file: Arc<RoundFile>,
    round: Option<Round>,
    file_done: Vec<FileDone>,
}

#[derive(Default)]
struct Round {
    writes_left: usize,
    /// The numbers and contents of the pages that were written.
    written: Vec<(u64, Buffer)>,
    failure: Option<IoError>,
}

impl Recorder {
    pub fn open(discards: &Arc<Discards>, thread: &Thread) -> Result<Self, IoError> {
        let mut queue = discards.sync_order.queue(&*discards.file, thread)?;
        let file =
            Arc::new(RoundFile { discards: Arc::clone(discards), is_in_round: AtomicBool::new(false) });
        Ok(Self {
            token: queue.register(Arc::clone(&file) as _)?,
            file,
            queue,
            discards: Arc::clone(discards),
            round: None,
            file_done: Vec::new(),
        })
    }

    /// Whether a round of this channel is under way.
    pub fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Takes completions and begins a round if possible. Returns whether there was any progress.
    pub fn poll(&mut self, pool: &ReservedPool) -> bool {
        let mut file_done = std::mem::take(&mut self.file_done);
        self.queue.poll(&mut file_done);
        let ended_any = !file_done.is_empty();
        file_done.drain(..).for_each(|done| self.on_done(done));
        self.file_done = file_done;
        let began = self.kick(pool);
        ended_any || began
    }

    /// Begins a round if possible, and kicks the queue. Returns whether a round has begun.
    pub fn kick(&mut self, pool: &ReservedPool) -> bool {
        let began = self.begin(pool);
        self.queue.kick();
        began
    }

    /// Begins a round, if any bits are wanted and no other channel has one under way.
    fn begin(&mut self, pool: &ReservedPool) -> bool {
        let discards = Arc::clone(&self.discards);
        let mut state = discards.state.lock();
        if state.in_round || state.failed {
            return false;
        }
        let mut round = Round::default();
        while round.writes_left < PAGES_MAX
            && let Some(page) = state.pages.first().copied()
            && let Some(mut from) = pool.take(PAGE_BYTES)
        {
            state.pages.remove(&page);
            from.bytes_mut().fill(0);
            state.fill_page(page, from.bytes_mut());
            let header = |sector| discards.binding.of_sector(PURPOSE, sector);
            if let Err(error) = discards.keys.tagger.tag_page(
                discards.keys.newest,
                header,
                page,
                from.bytes_mut(),
                EmptySector::Zeroes,
            ) {
                round.failure = Some(no_cipher(error));
                break;
            }
            let operation = FileOperation::Write { offset: page * PAGE_BYTES as u64, from, durable: false };
            self.queue.submit(FileIo { tag: page, file: self.token, operation });
            round.writes_left += 1;
        }
        match (round.writes_left, round.failure) {
            // If there is no memory, another request of this thread will free some.
            (0, None) => false,
            (0, Some(error)) => {
                state.round_failed(error);
                true
            }
            _ => {
                state.in_round = true;
                self.file.is_in_round.store(true, Ordering::SeqCst);
                self.round = Some(round);
                true
            }
        }
    }

    fn on_done(&mut self, done: FileDone) {
        let Some(round) = &mut self.round else { return };
        round.failure = round.failure.or(done.result.err());
        if done.tag == SYNC_TAG {
            return self.end(done.result.is_err());
        }
        round.writes_left -= 1;
        round.written.extend(done.buffer.map(|buffer| (done.tag, buffer)));
        match (round.writes_left, round.failure) {
            (0, None) => {
                let operation = FileOperation::SyncData;
                self.queue.submit(FileIo { tag: SYNC_TAG, file: self.token, operation });
            }
            (0, Some(_)) => self.end(false),
            _ => {}
        }
    }

    fn end(&mut self, is_lost: bool) {
        let Some(round) = self.round.take() else { return };
        self.file.is_in_round.store(false, Ordering::SeqCst);
        let mut state = self.discards.state.lock();
        state.in_round = false;
        state.failed |= is_lost;
        match round.failure {
            None => round
                .written
                .iter()
                .for_each(|(page, content)| state.page_is_recorded(*page, content.bytes())),
            Some(error) => state.round_failed(error),
        }
        state.wake();
    }
}

impl Drop for Recorder {
    /// Drops all wanted bits, since nothing waits for this channel's any more. The other channels
    /// ask for theirs again.
    fn drop(&mut self) {
        self.discards.state.lock().ask_again();
    }
}

/// The file of one recorder's round. Operations under way keep it alive even after the recorder is
/// dropped. So when this is dropped, an abandoned round has ended and cannot overwrite the next
/// one.
#[derive(Debug)]
struct RoundFile {
    discards: Arc<Discards>,
    is_in_round: AtomicBool,
}

impl DataFile for RoundFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.discards.file.as_fd()
    }

    fn as_any(&self) -> &dyn Any {
        self.discards.file.as_any()
    }

    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        self.discards.file.queue(reactor)
    }
}

impl Drop for RoundFile {
    fn drop(&mut self) {
        if *self.is_in_round.get_mut() {
            let mut state = self.discards.state.lock();
            state.in_round = false;
            state.ask_again();
        }
    }
}
