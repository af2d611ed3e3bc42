//! The embedded engine: a store in one file, through redb, for one process.
//!
//! - [`writer`]: the one thread that writes. It takes all that waits, up to a limit, judges one
//!   transaction after the other on the same redb transaction, makes them durable with one commit
//!   and answers each.
//! - [`tables`]: what is kept, byte by byte. [`judge`]: what one transaction does to it.
//! - [`leases`]: when keys vanish. [`watch`], [`snapshot`]: reading.
//! - [`medium`]: what redb stands on, and what went wrong there. [`file`](mod@file): a file and its
//!   lock.
//!
//! # Why nothing that was acknowledged is lost
//! Each commit has two phases (redb's `set_two_phase_commit`): everything new is written and made
//! durable, then one byte of the header names it, and that is made durable. So a power cut leaves
//! the old or the new state whole, and a state that does not verify was damaged by something else.
//! With one phase redb would take that for a cut and go back to the commit before, which had been
//! acknowledged. On opening, every page that the header leads to is read and its checksum verified;
//! the store is refused if one does not. After a failed sync no write is taken until the store is
//! opened again, because the page cache may hold what the device does not.

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

/// Memory that redb may use for pages, in bytes. Stores are small; those that are not live in the
/// page cache.
const CACHE_BYTES: usize = 64 * 1024 * 1024;

/// A store in one file. It is closed, with everything that waits done, when it is dropped.
pub struct Engine {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// What callers, watches and the writer have in common.
struct Shared {
    /// Where it lies, for messages.
    name: Arc<str>,
    medium: Medium,
    /// None while it is opened anew after the medium was full, and from the end on.
    database: RwLock<Option<Database>>,
    queue: Queue,
    leases: Mutex<Leases>,
    state: Mutex<State>,
    /// Told of each commit, and of the end.
    changed: Condvar,
    counters: Mutex<Counters>,
}

/// How far the store is.
#[derive(Debug, Default)]
struct State {
    /// The latest durable revision.
    revision: Revision,
    /// Why it takes nothing any more.
    ended: Option<StoreError>,
}

impl Engine {
    /// Makes an empty store in a file that must not exist, readable by its owner alone, and opens
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

    /// Opens what lies on a backend, or makes an empty store there if it has no bytes. The
    /// backend's lock, if it has one, is the caller's.
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
    fn snapshot(&self) -> Result<EngineSnapshot, StoreError> {
        let database = self.database.read();
        let Some(database) = database.as_ref() else { return Err(self.why_unusable()) };
        let transaction = database.begin_read().map_err(unavailable)?;
        EngineSnapshot::begin(transaction)
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

    /// Tells everybody how far it is now.
    fn publish(&self, revision: Revision) {
        self.state.lock().revision = revision;
        self.changed.notify_all();
    }

    /// Takes nothing from now on.
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
            // A panic of the writer has been told by the panic hook, and everybody who waited by
            // their answers.
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
