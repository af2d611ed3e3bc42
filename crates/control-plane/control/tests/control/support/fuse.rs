//! Kills at a chosen moment. A burnt fuse lets no action through, so code that still runs gets
//! errors and changes nothing: it is as dead as a process that is never scheduled again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use strongroom_store::{
    Counters, KeyRange, LeaseId, PendingCommit, Revision, Snapshot, Store, StoreError, Transaction, Watch,
};
use strongroom_types::pending;

/// Counts down with each external action.
#[derive(Default)]
pub struct Fuse(AtomicI64);

impl Fuse {
    /// Sets the moment at which it burns. Each action has two moments: before it and after it.
    pub fn set(&self, moments: i64) {
        self.0.store(moments, Ordering::SeqCst);
    }

    /// Whether the control plane is dead.
    pub fn is_burnt(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= 0
    }

    /// Passes one moment. Returns `false` if the fuse is burnt.
    pub fn passes(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) > 1
    }
}

/// A store behind a fuse.
pub struct FusedStore {
    pub store: Arc<dyn Store>,
    pub fuse: Arc<Fuse>,
}

impl Store for FusedStore {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.store.snapshot()
    }

    fn submit(&self, transaction: Transaction) -> PendingCommit {
        let dead = || {
            let (reply, answer) = pending();
            reply.answer(Err(StoreError::Closed));
            PendingCommit::new(answer)
        };
        if !self.fuse.passes() {
            return dead();
        }
        let done = self.store.submit(transaction);
        if self.fuse.passes() {
            return done;
        }
        // The change is durable, but the answer is lost.
        let _ = done.wait();
        dead()
    }

    fn watch(&self, range: KeyRange, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(range, from)
    }

    fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.lease(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease)
    }

    fn counters(&self) -> Counters {
        self.store.counters()
    }
}
