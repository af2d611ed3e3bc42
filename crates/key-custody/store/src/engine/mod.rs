//! The embedded engine: a store in one file, through redb, for one process.
//!
//! - [`writer`]: the one thread that writes. It takes all waiting transactions, up to a limit,
//!   judges them one after the other on the same redb transaction, makes them durable with one
//!   commit and answers each.
//! - [`tables`]: the format, byte by byte. [`judge`]: applying one transaction.
//! - [`leases`]: the ends of leases. [`watch`], [`snapshot`]: reading.
//! - [`medium`]: the backend under redb, and its failures. [`file`](mod@file): a file and its lock.
//!
//! # Why nothing that was acknowledged is lost
//! Each commit has two phases (redb's `set_two_phase_commit`): everything new is written and made
//! durable, then one byte of the header names it, and that is made durable. So a power cut leaves
//! the old or the new state whole, and a state that does not verify was damaged by something else.
//! With one phase, redb would mistake such damage for a power cut and return to the previous
//! commit, which loses an acknowledged one. Opening reads every page that the header leads to and
//! verifies its checksum; a store with a wrong one is refused. After a failed sync no write is
//! taken until the store is opened again, because the page cache may hold what the device does not.

mod file;
mod judge;
mod leases;
mod medium;
mod snapshot;
mod tables;
mod watch;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use redb::{Database, ReadableDatabase, StorageBackend};

use crate::counters::Counters;
use crate::entry::{LeaseId, Revision};
use crate::error::StoreError;
use crate::range::KeyRange;
use crate::store::{PendingCommit, Snapshot, Store, Watch};
use crate::transaction::Transaction;

use self::leases::Leases;
use self::medium::Medium;
use self::snapshot::EngineSnapshot;
use self::tables::Opened;
use self::watch::EngineWatch;
use self::writer::{Queue, Request};

/// Memory that redb may use for pages, in bytes. Stores are small; large ones live in the page
/// cache.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// A store in one file. Dropping it completes all waiting transactions and closes it.
pub struct Engine {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// State shared by callers, watches and the writer.
struct Shared {
    /// The store's name in messages.
    name: Arc<str>,
    medium: Medium,
    /// `None` while it is reopened after the medium was full, and after the end.
    database: RwLock<Option<Database>>,
    /// The last snapshot that a reader began, for others until the next commit. Only the holder of
    /// `database` puts one here. The writer drops it with each commit and when it closes the
    /// database, because redb cannot reuse the pages that a snapshot sees.
    latest: Mutex<Option<Arc<EngineSnapshot>>>,
    queue: Queue,
    leases: Mutex<Leases>,
    state: Mutex<State>,
    /// Notified after each commit, and when the store ends.
    changed: Condvar,
    counters: Mutex<Counters>,
}

/// The store's progress.
#[derive(Debug, Default)]
struct State {
    /// The latest durable revision.
    revision: Revision,
    /// Why it takes no more requests.
    ended: Option<StoreError>,
}

impl Engine {
    /// Creates an empty store in a file that must not exist, readable by its owner alone, and opens
    /// it. The file appears whole and durable or not at all.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let name = name_of(path);
        let failed = |error: std::io::Error| StoreError::Open {
            store: Arc::clone(&name),
            doing: "made",
            reason: error.to_string().into(),
        };
        let (nameless, handle) = file::Nameless::create(path).map_err(failed)?;
        let engine = Self::with_backend(handle, Arc::clone(&name))?;
        nameless.appear().map_err(failed)?;
        Ok(engine)
    }

    /// Opens a store.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Damaged`], [`StoreError::UnknownFormat`],
    /// [`StoreError::Open`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = name_of(path);
        let file = file::LockedFile::open(path, &name)?;
        if file.len().is_ok_and(|length| length == 0) {
            return Err(StoreError::Damaged { store: name, reason: "it is empty".into() });
        }
        Self::with_backend(file, name)
    }

    /// Opens the store on a backend, or creates an empty one if the backend has no bytes. The
    /// caller manages the backend's lock, if it has one.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_backend(backend: impl StorageBackend, name: impl Into<Arc<str>>) -> Result<Self, StoreError> {
        let name = name.into();
        let medium = Medium::new(backend);
        let Opened { database, revision, leases } = tables::open(&medium, &name)?;
        let shared = Arc::new(Shared {
            name,
            medium,
            database: RwLock::new(Some(database)),
            latest: Mutex::default(),
            queue: Queue::default(),
            leases: Mutex::new(Leases::begin(leases)),
            state: Mutex::new(State { revision, ended: None }),
            changed: Condvar::new(),
            counters: Mutex::default(),
        });
        let writer = writer::start(Arc::clone(&shared)).map_err(|error| StoreError::Open {
            store: Arc::clone(&shared.name),
            doing: "opened",
            reason: format!("its writer cannot be started: {error}").into(),
        })?;
        Ok(Self { shared, writer: Some(writer) })
    }
}

impl Store for Engine {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.shared.snapshot()?))
    }

    fn submit(&self, transaction: Transaction) -> PendingCommit {
        self.shared.queue.submit(transaction)
    }

    fn watch(&self, range: KeyRange, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        Ok(Box::new(EngineWatch::begin(Arc::clone(&self.shared), range, from)?))
    }

    fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        leases::check_ttl(ttl)?;
        self.shared.queue.ask(|answer| Request::Lease { ttl, answer })
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.shared.usable()?;
        self.shared.leases().keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.shared.queue.ask(|answer| Request::Revoke { lease, answer })
    }

    fn counters(&self) -> Counters {
        let mut counters = *self.shared.counters.lock();
        self.shared.medium.count(&mut counters);
        counters
    }
}

impl Shared {
    /// A snapshot of the latest durable revision, or a later one. Readers share it, because
    /// beginning one costs more than reading an entry.
    fn snapshot(&self) -> Result<Arc<EngineSnapshot>, StoreError> {
        let database = self.database.read();
        let Some(database) = database.as_ref() else { return Err(self.why_unusable()) };
        let durable = self.state.lock().revision;
        if let Some(latest) = self.latest.lock().as_ref().filter(|latest| latest.revision() == durable) {
            return Ok(Arc::clone(latest));
        }
        let latest = Arc::new(EngineSnapshot::begin(database.begin_read().map_err(unavailable)?)?);
        *self.latest.lock() = Some(Arc::clone(&latest));
        Ok(latest)
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock()
    }

    fn usable(&self) -> Result<(), StoreError> {
        self.state.lock().ended.clone().map_or(Ok(()), Err)
    }

    fn why_unusable(&self) -> StoreError {
        let ended = self.state.lock().ended.clone();
        ended
            .unwrap_or_else(|| StoreError::Full { reason: "it is read again once a write finds room".into() })
    }

    /// Publishes the latest durable revision.
    fn publish(&self, revision: Revision) {
        self.state.lock().revision = revision;
        drop(self.latest.lock().take());
        self.changed.notify_all();
    }

    /// Refuses all further requests.
    fn end(&self, why: StoreError) {
        self.queue.close(&why);
        self.state.lock().ended.get_or_insert(why);
        self.changed.notify_all();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.queue.finish();
        if let Some(writer) = self.writer.take() {
            // The panic hook has reported a panic of the writer, and every waiting caller has its
            // answer.
            let _ = writer.join();
        }
        // Snapshots may outlive the engine; its lock does not.
        self.shared.medium.release();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").field("store", &self.shared.name).finish_non_exhaustive()
    }
}

fn name_of(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}

fn unavailable(error: impl Into<redb::Error>) -> StoreError {
    StoreError::Unavailable { reason: error.into().to_string().into() }
}
