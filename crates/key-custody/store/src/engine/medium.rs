//! The backend under redb, which records its failures and the time of its syncs.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redb::StorageBackend;

use crate::counters::Counters;

/// A backend that outlives the database on it, so that the database can be reopened.
#[derive(Clone, Debug)]
pub(super) struct Medium(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: Box<dyn StorageBackend>,
    /// A sync failed: what the page cache holds may not be on the device.
    doubtful: AtomicBool,
    /// A write found no room.
    full: AtomicBool,
    syncs: AtomicU64,
    sync_nanoseconds: AtomicU64,
    sync_nanoseconds_max: AtomicU64,
}

impl Medium {
    pub(super) fn new(backend: impl StorageBackend) -> Self {
        Self(Arc::new(Inner {
            backend: Box::new(backend),
            doubtful: AtomicBool::new(false),
            full: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            sync_nanoseconds: AtomicU64::new(0),
            sync_nanoseconds_max: AtomicU64::new(0),
        }))
    }

    /// Whether the only failures since the last call were writes without room. Then all durable
    /// data still is, and the database may be reopened.
    pub(super) fn take_full(&self) -> bool {
        let full = self.0.full.swap(false, Ordering::SeqCst);
        full && !self.0.doubtful.load(Ordering::SeqCst)
    }

    /// Releases the backend's lock. Nothing is written afterwards.
    pub(super) fn release(&self) {
        if let Err(error) = self.0.backend.close() {
            tracing::warn!(%error, "a store's backend was not closed in order");
        }
    }

    pub(super) fn count(&self, counters: &mut Counters) {
        counters.syncs = self.0.syncs.load(Ordering::Relaxed);
        counters.sync_time = Duration::from_nanos(self.0.sync_nanoseconds.load(Ordering::Relaxed));
        counters.sync_time_max = Duration::from_nanos(self.0.sync_nanoseconds_max.load(Ordering::Relaxed));
    }

    fn noting_full<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        {
            self.0.full.store(true, Ordering::SeqCst);
        }
        result
    }
}

/// The engine handles the lock, so redb sees none.
impl StorageBackend for Medium {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.noting_full(self.0.backend.set_len(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        let began = Instant::now();
        let result = self.0.backend.sync_data();
        let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.syncs.fetch_add(1, Ordering::Relaxed);
        self.0.sync_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        self.0.sync_nanoseconds_max.fetch_max(nanoseconds, Ordering::Relaxed);
        if result.is_err() {
            self.0.doubtful.store(true, Ordering::SeqCst);
        }
        result
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.noting_full(self.0.backend.write(offset, data))
    }
}
