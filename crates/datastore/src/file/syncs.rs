//! The syncs of a volume that are under way, on all its channels.
//!
//! The kernel tells the failure of an fsync once, and marks clean what it could not write. Of two syncs that are under way
//! together one may hear of it and the other succeed, and the success may be seen first. So a flush that has succeeded
//! is a success only when every sync that was under way beside it has ended too, and none of them has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strongroom_io::{IoError, Waker};

/// One sync: a flush, or a durable write, which is an fsync of its own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SyncTicket(u64);

#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Set by the first failed fsync and never cleared: the kernel may have dropped the pages that it could not write
    /// and would report success next time.
    failed: AtomicBool,
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
    /// A thread that panicked has left the book as it should be: no call can fail half-way.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any has failed: then nothing is promised any more.
    pub(super) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// A sync is about to be sent.
    pub(super) fn begin(&self) -> SyncTicket {
        let mut book = self.book();
        let ticket = SyncTicket(book.next);
        book.next += 1;
        book.under_way.push(ticket);
        ticket
    }

    /// A sync has ended. Those that wait for it look again.
    pub(super) fn end(&self, ticket: SyncTicket, failed: bool) {
        if failed {
            self.failed.store(true, Ordering::SeqCst);
        }
        let mut book = self.book();
        book.under_way.retain(|other| *other != ticket);
        book.waiting.drain(..).for_each(|waker| waker.wake());
    }

    /// A durable write has ended, with this; what it may tell its submitter. Without room nothing that was acknowledged is lost, and
    /// room can come back. What was promised durable beside a failed fsync is not.
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

    /// The first ticket that is not given out yet: a flush that succeeds now must wait for those before it.
    pub(super) fn next(&self) -> SyncTicket {
        SyncTicket(self.book().next)
    }

    /// Whether all syncs before `next` have ended. If not, `waker` is woken when one has.
    pub(super) fn have_ended_before(&self, next: SyncTicket, waker: &Arc<Waker>) -> bool {
        let mut book = self.book();
        let ended = book.under_way.iter().all(|ticket| *ticket >= next);
        if !ended && !book.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
            book.waiting.push(Arc::clone(waker));
        }
        ended
    }
}
