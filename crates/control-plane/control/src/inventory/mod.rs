//! The inventory: the store, and an index of it in memory that answers queries.
//!
//! Every change is a [`Draft`]: records with the revision at which they were read, and the events
//! of the change, in one transaction. A caller that loses a race reads again ([`Failure::Raced`]).
//! The index is fed only by a watch of the store, so it shows only durable data.
//!
//! # Numbers of events
//! An event's number is assigned under a lock that is held until its transaction is handed to the
//! store. The store judges transactions in that order, so numbers are in the order of revisions,
//! and a reader of all events up to a number has missed none. The number of a transaction that
//! loses a race is skipped. Those of the access log have no gaps ([`access_log`]).

mod access_log;
mod catalog;
mod changed;
mod draft;
mod feed;
mod index;
mod restored;
mod table;
mod term;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_store::{Is, Outcome, Store, StoreError, Transaction};

use strongroom_types::{VmId, VolumeId, display_bytes};

use access_log::Chain;
use changed::Changed;
use draft::Numbered;
use feed::{Feed, News};

use crate::backup::{AccessLogPart, Export};
use crate::records::{AUTOMATIC, FORMAT, META_KEY, Meta};

pub use access_log::{AccessLog, Wanted, most_bytes};
pub use catalog::{Facet, Member, Members, NAME_PART_BYTES, name_parts};
pub use changed::ChangedObjects;
pub use draft::Draft;
pub use index::{Index, by_id, by_name_or_id};
pub use restored::{RestoredFrom, Revised};
pub use table::{Row, Table};

/// The number of events that are kept: days of a busy site, and a few megabytes of memory.
pub const EVENTS_KEPT: usize = 10_000;
/// The number of ended tasks that are kept.
pub const TASKS_KEPT: usize = 5_000;
/// How long an `Idempotency-Key` is remembered, in milliseconds: a day, longer than any client
/// retries.
pub const REQUESTS_KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// The most requests that are remembered.
pub const REQUESTS_KEPT: usize = 20_000;
/// How much longer than they have to be entries of the access log are kept, in milliseconds: a day,
/// so that they are removed many at a time, because each removal is an entry.
const ACCESS_SLACK_MS: u64 = 24 * 60 * 60 * 1000;
/// How long a session or token is known after its end, in seconds: a week, in which a person finds
/// out why a program is refused.
pub const CREDENTIALS_KEPT_SECONDS: u64 = 7 * 86_400;
/// The most records that are removed in one transaction.
const PRUNED_AT_A_TIME: usize = 100;
/// How often a transaction is built again because one that the access log was to continue from has
/// failed. Each time, another change has lost a race of its own.
const REBUILT_MAX: usize = 256;

/// Why the inventory cannot be read or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A record has changed since it was read, or already exists. The caller should read again.
    #[error("it was changed by somebody else at the same time")]
    Raced,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record of the store is invalid.
    #[error("the record {key} of the inventory is not understood: {reason}")]
    Damaged {
        /// Its key.
        key: String,
        /// The error in it.
        reason: String,
    },
    /// The access log has no room for the entry of a change.
    #[error(
        "the access log is full: it has {} of entries that have to be kept, and at most {} for this",
        display_bytes(*bytes),
        display_bytes(*most)
    )]
    AccessLogFull {
        /// Its bytes.
        bytes: u64,
        /// The most that there may be of them with this change.
        most: u64,
    },
    /// The store has the format of a later version.
    #[error("the inventory has format {0}, and this program knows {FORMAT}")]
    UnknownFormat(u32),
}

/// The numbers that the next records of a history get.
#[derive(Debug)]
struct NextNumbers {
    event: u64,
    chain: Chain,
}

/// The inventory.
pub struct Inventory {
    store: Arc<dyn Store>,
    index: RwLock<Index>,
    /// Held while changes are merged into the index.
    feed: Mutex<Feed>,
    /// The number of the next event and the end of the access log; locked while a transaction with
    /// some is handed to the store.
    next: Mutex<NextNumbers>,
    changed: Changed,
}

impl Inventory {
    /// Reads the store. An empty store becomes an empty inventory.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn open(store: Arc<dyn Store>) -> Result<Self, Failure> {
        match store.get(META_KEY.as_bytes())? {
            Some(entry) => {
                let meta: Meta = serde_json::from_slice(&entry.value).map_err(|error| Failure::Damaged {
                    key: META_KEY.to_owned(),
                    reason: error.to_string(),
                })?;
                if meta.format != FORMAT {
                    return Err(Failure::UnknownFormat(meta.format));
                }
            }
            None => {
                let meta = serde_json::json!({ "format": FORMAT }).to_string();
                // If another process was faster, it has written the same.
                let _ = store.commit(Transaction::new().when(META_KEY, Is::Absent).put(META_KEY, meta))?;
            }
        }
        let snapshot = store.snapshot()?;
        let feed = Feed::after(&*store, &*snapshot)?;
        let index = Index::read(&*snapshot)?;
        let next = NextNumbers {
            event: index.events().last().map_or(1, |event| event.id + 1),
            chain: Chain::open(&*store)?,
        };
        Ok(Self {
            store,
            changed: Changed::new(snapshot.revision().0),
            index: RwLock::new(index),
            feed: Mutex::new(feed),
            next: Mutex::new(next),
        })
    }

    /// Locks the index for reading. It does not change meanwhile, so hold the lock only for one
    /// answer.
    pub fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    /// Subscribes to changes of the index.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Subscribes to changes of a task that exists.
    pub fn changes_of_task(&self, task: uuid::Uuid) -> tokio::sync::watch::Receiver<()> {
        self.changed.subscribe_to_task(task)
    }

    /// Takes the VMs whose record, observed state, policy or host has changed since the last call.
    /// The first call returns all of them.
    pub fn take_changed_vms(&self) -> ChangedObjects<VmId> {
        self.changed.take_vms()
    }

    /// Takes the VMs whose alarms may differ since the last call: their record, observed state,
    /// schedule, policy, host or task has changed. The first call returns all of them.
    pub fn take_unreviewed_vms(&self) -> ChangedObjects<VmId> {
        self.changed.take_unreviewed()
    }

    /// Takes the volumes whose record has changed since the last call. The first call returns all
    /// of them.
    pub fn take_changed_volumes(&self) -> ChangedObjects<VolumeId> {
        self.changed.take_volumes()
    }

    /// Checks that the store can be read and accepts transactions.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn check(&self) -> Result<(), Failure> {
        let asked = Transaction::new().when(META_KEY, Is::Present);
        self.store.commit(asked).map(drop).map_err(Failure::from)
    }

    /// The inventory as it is now, for a backup.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn export(&self, access_log: AccessLogPart) -> Result<Export, Failure> {
        Ok(Export::new(self.store.snapshot()?, access_log))
    }

    /// The store's counters.
    pub fn counters(&self) -> strongroom_store::Counters {
        self.store.counters()
    }

    /// Commits a draft durably; blocks. When it returns, the index has the change.
    ///
    /// # Errors
    /// [`Failure`]. After [`StoreError::Uncertain`] the change may have been made all the same.
    pub fn commit(&self, draft: Draft) -> Result<(), Failure> {
        if draft.is_empty() {
            return Ok(());
        }
        for _ in 0..REBUILT_MAX {
            let retention = self.read().access_retention();
            let (pending, era, conditions) = {
                let mut next = self.next.lock();
                let Numbered { transaction, era } =
                    draft.clone().into_transaction(&*self.store, &mut next, retention)?;
                let conditions = transaction.conditions.len();
                (self.store.submit(transaction), era, conditions)
            };
            let outcome = pending.wait();
            if let (Some(era), Err(_) | Ok(Outcome::Conflict(_))) = (era, &outcome) {
                self.next.lock().chain.forget(era);
            }
            let outcome = outcome?;
            self.catch_up()?;
            match outcome {
                Outcome::Committed(_) => return Ok(()),
                // Only the chain's condition, which is the last one, did not hold.
                Outcome::Conflict(conflict) if era.is_some() && conflict.condition + 1 == conditions => {}
                Outcome::Conflict(_) => return Err(Failure::Raced),
            }
        }
        Err(Failure::Raced)
    }

    /// The access log as it is now.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn access_log(&self) -> Result<AccessLog, Failure> {
        AccessLog::open(&*self.store)
    }

    /// Merges the store's new changes into the index. After an error, the next call reads the whole
    /// store if changes could have been missed.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn catch_up(&self) -> Result<(), Failure> {
        let mut feed = self.feed.lock();
        loop {
            let revision = match feed.next(&*self.store)? {
                News::None => return Ok(()),
                News::Some { newest, entries } => {
                    let mut index = self.index.write();
                    for (key, entry) in entries {
                        index.apply(&key, entry.as_ref())?;
                        self.changed.note(&key, &index);
                    }
                    newest
                }
                News::All(snapshot) => {
                    let whole = Index::read(&*snapshot)?;
                    let mut index = self.index.write();
                    *index = whole;
                    self.changed.note_all();
                    snapshot.revision().0
                }
            };
            feed.confirm();
            self.changed.announce(revision);
        }
    }

    /// Removes records that are past their retention.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn prune(&self, now_unix_ms: u64) -> Result<(), Failure> {
        loop {
            let old = self.read().outdated(now_unix_ms, PRUNED_AT_A_TIME);
            if old.is_empty() {
                return self.prune_access(now_unix_ms);
            }
            let deletion = old.into_iter().fold(Transaction::new(), |all, key| all.delete(key));
            let _ = self.store.commit(deletion)?;
            self.catch_up()?;
        }
    }

    /// Removes entries of the access log that do not have to be kept any more, some at a time, each
    /// time with an entry.
    fn prune_access(&self, now_unix_ms: u64) -> Result<(), Failure> {
        let retention = self.read().access_retention();
        let kept_from = now_unix_ms.saturating_sub(retention.keep_s.saturating_mul(1000));
        let log = self.access_log()?;
        let slack_ms = if log.is_almost_full(retention) { 0 } else { ACCESS_SLACK_MS };
        if log.outdated(kept_from.saturating_sub(slack_ms), 1)?.is_none() {
            return Ok(());
        }
        loop {
            let removal = self.access_log()?.outdated(kept_from, PRUNED_AT_A_TIME)?;
            let Some(removal) = removal else { return Ok(()) };
            let entry = AccessEntry {
                id: 0,
                previous: None,
                at_unix_ms: now_unix_ms,
                kind: AccessKind::Removed,
                by: AUTOMATIC.to_owned(),
                from: None,
                operation: None,
                object: None,
                task: None,
                message: removal.message(),
                repeated: None,
            };
            match self.commit(Draft::new(now_unix_ms).remove_access(removal, entry)) {
                Ok(()) | Err(Failure::Raced) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}
