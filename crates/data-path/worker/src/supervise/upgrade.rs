//! A running volume moves to the program that is installed now.
//!
//! The order of the steps is such that whatever fails, clients are served: a new worker is started,
//! confined and given the keys before the old one stops; then the old one drains and hands over,
//! and only the time from there to the new one's report is the clients' pause. A new worker that
//! refuses the sessions is replaced by one of the old program, which takes them. One that dies with
//! them may have begun with I/O, so then the dead one's last I/O is waited for, as after any death.

use std::time::Instant;

use super::child::{ChildError, Handover, WorkerProcess};
use super::restart::Outage;
use super::{Phase, Supervisor, Workers, drain_deadline, start_worker};
use crate::control::Answer;

impl Supervisor {
    /// Exchanges the worker.
    pub(super) fn upgrade(&mut self) -> Answer {
        let workers = match self.exposure.workers.installed_now() {
            Ok(workers) => workers,
            Err(error) => return refused(error.to_string()),
        };
        if matches!(self.phase, Phase::Down(_)) {
            return refused("no worker serves now; one is being started".to_owned());
        }
        let mut successor = match self.successor_of(&workers) {
            Ok(successor) => successor,
            Err(error) => return refused(format!("the new worker does not start: {error}")),
        };
        let Phase::Serving(worker) = &mut self.phase else {
            return refused("no worker serves now".to_owned());
        };
        let old_worker_pid = worker.id();
        let suspended_at = Instant::now();
        let handover = match worker.suspend(drain_deadline(&self.exposure)) {
            Ok(handover) => handover,
            // It goes on, or ends by itself and is replaced.
            Err(ChildError::Refused(reason)) => {
                return refused(format!("the old worker does not hand over: {reason}"));
            }
            Err(error) => {
                // It cannot be told how far it came. What it leaves is what any dead worker leaves.
                self.phase = Phase::Down(Outage::new(suspended_at));
                return refused(format!("the old worker did not hand over and is replaced: {error}"));
            }
        };
        let answer = match successor.take_over(&handover) {
            Ok(()) => {
                let stall = suspended_at.elapsed();
                let (worker_pid, version) = (successor.id(), successor.program().to_owned());
                tracing::info!(
                    "upgraded: worker {worker_pid} (version {version}) serves after a pause of {stall:?}"
                );
                self.exposure.workers = workers;
                self.replace(successor);
                Answer::Upgraded {
                    old_worker_pid,
                    worker_pid,
                    program: version,
                    stall_microseconds: u64::try_from(stall.as_micros()).unwrap_or(u64::MAX),
                }
            }
            Err(ChildError::Refused(reason)) => {
                // It ends by itself, and has done no I/O.
                drop(successor);
                self.take_back(&handover, suspended_at);
                refused(format!("the new worker refused the sessions, and the old program goes on: {reason}"))
            }
            Err(error) => {
                drop(successor);
                self.phase = Phase::Down(Outage::new(suspended_at));
                refused(format!("the new worker failed, and the old program is started again: {error}"))
            }
        };
        // The layer's file in it would keep the lock.
        drop(handover);
        answer
    }

    /// A worker of this program that has everything but the layer.
    fn successor_of(&self, workers: &Workers) -> Result<WorkerProcess, ChildError> {
        let mut successor = start_worker(&self.exposure, self.page.as_deref(), workers)?;
        let kek = self.exposure.kek.now().map_err(|error| ChildError::Refused(error.to_string()))?;
        let deks = self.exposure.head.deks(kek.protection());
        drop(kek);
        let deks = deks.map_err(|error| ChildError::Refused(error.to_string()))?;
        successor.give_keys(deks, &self.exposure.kek)?;
        Ok(successor)
    }

    /// Has another worker of the old program go on with the sessions.
    pub(super) fn take_back(&mut self, handover: &Handover, suspended_at: Instant) {
        let taken = self.successor_of(&self.exposure.workers).and_then(|mut worker| {
            worker.take_over(handover)?;
            Ok(worker)
        });
        match taken {
            Ok(worker) => self.replace(worker),
            Err(error) => {
                tracing::error!("the sessions are lost, and clients connect again: {error}");
                self.phase = Phase::Down(Outage::new(suspended_at));
            }
        }
    }

    /// Serves through this worker, and lets go of the one before, which has nothing left to do.
    pub(super) fn replace(&mut self, worker: WorkerProcess) {
        self.crashes.serving();
        self.herald.begins_anew();
        if let Phase::Serving(old) = std::mem::replace(&mut self.phase, Phase::Serving(worker))
            && let Err(error) = old.end(drain_deadline(&self.exposure))
        {
            tracing::warn!("the worker before did not end in order: {error}");
        }
    }
}

fn refused(message: String) -> Answer {
    Answer::Refused { code: "upgrade".to_owned(), message }
}
