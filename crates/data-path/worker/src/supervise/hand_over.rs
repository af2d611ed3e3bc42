//! Moves sessions from one worker to another.
//!
//! First the successor is started, confined and given the keys. Then the old worker drains and
//! hands over ([`Supervisor::suspend`]), and the successor serves ([`Supervisor::resume`]): clients
//! wait only in between. A successor that refuses the sessions has done no I/O, so another worker
//! takes them back. One that dies with them may have begun I/O, so the supervisor waits for its
//! last I/O, as after any death.

use std::time::{Duration, Instant};

use strongroom_datastore::file::OpenLayer;

use super::child::{ChildError, Handover, WorkerProcess};
use super::restart::Outage;
use super::{Phase, Supervisor, Workers, drain_deadline, start_worker};

/// Sessions that no worker serves. The worker that had them waits to be ended.
#[derive(Debug)]
pub(super) struct Suspended {
    handover: Handover,
    at: Instant,
}

impl Suspended {
    /// The layers below the top, nearest first, that another worker is to serve.
    pub(super) fn lower_mut(&mut self) -> &mut Vec<OpenLayer> {
        &mut self.handover.layer.lower
    }
}

/// The reasons why sessions are not suspended.
#[derive(Debug)]
pub(super) enum NotSuspended {
    /// No worker serves now; one is being started.
    Down,
    /// The worker keeps serving them.
    Kept(String),
    /// The worker's progress is unknown, and it is replaced.
    Lost(String),
}

/// The reasons why a successor does not serve the sessions.
#[derive(Debug)]
pub(super) enum NotResumed {
    /// It refused them, and has done no I/O.
    Refused {
        /// The sessions.
        suspended: Box<Suspended>,
        /// Why.
        reason: String,
    },
    /// It failed with them, and another worker is started.
    Lost(String),
}

impl Supervisor {
    /// Makes the worker drain and hand over.
    pub(super) fn suspend(&mut self) -> Result<Suspended, NotSuspended> {
        let Phase::Serving(worker) = &mut self.phase else { return Err(NotSuspended::Down) };
        let at = Instant::now();
        match worker.suspend(drain_deadline(&self.exposure)) {
            Ok(handover) => {
                self.merge.handed_over(handover.merged_bytes);
                Ok(Suspended { handover, at })
            }
            Err(ChildError::Refused(reason)) => Err(NotSuspended::Kept(reason)),
            Err(error) => {
                self.phase = Phase::Down(Outage::new(at));
                Err(NotSuspended::Lost(error.to_string()))
            }
        }
    }

    /// Makes a successor serve the sessions. Returns how long clients waited.
    pub(super) fn resume(
        &mut self,
        suspended: Suspended,
        mut successor: WorkerProcess,
    ) -> Result<Duration, NotResumed> {
        match successor.take_over(&suspended.handover) {
            Ok(()) => {
                let stall = suspended.at.elapsed();
                // Its open files of the layer would hold the lock.
                drop(suspended);
                self.replace(successor);
                Ok(stall)
            }
            // It ends by itself.
            Err(ChildError::Refused(reason)) => {
                Err(NotResumed::Refused { suspended: Box::new(suspended), reason })
            }
            Err(error) => {
                self.phase = Phase::Down(Outage::new(suspended.at));
                Err(NotResumed::Lost(error.to_string()))
            }
        }
    }

    /// Makes another worker of the old program resume the sessions.
    pub(super) fn take_back(&mut self, suspended: Suspended) {
        let taken = self.successor_of(&self.exposure.workers).and_then(|mut worker| {
            worker.take_over(&suspended.handover)?;
            Ok(worker)
        });
        match taken {
            Ok(worker) => self.replace(worker),
            Err(error) => {
                tracing::error!("the sessions are lost, and clients connect again: {error}");
                self.phase = Phase::Down(Outage::new(suspended.at));
            }
        }
    }

    /// Starts a worker of this program, and gives it everything but the layer.
    pub(super) fn successor_of(&self, workers: &Workers) -> Result<WorkerProcess, ChildError> {
        let mut successor = start_worker(&self.exposure, self.page.as_deref(), workers)?;
        let kek = self.exposure.kek.now().map_err(|error| ChildError::Refused(error.to_string()))?;
        let deks = self.exposure.head.deks(kek.protection());
        drop(kek);
        let deks = deks.map_err(|error| ChildError::Refused(error.to_string()))?;
        successor.give_keys(deks, &self.exposure.kek)?;
        Ok(successor)
    }

    /// Makes this worker the one that serves. The former one, which has handed over, ends.
    fn replace(&mut self, worker: WorkerProcess) {
        self.crashes.serving();
        self.herald.begins_anew();
        if let Phase::Serving(former) = std::mem::replace(&mut self.phase, Phase::Serving(worker))
            && let Err(error) = former.end(drain_deadline(&self.exposure))
        {
            tracing::warn!("the worker before did not end in order: {error}");
        }
    }
}
