//! A snapshot of a volume while it is served.
//!
//! A worker takes over from the one that serves, as at an upgrade, with a new, empty top over the
//! layer that was the top. Everything that takes time comes before or after: the new top is made
//! and named durably before the old worker drains, and the old top is completed by the new worker
//! when clients are served again. Clients wait from the drain to the new worker's report, in which
//! nothing is synced.
//!
//! The snapshot is there when the old top is complete and durable, and the descriptor says so. A
//! worker or a supervisor that dies before leaves a layer that no snapshot needs, and which is
//! merged some time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_datastore::file::{Access, DatastoreError, Descriptor, NewSnapshot};
use strongroom_types::SnapshotName;

use super::child::ChildError;
use super::restart::Outage;
use super::{Phase, Supervisor, drain_deadline, refuse, start_worker};
use crate::condition::Completion;
use crate::control::Answer;

/// A snapshot whose layer is not complete yet.
#[derive(Debug)]
pub(super) struct PendingSnapshot {
    snapshot: NewSnapshot,
    stall: Duration,
}

impl Supervisor {
    /// Makes a snapshot, or begins to: the answer comes when it is durable.
    pub(super) fn snapshot(&mut self, snapshot: NewSnapshot, least_generation: u64) -> Option<Answer> {
        if self.snapshot.is_some() || self.rewrap.is_some() {
            let reason = "another snapshot, or a move to another key, is under way".to_owned();
            return Some(Refusal::because(reason).into());
        }
        if let Err(error) = self.check_snapshot(&snapshot, least_generation) {
            return Some(refuse(&error));
        }
        match self.change_over() {
            Ok(stall) => {
                tracing::info!("snapshot {}: clients waited for {stall:?}", snapshot.name);
                self.snapshot = Some(PendingSnapshot { snapshot, stall });
                None
            }
            Err(refusal) => Some(refusal.into()),
        }
    }

    fn check_snapshot(&self, snapshot: &NewSnapshot, least_generation: u64) -> Result<(), DatastoreError> {
        let head = &self.exposure.head;
        let (path, descriptor) = (head.path(), head.descriptor());
        descriptor.expect_generation(path, least_generation)?;
        if head.access() == Access::ReadOnly {
            let errno = rustix::io::Errno::ROFS;
            return Err(DatastoreError::ReadOnly { path: path.to_owned(), errno });
        }
        snapshot.check(path, descriptor)
    }

    /// Has another worker go on with a new top. Returns for how long clients waited.
    fn change_over(&mut self) -> Result<Duration, Refusal> {
        if matches!(self.phase, Phase::Down(_)) {
            return Err(Refusal::because("no worker serves now; one is being started".to_owned()));
        }
        let started = start_worker(&self.exposure, self.page.as_deref(), &self.exposure.workers);
        let mut successor =
            started.map_err(|error| Refusal::because(format!("the new worker does not start: {error}")))?;
        let path = PathBuf::from(self.exposure.head.path());
        let kek = self.exposure.kek.now();
        let kek = kek.map_err(|error| Refusal::of(&DatastoreError::Key { path, error }))?;
        let head = &mut self.exposure.head;
        let log_bytes = top_log_bytes(head.descriptor());
        head.prepare_layer(kek.protection(), log_bytes).map_err(|error| Refusal::of(&error))?;
        let opened = head.open_prepared(kek.protection());
        drop(kek);
        let (top, deks) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.withdraw();
                return Err(Refusal::of(&error));
            }
        };
        if let Err(error) = successor.give_keys(deks, &self.exposure.kek) {
            self.withdraw();
            return Err(Refusal::because(format!("the new worker does not take the keys: {error}")));
        }
        let Phase::Serving(worker) = &mut self.phase else {
            return Err(Refusal::because("no worker serves now".to_owned()));
        };
        let suspended_at = Instant::now();
        let handover = match worker.suspend(drain_deadline(&self.exposure)) {
            Ok(handover) => handover,
            Err(ChildError::Refused(reason)) => {
                self.withdraw();
                return Err(Refusal::because(format!("the volume cannot be held still: {reason}")));
            }
            Err(error) => {
                // How far it came is unknown. Its layer is opened as a dead worker's is, below the
                // new top.
                self.phase = Phase::Down(Outage::new(suspended_at));
                return Err(Refusal::because(format!(
                    "the worker did not hand over and is replaced: {error}"
                )));
            }
        };
        match successor.take_over_under(&handover, &top) {
            Ok(()) => {
                let stall = suspended_at.elapsed();
                // The layer's files in it would keep its lock.
                drop((handover, top));
                self.replace(successor);
                Ok(stall)
            }
            Err(ChildError::Refused(reason)) => {
                // It ends by itself, and has done no I/O.
                drop((successor, top));
                self.withdraw();
                if matches!(self.phase, Phase::Serving(_)) {
                    self.take_back(&handover, suspended_at);
                }
                Err(Refusal::because(format!("the new worker refused the sessions: {reason}")))
            }
            Err(error) => {
                drop((successor, top, handover));
                self.phase = Phase::Down(Outage::new(suspended_at));
                Err(Refusal::because(format!("the new worker failed, and another one is started: {error}")))
            }
        }
    }

    /// Takes the new top away, to which nobody has written. If that fails, the volume is opened
    /// anew as its descriptor says it is.
    fn withdraw(&mut self) {
        let withdrawn = match self.exposure.kek.now() {
            Ok(kek) => self.exposure.head.withdraw_layer(kek.protection()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = withdrawn {
            tracing::error!("an empty layer stays on the volume, and its worker is replaced: {error}");
            self.phase = Phase::Down(Outage::new(Instant::now()));
        }
    }

    /// Notes that the layer below the top is complete, once the worker has said so, and answers for
    /// its snapshot.
    pub(super) fn go_on_with_snapshot(&mut self) {
        let Phase::Serving(worker) = &self.phase else { return };
        if self.exposure.head.descriptor().closing().is_none() {
            return;
        }
        let outcome = match &worker.condition().completion {
            Some(Completion::Complete) => match self.settle() {
                Some(outcome) => outcome.map_err(|error| Refusal::of(&error)),
                None => return,
            },
            Some(Completion::Failed { reason }) => Err(Refusal::because(format!(
                "what was written before the snapshot cannot be made durable, so there is none: {reason}"
            ))),
            Some(Completion::UnderWay) | None => return,
        };
        // A layer that a dead supervisor has left is nobody's snapshot.
        let Some(PendingSnapshot { snapshot, stall }) = self.snapshot.take() else { return };
        let answer = outcome.map_or_else(Answer::from, |()| Answer::Snapshotted {
            snapshot: snapshot.id,
            generation: self.exposure.head.descriptor().generation,
            stall_microseconds: u64::try_from(stall.as_micros()).unwrap_or(u64::MAX),
        });
        if let Some(control) = &mut self.control {
            control.answer_late(answer);
        }
    }

    /// Notes that the layer below the top is complete; `None` as long as the key cannot be had.
    fn settle(&mut self) -> Option<Result<(), DatastoreError>> {
        let kek = match self.exposure.kek.now() {
            Ok(kek) => kek,
            Err(error) => {
                tracing::warn!("a snapshot waits for the volume's key: {error}");
                self.exposure.kek.ask_for(&error);
                return None;
            }
        };
        let snapshot = self.snapshot.as_ref().map(|pending| &pending.snapshot);
        Some(self.exposure.head.settle_layer(snapshot, kek.protection()))
    }

    /// Deletes a snapshot. The layers that are read stay as they are.
    pub(super) fn delete_snapshot(&mut self, name: &SnapshotName, least_generation: u64) -> Answer {
        let head = &mut self.exposure.head;
        let path = PathBuf::from(head.path());
        if let Err(error) = head.descriptor().expect_generation(&path, least_generation) {
            return refuse(&error);
        }
        let Some(snapshot) = head.descriptor().snapshot_named(name).map(|snapshot| snapshot.id) else {
            return refuse(&DatastoreError::NoSnapshot { path, snapshot: name.to_string() });
        };
        let deleted = match self.exposure.kek.now() {
            Ok(kek) => head.delete_snapshot(snapshot, kek.protection()),
            Err(error) => Err(DatastoreError::Key { path, error }),
        };
        match deleted {
            Ok(()) => Answer::SnapshotDeleted {
                generation: head.descriptor().generation,
                layers_to_merge: head.descriptor().next_merge().is_some(),
            },
            Err(error) => refuse(&error),
        }
    }
}

/// Bytes of the log of a volume's top, which a new top gets too.
fn top_log_bytes(descriptor: &Descriptor) -> Option<u64> {
    descriptor.layer(descriptor.top).and_then(|layer| layer.log).map(|log| log.bytes)
}

/// Why there is no snapshot.
struct Refusal {
    code: &'static str,
    message: String,
}

impl Refusal {
    fn because(message: String) -> Self {
        Self { code: "snapshot", message }
    }

    fn of(error: &DatastoreError) -> Self {
        Self { code: error.code(), message: error.to_string() }
    }
}

impl From<Refusal> for Answer {
    fn from(Refusal { code, message }: Refusal) -> Self {
        Self::Refused { code: code.to_owned(), message }
    }
}
