//! Errors of a store.

use std::sync::Arc;
use std::time::Duration;

use crate::entry::{LeaseId, Revision};

/// Why a store refused or failed. Except after [`Uncertain`](Self::Uncertain), nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Beyond one of the [limits](crate::limits).
    #[error("{asked} {what}; {most} is the most there may be")]
    TooLarge {
        /// The item over its limit.
        what: &'static str,
        /// The requested amount.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// A transaction puts or deletes a key twice.
    #[error("the key {key} is changed twice in one transaction")]
    RepeatedKey {
        /// The key, escaped.
        key: String,
    },
    /// There is no such lease, or it has ended.
    #[error("there is no lease {lease}; it has expired or was revoked")]
    UnknownLease {
        /// The lease named in the request.
        lease: LeaseId,
    },
    /// A lease that would be too short or too long.
    #[error("a lease of {asked:?} is not within {least:?} and {most:?}")]
    LeaseTtl {
        /// The requested life.
        asked: Duration,
        /// The shortest.
        least: Duration,
        /// The longest.
        most: Duration,
    },
    /// A watch from a revision whose changes are no longer known. Read everything, and watch from
    /// there.
    #[error("the changes before revision {oldest} are no longer known; read everything and watch from there")]
    Compacted {
        /// The first revision whose changes are still known.
        oldest: Revision,
    },
    /// More waits than the store takes. Try again.
    #[error("the store has too much waiting to be written; try again")]
    Overloaded,
    /// The file system is full. Try again when there is room.
    #[error("the store's file system is full: {reason}")]
    Full {
        /// The system's error.
        reason: Arc<str>,
    },
    /// The write failed, and may or may not have taken effect. After a device failure the store
    /// takes no requests until it is reopened.
    #[error("whether it was stored is not known: {reason}")]
    Uncertain {
        /// The system's error.
        reason: Arc<str>,
    },
    /// A write failed earlier, or a read now.
    #[error("the store cannot be used: {reason}")]
    Unavailable {
        /// The system's error.
        reason: Arc<str>,
    },
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
    /// Another process, or another part of this one, has the store open.
    #[error("the store {store} is in use; only one process can have it open")]
    InUse {
        /// The store's path.
        store: Arc<str>,
    },
    /// The store is damaged. It is left as it is.
    #[error(
        "the store {store} is damaged and was left as it is: {reason}. Restore it from a backup, or repair the storage below it"
    )]
    Damaged {
        /// The store's path.
        store: Arc<str>,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The format belongs to a later version of this program, or to no version.
    #[error("the store {store} has format {found}, and this program knows {known}")]
    UnknownFormat {
        /// The store's path.
        store: Arc<str>,
        /// The store's format.
        found: u64,
        /// The format that this program knows.
        known: u64,
    },
    /// The store could not be made or opened.
    #[error("the store {store} cannot be {doing}: {reason}")]
    Open {
        /// The store's path.
        store: Arc<str>,
        /// `made` or `opened`.
        doing: &'static str,
        /// The system's error.
        reason: Arc<str>,
    },
}
