//! The inventory: the store, and an index of it in memory that answers questions.
//!
//! Everything that changes is a [`Draft`]: records with the revision at which they were read, and
//! the events that become true with them, in one transaction. Whoever lost a race reads again
//! ([`Failure::Raced`]). The index is fed by a watch of the store and by nothing else, so it can
//! show only what is durable.
//!
//! # Numbers of events
//! An event's number is given under a lock under which its transaction is handed to the store,
//! which judges transactions in that order: so numbers are in the order of revisions, and who has
//! read up to a number misses nothing. A number whose transaction lost a race is left out.

mod draft;
mod index;
mod table;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use strongroom_store::{Is, KeyRange, Outcome, Store, StoreError, Transaction, Watch};

use crate::records::{FORMAT, META_KEY, Meta};

pub use draft::Draft;
pub use index::{Index, by_id, by_name_or_id};
pub use table::{Row, Table};

/// Events that are kept: days of a busy site, and a few megabytes of memory.
pub const EVENTS_KEPT: usize = 10_000;
/// Ended tasks that are kept.
pub const TASKS_KEPT: usize = 5_000;
/// How long an `Idempotency-Key` is remembered, in milliseconds: a day, longer than any client
/// tries.
pub const REQUESTS_KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// Requests that are remembered at most.
pub const REQUESTS_KEPT: usize = 20_000;
/// Records that are taken away in one transaction.
const PRUNED_AT_A_TIME: usize = 100;

/// Why something is not in the inventory now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What was read has changed meanwhile, or what should not be there is. Read again.
    #[error("it was changed by somebody else at the same time")]
    Raced,
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is in the store is not understood.
    #[error("the record {key} of the inventory is not understood: {reason}")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Of a later version of this program.
    #[error("the inventory has format {0}, and this program knows {FORMAT}")]
    UnknownFormat(u32),
}

/// The inventory.
pub struct Inventory {
    store: Arc<dyn Store>,
    index: RwLock<Index>,
    /// Held while changes are taken over into the index.
    feed: Mutex<Box<dyn Watch>>,
    /// The number of the next event; held while a transaction with events is handed over.
    next_event: Mutex<u64>,
    /// Tells whoever waits for something new: the revision that the index is at.
    changed: tokio::sync::watch::Sender<u64>,
}

impl Inventory {
    /// Reads all there is. An empty store is made an inventory.
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
                // Whoever was quicker has written the same.
                let _ = store.commit(Transaction::new().when(META_KEY, Is::Absent).put(META_KEY, meta))?;
            }
        }
        let snapshot = store.snapshot()?;
        let from = snapshot.revision().next();
        let feed = store.watch(KeyRange::all(), from)?;
        let index = Index::read(snapshot)?;
        let next_event = index.events().last().map_or(1, |event| event.id + 1);
        Ok(Self {
            store,
            changed: tokio::sync::watch::Sender::new(from.0),
            index: RwLock::new(index),
            feed: Mutex::new(feed),
            next_event: Mutex::new(next_event),
        })
    }

    /// The index, to be read. It stands still meanwhile: hold it for one answer.
    pub fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    /// Whoever is to be told that there is something new.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether the store can be read and takes transactions.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn check(&self) -> Result<(), Failure> {
        let asked = Transaction::new().when(META_KEY, Is::Present);
        self.store.commit(asked).map(drop).map_err(Failure::from)
    }

    /// The store's counters.
    pub fn counters(&self) -> strongroom_store::Counters {
        self.store.counters()
    }

    /// Makes a draft true, durably; blocks. When it returns, the index shows it.
    ///
    /// # Errors
    /// [`Failure`]. With [`StoreError::Uncertain`] it may be true all the same.
    pub fn commit(&self, draft: Draft) -> Result<(), Failure> {
        if draft.is_empty() {
            return Ok(());
        }
        let pending = {
            let mut next_event = self.next_event.lock();
            self.store.submit(draft.into_transaction(&mut next_event)?)
        };
        let outcome = pending.wait()?;
        self.catch_up()?;
        match outcome {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict(_) => Err(Failure::Raced),
        }
    }

    /// Takes over what the store has and the index has not.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn catch_up(&self) -> Result<(), Failure> {
        let mut feed = self.feed.lock();
        let mut newest = None;
        loop {
            let changes = match feed.next(Duration::ZERO) {
                Ok(changes) => changes,
                Err(StoreError::Compacted { .. }) => {
                    let snapshot = self.store.snapshot()?;
                    *feed = self.store.watch(KeyRange::all(), snapshot.revision().next())?;
                    newest = Some(snapshot.revision().0);
                    *self.index.write() = Index::read(snapshot)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let Some(last) = changes.last() else { break };
            newest = Some(last.revision.0);
            let snapshot = self.store.snapshot()?;
            let mut entries = Vec::with_capacity(changes.len());
            for change in changes {
                let entry = snapshot.get(&change.key)?;
                entries.push((change.key, entry));
            }
            let mut index = self.index.write();
            for (key, entry) in entries {
                index.apply(&key, entry.as_ref())?;
            }
        }
        if let Some(newest) = newest {
            self.changed.send_replace(newest);
        }
        Ok(())
    }

    /// Takes away what is older than is kept.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn prune(&self, now_unix_ms: u64) -> Result<(), Failure> {
        loop {
            let old = self.read().outdated(now_unix_ms, PRUNED_AT_A_TIME);
            if old.is_empty() {
                return Ok(());
            }
            let deletion = old.into_iter().fold(Transaction::new(), |all, key| all.delete(key));
            let _ = self.store.commit(deletion)?;
            self.catch_up()?;
        }
    }
}
