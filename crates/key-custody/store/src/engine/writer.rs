//! The one thread that writes: it puts all waiting requests into one commit and answers each one.
//!
//! While a commit is in progress the next group gathers, so a store under load pays for its syncs
//! once for many transactions, and one that is idle commits at once. No request is answered before
//! everything its answer depends on is durable: even a conflict may depend on a transaction of the
//! same group.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strongroom_types::{Answerer, pending};

use crate::entry::{LeaseId, Revision};
use crate::error::StoreError;
use crate::limits::{GROUP_MAX_BYTES, GROUP_MAX_TRANSACTIONS, QUEUE_MAX_BYTES, QUEUE_MAX_TRANSACTIONS};
use crate::store::PendingCommit;
use crate::transaction::{Outcome, Transaction};

use super::Shared;
use super::judge::Rejected;
use super::tables::{self, Tables};

/// A request to the writer.
pub(super) enum Request {
    Transaction {
        transaction: Transaction,
        answer: Answerer<Result<Outcome, StoreError>>,
    },
    Lease {
        ttl: Duration,
        answer: Answerer<Result<LeaseId, StoreError>>,
    },
    Revoke {
        lease: LeaseId,
        answer: Answerer<Result<(), StoreError>>,
    },
    /// The lease has ended by itself.
    Expire {
        lease: LeaseId,
        ttl: Duration,
    },
}

/// The outcome of a request, once it is durable.
enum Verdict {
    Transaction(Result<Outcome, StoreError>),
    Lease(Result<LeaseId, StoreError>),
    Revoked(Result<(), StoreError>),
}

/// Requests on their way to the writer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Request>,
    bytes: usize,
    /// Why the queue takes no more requests.
    closed: Option<StoreError>,
}

impl Queue {
    pub(super) fn submit(&self, transaction: Transaction) -> PendingCommit {
        let (answer, pending) = pending();
        match transaction.check() {
            Ok(()) => self.push(Request::Transaction { transaction, answer }),
            Err(error) => answer.answer(Err(error)),
        }
        PendingCommit::new(pending)
    }

    /// Submits a request, and blocks for the answer.
    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(Answerer<Result<T, StoreError>>) -> Request,
    ) -> Result<T, StoreError> {
        let (answer, pending) = pending();
        self.push(request(answer));
        pending
            .wait()
            .unwrap_or_else(|abandoned| Err(StoreError::Uncertain { reason: abandoned.to_string().into() }))
    }

    fn push(&self, request: Request) {
        let bytes = request.size_bytes();
        let mut waiting = self.waiting.lock();
        let full =
            waiting.requests.len() >= QUEUE_MAX_TRANSACTIONS || waiting.bytes + bytes > QUEUE_MAX_BYTES;
        let refused = waiting.closed.clone().or(full.then_some(StoreError::Overloaded));
        if let Some(refused) = refused {
            drop(waiting);
            return request.refuse(&refused);
        }
        waiting.bytes += bytes;
        waiting.requests.push_back(request);
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes no more requests; waiting ones are still done.
    pub(super) fn finish(&self) {
        self.waiting.lock().closed.get_or_insert(StoreError::Closed);
        self.arrived.notify_one();
    }

    /// Takes no more requests, and refuses the waiting ones.
    pub(super) fn close(&self, why: &StoreError) {
        let mut waiting = self.waiting.lock();
        waiting.closed.get_or_insert_with(|| why.clone());
        let refused = std::mem::take(&mut waiting.requests);
        drop(waiting);
        refused.into_iter().for_each(|request| request.refuse(why));
    }

    /// The next group: empty at `deadline`, `None` after the last one.
    fn next_group(&self, deadline: Option<Instant>) -> Option<Vec<Request>> {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.closed.is_some() {
                return None;
            }
            match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                None => self.arrived.wait(&mut waiting),
                Some(left) if left.is_zero() => return Some(Vec::new()),
                Some(left) => {
                    self.arrived.wait_for(&mut waiting, left);
                }
            }
        }
        let mut group = Vec::new();
        let mut bytes = 0;
        while group.len() < GROUP_MAX_TRANSACTIONS && bytes < GROUP_MAX_BYTES {
            let Some(request) = waiting.requests.pop_front() else { break };
            bytes += request.size_bytes();
            group.push(request);
        }
        waiting.bytes -= bytes;
        Some(group)
    }
}

/// Why a group was not committed.
struct Failed {
    error: redb::Error,
    /// The revision and verdicts of a commit that had begun, and may be on the device.
    committing: Option<(Revision, Vec<Verdict>)>,
}

impl<E: Into<redb::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.into(), committing: None }
    }
}

pub(super) fn start(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("store-writer".into()).spawn(move || {
        let writer = Writer { shared };
        writer.run();
    })
}

struct Writer {
    shared: Arc<Shared>,
}

/// However the thread ends, no caller keeps waiting for it.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.end(StoreError::Unavailable { reason: "its writer has ended".into() });
    }
}

impl Writer {
    fn run(&self) {
        loop {
            let next_end = self.shared.leases().next_end();
            let Some(mut group) = self.shared.queue.next_group(next_end) else { break };
            let ended = self.shared.leases().take_ended(Instant::now());
            group.extend(ended.into_iter().map(|(lease, ttl)| Request::Expire { lease, ttl }));
            if !group.is_empty() {
                self.do_group(group);
            }
        }
        let database = {
            let mut database = self.shared.database.write();
            drop(self.shared.latest.lock().take());
            database.take()
        };
        if let Some(Err(error)) = database.map(redb::Database::close) {
            tracing::warn!(store = %self.shared.name, %error, "the store was not closed in order; opening it takes longer");
        }
        self.shared.end(StoreError::Closed);
    }

    fn do_group(&self, group: Vec<Request>) {
        let began = Instant::now();
        let opened = if self.is_open() { Ok(()) } else { self.open_anew().map(|_| ()) };
        let done = opened.and_then(|()| self.attempt(&group).or_else(|failed| self.recover(failed)));
        match done {
            Ok((revision, verdicts)) => {
                self.count(&verdicts, began.elapsed());
                self.note_leases(&group, &verdicts);
                self.shared.publish(revision);
                group.into_iter().zip(verdicts).for_each(|(request, verdict)| request.answer(verdict));
            }
            Err(error) => {
                self.shared.counters.lock().refused += group.len() as u64;
                for request in &group {
                    if let Request::Expire { lease, ttl } = request {
                        self.shared.leases().add(*lease, *ttl);
                    }
                }
                group.into_iter().for_each(|request| request.refuse(&error));
            }
        }
    }

    fn is_open(&self) -> bool {
        self.shared.database.read().is_some()
    }

    /// Judges all requests of a group and makes their changes durable.
    fn attempt(&self, group: &[Request]) -> Result<(Revision, Vec<Verdict>), Failed> {
        let database = self.shared.database.read();
        let Some(database) = database.as_ref() else { return Err(redb::Error::DatabaseClosed.into()) };
        let transaction = tables::durable(database)?;
        let mut tables = Tables::open(&transaction)?;
        let before = tables.revision;
        let mut verdicts = Vec::with_capacity(group.len());
        let mut granted = 0;
        for request in group {
            let verdict = self.judge(&mut tables, request, granted)?;
            granted += usize::from(matches!(verdict, Verdict::Lease(Ok(_))));
            verdicts.push(verdict);
        }
        let after = tables.revision;
        let leases_changed = verdicts
            .iter()
            .any(|verdict| matches!(verdict, Verdict::Lease(Ok(_)) | Verdict::Revoked(Ok(()))));
        tables.seal()?;
        if before == after && !leases_changed {
            transaction.abort()?;
            return Ok((after, verdicts));
        }
        match transaction.commit() {
            Ok(()) => Ok((after, verdicts)),
            Err(error) => Err(Failed { error: error.into(), committing: Some((after, verdicts)) }),
        }
    }

    fn judge(
        &self,
        tables: &mut Tables<'_>,
        request: &Request,
        granted: usize,
    ) -> Result<Verdict, redb::Error> {
        Ok(match request {
            Request::Transaction { transaction, .. } => match tables.judge(transaction) {
                Ok(outcome) => Verdict::Transaction(Ok(outcome)),
                Err(Rejected::Transaction(error)) => Verdict::Transaction(Err(error)),
                Err(Rejected::Engine(error)) => return Err(error),
            },
            Request::Lease { ttl, .. } => match self.shared.leases().room(granted) {
                Ok(()) => Verdict::Lease(Ok(tables.grant(*ttl)?)),
                Err(error) => Verdict::Lease(Err(error)),
            },
            Request::Revoke { lease, .. } | Request::Expire { lease, .. } => {
                let there = tables.end_lease(*lease)?;
                Verdict::Revoked(there.then_some(()).ok_or(StoreError::UnknownLease { lease: *lease }))
            }
        })
    }

    /// After a write without room, and nothing worse, the store continues from its durable state.
    /// Otherwise it ends here.
    fn recover(&self, failed: Failed) -> Result<(Revision, Vec<Verdict>), StoreError> {
        let reason: Arc<str> = failed.error.to_string().into();
        tracing::error!(store = %self.shared.name, %reason, "a write failed");
        if !self.shared.medium.take_full() {
            self.shared.end(StoreError::Unavailable { reason: Arc::clone(&reason) });
            return Err(match failed.committing {
                Some(_) => StoreError::Uncertain { reason },
                None => StoreError::Unavailable { reason },
            });
        }
        match (self.open_anew(), failed.committing) {
            // The commit's last write succeeded, and reopening has made it durable.
            (Ok(revision), Some((reached, verdicts))) if revision == reached => Ok((revision, verdicts)),
            (Ok(_), _) => Err(StoreError::Full { reason }),
            (Err(_), Some(_)) => Err(StoreError::Uncertain { reason }),
            (Err(error), None) => Err(error),
        }
    }

    /// Opens the database again after the medium was full. If it still is, the next group tries
    /// again.
    fn open_anew(&self) -> Result<Revision, StoreError> {
        let mut database = self.shared.database.write();
        drop(self.shared.latest.lock().take());
        drop(database.take());
        match tables::open(&self.shared.medium, &self.shared.name) {
            Ok(opened) => {
                *database = Some(opened.database);
                Ok(opened.revision)
            }
            Err(error) if self.shared.medium.take_full() => {
                Err(StoreError::Full { reason: error.to_string().into() })
            }
            Err(error) => {
                drop(database);
                self.shared.end(error.clone());
                Err(error)
            }
        }
    }

    fn count(&self, verdicts: &[Verdict], took: Duration) {
        let mut counters = self.shared.counters.lock();
        counters.groups += 1;
        counters.group_max = counters.group_max.max(verdicts.len() as u64);
        counters.group_time += took;
        counters.group_time_max = counters.group_time_max.max(took);
        for verdict in verdicts {
            match verdict {
                Verdict::Transaction(Ok(Outcome::Conflict(_))) => counters.conflicts += 1,
                Verdict::Transaction(Ok(Outcome::Committed(_)))
                | Verdict::Lease(Ok(_))
                | Verdict::Revoked(Ok(())) => counters.committed += 1,
                Verdict::Transaction(Err(_)) | Verdict::Lease(Err(_)) | Verdict::Revoked(Err(_)) => {
                    counters.refused += 1;
                }
            }
        }
    }

    /// Runs before any answer, so that a caller who learns that a lease has ended finds it gone.
    fn note_leases(&self, group: &[Request], verdicts: &[Verdict]) {
        let mut leases = self.shared.leases();
        for (request, verdict) in group.iter().zip(verdicts) {
            match (request, verdict) {
                (Request::Lease { ttl, .. }, Verdict::Lease(Ok(lease))) => leases.add(*lease, *ttl),
                (Request::Revoke { lease, .. }, _) => leases.remove(*lease),
                _ => {}
            }
        }
    }
}

impl Request {
    fn size_bytes(&self) -> usize {
        match self {
            Self::Transaction { transaction, .. } => transaction.size_bytes(),
            Self::Lease { .. } | Self::Revoke { .. } | Self::Expire { .. } => 0,
        }
    }

    fn answer(self, verdict: Verdict) {
        match (self, verdict) {
            (Self::Transaction { answer, .. }, Verdict::Transaction(outcome)) => answer.answer(outcome),
            (Self::Lease { answer, .. }, Verdict::Lease(lease)) => answer.answer(lease),
            (Self::Revoke { answer, .. }, Verdict::Revoked(revoked)) => answer.answer(revoked),
            // Nobody waits for an expiry. A verdict is made of its request's kind, so there is no
            // other case; it would leave the answer to the answerer's drop, which reports an
            // unknown outcome.
            _ => {}
        }
    }

    fn refuse(self, why: &StoreError) {
        match self {
            Self::Transaction { answer, .. } => answer.answer(Err(why.clone())),
            Self::Lease { answer, .. } => answer.answer(Err(why.clone())),
            Self::Revoke { answer, .. } => answer.answer(Err(why.clone())),
            Self::Expire { .. } => {}
        }
    }
}
