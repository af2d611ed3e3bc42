//! The contract of a metadata store.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use strongroom_types::{Abandoned, Pending};

use crate::counters::Counters;
use crate::entry::{Entry, LeaseId, Revision};
use crate::error::StoreError;
use crate::range::{KeyRange, Page};
use crate::transaction::{Outcome, Transaction};

/// A metadata store. The [crate's documentation](crate) states the promises of every store.
pub trait Store: Send + Sync {
    /// The state after the latest answered transaction, or a later one.
    ///
    /// The space of entries deleted or replaced meanwhile is freed only when it is dropped, so keep
    /// it for one piece of work.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Closed`].
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError>;

    /// One entry, or `None` if the key is absent.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    fn get(&self, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        self.snapshot()?.get(key)
    }

    /// Up to `limit` entries of a range, at one revision. Pages that must agree with each other
    /// come from one [`Snapshot`].
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    fn range(&self, range: &KeyRange, limit: usize) -> Result<Page, StoreError> {
        self.snapshot()?.range(range, limit)
    }

    /// Submits a transaction without waiting for it. One caller's transactions are judged in the
    /// order of its calls.
    ///
    /// Its answer's errors are those of [`commit`](Self::commit).
    fn submit(&self, transaction: Transaction) -> PendingCommit;

    /// Commits a transaction; blocks until it is durable or has failed.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] and [`StoreError::RepeatedKey`] for what [`Transaction::check`]
    /// refuses, [`StoreError::UnknownLease`], [`StoreError::Overloaded`], [`StoreError::Full`],
    /// [`StoreError::Uncertain`], [`StoreError::Unavailable`], [`StoreError::Closed`].
    fn commit(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        self.submit(transaction).wait()
    }

    /// Watches the keys of a range, from the changes of revision `from` on; a future revision is
    /// waited for. To begin where a snapshot ends: `snapshot.revision().next()`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if `from` is too far back, and as [`snapshot`](Self::snapshot).
    fn watch(&self, range: KeyRange, from: Revision) -> Result<Box<dyn Watch>, StoreError>;

    /// Makes a lease. Keys that are [put with it](Transaction::put_leased) are deleted, in a
    /// transaction of their own, once `ttl` has gone by without [`keep_alive`](Self::keep_alive);
    /// never earlier. Reopening a store restarts the time.
    ///
    /// # Errors
    /// [`StoreError::LeaseTtl`] outside of the limits, [`StoreError::TooLarge`] with too many
    /// leases, and those of a [`commit`](Self::commit).
    fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError>;

    /// Restarts the time of a lease.
    ///
    /// # Errors
    /// [`StoreError::UnknownLease`], [`StoreError::Unavailable`], [`StoreError::Closed`].
    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease and deletes its keys, now.
    ///
    /// # Errors
    /// [`StoreError::UnknownLease`], and those of a [`commit`](Self::commit).
    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Counters since the store was opened.
    fn counters(&self) -> Counters;
}

/// Everything at one revision.
pub trait Snapshot: Send {
    /// The revision.
    fn revision(&self) -> Revision;

    /// One entry, or `None` if the key was absent.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn get(&self, key: &[u8]) -> Result<Option<Entry>, StoreError>;

    /// Entries of a range in the order of their keys, up to `limit` or a page's
    /// [limits](crate::limits).
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn range(&self, range: &KeyRange, limit: usize) -> Result<Page, StoreError>;

    /// Every entry of a range, however many there are.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn all(&self, range: &KeyRange) -> Result<Vec<Entry>, StoreError> {
        Entries::new(self, range.clone()).collect()
    }
}

/// The entries of a range at one revision, however many there are, with one page of them in memory.
pub struct Entries<S = Box<dyn Snapshot>> {
    snapshot: S,
    page: std::vec::IntoIter<Entry>,
    rest: Option<KeyRange>,
}

impl<S: Deref<Target: Snapshot>> Entries<S> {
    /// Those of `range` in `snapshot`.
    pub fn new(snapshot: S, range: KeyRange) -> Self {
        Self { snapshot, page: Vec::new().into_iter(), rest: Some(range) }
    }
}

impl<S: Deref<Target: Snapshot>> Iterator for Entries<S> {
    type Item = Result<Entry, StoreError>;

    /// The next item. After an error there are no more.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            match self.snapshot.range(&self.rest.take()?, usize::MAX) {
                Ok(page) => {
                    self.page = page.entries.into_iter();
                    self.rest = page.rest;
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// A watch of a range of keys.
pub trait Watch: Send {
    /// The changes in the range of one or more revisions, in order; a revision's changes come
    /// together. Blocks until there are some, `wait` is over (then there are none) or the store is
    /// closed.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the watch fell too far behind, [`StoreError::Unavailable`],
    /// [`StoreError::Closed`].
    fn next(&mut self, wait: Duration) -> Result<Vec<Event>, StoreError>;
}

/// A change of a key. The value is not included; read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The transaction.
    pub revision: Revision,
    /// The key.
    pub key: Vec<u8>,
    /// The change.
    pub change: Change,
}

/// A kind of change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was made or written.
    Put,
    /// It was deleted, or vanished with its lease.
    Delete,
}

/// The answer to a transaction, once it is there: [`wait`](Self::wait) for a thread, `.await` for a
/// task. Dropping it gives up the answer, not the transaction.
#[derive(Debug)]
#[must_use = "a transaction is durable only once it has been answered"]
pub struct PendingCommit(Pending<Result<Outcome, StoreError>>);

impl PendingCommit {
    /// For implementations of [`Store`]: resolves to the answer of the other end, or to
    /// [`StoreError::Uncertain`] if that is dropped without one.
    pub fn new(answer: Pending<Result<Outcome, StoreError>>) -> Self {
        Self(answer)
    }

    /// Blocks the thread until the answer is there. In asynchronous programs, `.await` instead.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn wait(self) -> Result<Outcome, StoreError> {
        self.0.wait().unwrap_or_else(unanswered)
    }
}

impl Future for PendingCommit {
    type Output = Result<Outcome, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or_else(unanswered))
    }
}

fn unanswered(abandoned: Abandoned) -> Result<Outcome, StoreError> {
    Err(StoreError::Uncertain { reason: abandoned.to_string().into() })
}
