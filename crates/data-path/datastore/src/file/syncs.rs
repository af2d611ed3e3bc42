//! The syncs of a volume that are under way, on all its channels.
//!
//! The kernel tells the failure of an fsync once, and marks clean what it could not write. Of two
//! syncs that are under way together one may hear of it and the other succeed, and the success may
//! be seen first. So a flush that has succeeded is a success only when every sync that was under
//! way beside it has ended too, and none of them has failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use strongroom_io::{IoError, Waker};
use strongroom_memory::Padded;

/// One sync: a flush, or a durable write, which is an fsync of its own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SyncTicket(u64);

/// Whether something was done to a file that no sync covers yet. A sync takes this upon itself with
/// [`Syncs::begin_for`], which is the only way.
///
/// Every thread that writes looks at it after each write, so it is apart from what lies beside it.
#[derive(Debug)]
pub(super) struct Unsynced(Padded<AtomicBool>);

impl Unsynced {
    pub(super) fn new(unsynced: bool) -> Self {
        Self(Padded::new(AtomicBool::new(unsynced)))
    }

    /// Something was done, and its submitter is not told yet.
    pub(super) fn set(&self) {
        // Between two syncs all writers but the first find it set, and leave the cache line with
        // everybody. Whoever finds it set has done its work before the sync that takes it is sent,
        // for it is taken first.
        if !self.0.load(Ordering::SeqCst) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Set by the first failed fsync and never cleared: the kernel may have dropped the pages that
    /// it could not write and would report success next time.
    failed: AtomicBool,
    /// Counts syncs that nobody will hear of.
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
    /// Whether any has failed: then nothing is promised any more.
    pub(super) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// A sync is about to be sent.
    pub(super) fn begin(&self) -> SyncTicket {
        let mut book = self.book.lock();
        let ticket = SyncTicket(book.next);
        book.next += 1;
        book.under_way.push(ticket);
        ticket
    }

    /// A sync of these files is about to be sent; says which of them have anything to sync. The
    /// ticket comes first: whoever finds that another has taken a file upon itself finds that one's
    /// ticket, and waits for it.
    pub(super) fn begin_for<const FILES: usize>(
        &self,
        files: [Option<&Unsynced>; FILES],
    ) -> (SyncTicket, [bool; FILES]) {
        let ticket = self.begin();
        (ticket, files.map(|file| file.is_some_and(Unsynced::take)))
    }

    /// Nobody will hear how a sync of these files ends: whoever has waited for it syncs them again
    /// ([`Self::abandoned`]).
    pub(super) fn abandon<const FILES: usize>(&self, ticket: SyncTicket, files: [Option<&Unsynced>; FILES]) {
        files.into_iter().flatten().for_each(Unsynced::set);
        self.abandoned.fetch_add(1, Ordering::SeqCst);
        self.end(ticket, false);
    }

    /// How many syncs were abandoned. If it has changed since before a flush began, what the flush
    /// has waited for may not be durable.
    pub(super) fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// A sync has ended. Those that wait for it look again.
    pub(super) fn end(&self, ticket: SyncTicket, failed: bool) {
        if failed {
            self.failed.store(true, Ordering::SeqCst);
        }
        let mut book = self.book.lock();
        book.under_way.retain(|other| *other != ticket);
        book.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// A durable write has ended, with this; what it may tell its submitter. Without room nothing
    /// that was acknowledged is lost, and room can come back. What was promised durable beside a
    /// failed fsync is not.
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

    /// The first ticket that is not given out yet: a flush that succeeds now must wait for those
    /// before it.
    pub(super) fn next(&self) -> SyncTicket {
        SyncTicket(self.book.lock().next)
    }

    /// Whether all syncs before `next` have ended. If not, `waker` is woken when one has.
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

    /// Threads flush side by side, over and over: whoever finds nothing to sync waits for the one
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
            let next = syncs.next();
            while !syncs.have_ended_before(next, waker) {
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
