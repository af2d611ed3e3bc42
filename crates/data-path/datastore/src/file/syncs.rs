//! The syncs of a volume that are under way, on all its channels.
//!
//! The kernel reports a failed fsync once, and marks the pages that it could not write as clean. Of
//! two concurrent syncs one may receive the error and the other succeed, and the success may be
//! seen first. So a successful flush counts as a success only when every concurrent sync has ended
//! too, and none has failed. A flush with nothing of its own to sync relies on the syncs of others,
//! and waits for those that were concurrent to them as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use strongroom_io::{IoError, Waker};
use strongroom_memory::Padded;

/// One sync: a flush, or a durable write, which is an fsync of its own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SyncTicket(u64);

/// Whether a file has changes that no sync covers yet. Only [`Syncs::begin_for`] clears the mark,
/// for a sync that then covers the changes.
///
/// Every writing thread checks it after each write, so it has a cache line of its own.
#[derive(Debug)]
pub(super) struct Unsynced(Padded<AtomicBool>);

impl Unsynced {
    pub(super) fn new(unsynced: bool) -> Self {
        Self(Padded::new(AtomicBool::new(unsynced)))
    }

    /// Notes a change whose submitter has not been answered yet.
    pub(super) fn set(&self) {
        // Between two syncs all writers but the first find it set, and the cache line stays shared.
        // A writer that finds it set has done its write before the sync is sent, because the sync
        // takes the mark first.
        if !self.0.load(Ordering::SeqCst) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// What a flush waits for once its own syncs have succeeded.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlushEnd {
    /// The syncs before its own, on which it relies if they have taken the marks of its files.
    Relied { own: SyncTicket },
    /// The syncs before this one: those that may have received the error of one that it relies on.
    Concurrent { next: SyncTicket },
}

impl FlushEnd {
    /// Of a flush with this ticket, which has ended.
    pub(super) fn of(own: SyncTicket) -> Self {
        Self::Relied { own }
    }
}

#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Set by the first failed fsync and never cleared: the kernel may have dropped the pages that
    /// it could not write, and would report success next time.
    failed: AtomicBool,
    /// Counts syncs whose completion will never arrive.
    abandoned: AtomicU64,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    under_way: Vec<SyncTicket>,
    /// Threads with a flush that waits for others to end.
    waiting: Vec<Arc<Waker>>,
}

impl Syncs {
    /// Whether any sync has failed: then no flush succeeds any more.
    pub(super) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// Notes a failure after which no flush may succeed.
    pub(super) fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
    }

    /// Gives the ticket of a sync that is about to be sent.
    pub(super) fn begin(&self) -> SyncTicket {
        let mut book = self.book.lock();
        let ticket = SyncTicket(book.next);
        book.next += 1;
        book.under_way.push(ticket);
        ticket
    }

    /// Gives the ticket of a sync of these files that is about to be sent, and which of them have
    /// unsynced changes. The ticket is issued before the marks are taken: a thread that finds a
    /// mark already taken also finds the ticket of the sync that took it, and waits for it.
    pub(super) fn begin_for<const FILES: usize>(
        &self,
        files: [Option<&Unsynced>; FILES],
    ) -> (SyncTicket, [bool; FILES]) {
        let ticket = self.begin();
        (ticket, files.map(|file| file.is_some_and(Unsynced::take)))
    }

    /// Gives up a sync of these files whose completion will never arrive. Flushes that waited for
    /// it sync the files again ([`Self::abandoned`]).
    pub(super) fn abandon<const FILES: usize>(&self, ticket: SyncTicket, files: [Option<&Unsynced>; FILES]) {
        files.into_iter().flatten().for_each(Unsynced::set);
        self.abandoned.fetch_add(1, Ordering::SeqCst);
        self.end(ticket, false);
    }

    /// The count of abandoned syncs. If it has changed since before a flush began, the changes that
    /// the flush covers may not be durable.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Ends a sync, and wakes the threads that wait for it.
    pub(super) fn end(&self, ticket: SyncTicket, failed: bool) {
        if failed {
            self.failed.store(true, Ordering::SeqCst);
        }
        let mut book = self.book.lock();
        book.under_way.retain(|other| *other != ticket);
        book.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// Ends a durable write, and returns the result for its submitter. Lack of room loses no
    /// acknowledged write, and can pass. After a failed fsync no durable write counts as durable.
    pub(super) fn end_of_durable_write(
        &self,
        ticket: SyncTicket,
        result: Result<(), IoError>,
    ) -> Result<(), IoError> {
        self.end(ticket, !matches!(result, Ok(()) | Err(IoError::NoSpace)));
        match result {
            Ok(()) if self.have_failed() => Err(IoError::FlushFailed),
            result => result,
        }
    }

    /// The first ticket that is not issued yet: a flush that succeeds now must wait for all tickets
    /// before it.
    pub(super) fn next(&self) -> SyncTicket {
        SyncTicket(self.book.lock().next)
    }

    /// Whether all syncs have ended whose failure would be that of a flush. If not, calls `waker`
    /// when one has.
    pub(super) fn have_ended_around(&self, end: &mut FlushEnd, waker: &Arc<Waker>) -> bool {
        let next = match *end {
            FlushEnd::Relied { own } if !self.have_ended_before(own, waker) => return false,
            FlushEnd::Relied { .. } => self.next(),
            FlushEnd::Concurrent { next } => next,
        };
        *end = FlushEnd::Concurrent { next };
        self.have_ended_before(next, waker)
    }

    /// Whether all syncs before `next` have ended. If not, calls `waker` when one has.
    pub(super) fn have_ended_before(&self, next: SyncTicket, waker: &Arc<Waker>) -> bool {
        let mut book = self.book.lock();
        let ended = book.under_way.iter().all(|ticket| *ticket >= next);
        if !ended && !book.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
            book.waiting.push(Arc::clone(waker));
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel tells the failure of an fsync once: a durable write may succeed beside the sync
    /// that has failed for its blocks.
    #[test]
    fn a_durable_write_beside_a_failed_sync_is_not_acknowledged() {
        let syncs = Syncs::default();
        let (write, flush) = (syncs.begin(), syncs.begin());
        syncs.end(flush, true);
        assert_eq!(syncs.end_of_durable_write(write, Ok(())), Err(IoError::FlushFailed));
        let later = syncs.begin();
        assert_eq!(syncs.end_of_durable_write(later, Ok(())), Err(IoError::FlushFailed));
    }

    /// Without room nothing that was acknowledged is lost.
    #[test]
    fn a_durable_write_without_room_fails_alone() {
        let syncs = Syncs::default();
        let full = syncs.begin();
        assert_eq!(syncs.end_of_durable_write(full, Err(IoError::NoSpace)), Err(IoError::NoSpace));
        let later = syncs.begin();
        assert_eq!(syncs.end_of_durable_write(later, Ok(())), Ok(()));
    }

    /// Of two syncs that follow each other closely, the second one can receive the error of what
    /// the first one should have made durable. So can a flush that relies on the first one.
    #[test]
    fn a_flush_that_relies_on_another_waits_for_what_was_beside_that_one() {
        let (syncs, file, waker) = (Syncs::default(), Unsynced::new(true), Arc::new(Waker::new().unwrap()));
        let (first, [has_any]) = syncs.begin_for([Some(&file)]);
        assert!(has_any);
        let (relying, [has_any]) = syncs.begin_for([Some(&file)]);
        assert!(!has_any);
        syncs.end(relying, false);
        let mut end = FlushEnd::of(relying);
        assert!(!syncs.have_ended_around(&mut end, &waker));
        file.set();
        let (second, [has_any]) = syncs.begin_for([Some(&file)]);
        assert!(has_any);
        syncs.end(first, false);
        assert!(!syncs.have_ended_around(&mut end, &waker), "the second one may have failed for the first");
        let later = syncs.begin();
        syncs.end(second, true);
        assert!(syncs.have_ended_around(&mut end, &waker) && syncs.have_failed());
        syncs.end(later, false);
    }

    /// Threads flush concurrently, repeatedly: a thread with nothing to sync waits for the one
    /// that has it.
    #[test]
    fn who_finds_nothing_to_sync_waits_for_who_took_it() {
        let syncs = Syncs::default();
        let file = Unsynced::new(false);
        let (written, durable) = (AtomicU64::new(0), AtomicU64::new(0));
        let flush = |waker: &Arc<Waker>| {
            let before = written.fetch_add(1, Ordering::SeqCst) + 1;
            file.set();
            let (ticket, [has_any]) = syncs.begin_for([Some(&file)]);
            if has_any {
                let covered = written.load(Ordering::SeqCst);
                std::thread::yield_now();
                durable.fetch_max(covered, Ordering::SeqCst);
            }
            syncs.end(ticket, false);
            let mut end = FlushEnd::of(ticket);
            while !syncs.have_ended_around(&mut end, waker) {
                std::thread::yield_now();
            }
            assert!(durable.load(Ordering::SeqCst) >= before);
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let waker = Arc::new(Waker::new().unwrap());
                    (0..20_000).for_each(|_| flush(&waker));
                });
            }
        });
    }
}
