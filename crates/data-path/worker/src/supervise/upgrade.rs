//! Moves a served volume to the program that is installed now.
//!
//! Whatever fails, clients are served, by the new worker or by one of the old program
//! ([`hand_over`](super::hand_over)).

use super::hand_over::{NotResumed, NotSuspended};
use super::{Supervisor, microseconds};
use crate::control::Answer;

impl Supervisor {
    /// Replaces the worker.
    pub(super) fn upgrade(&mut self) -> Answer {
        let workers = match self.exposure.workers.installed_now() {
            Ok(workers) => workers,
            Err(error) => return refused(error.to_string()),
        };
        let Some(old_worker_pid) = self.worker_id() else {
            return refused("no worker serves now; one is being started".to_owned());
        };
        let successor = match self.successor_of(&workers) {
            Ok(successor) => successor,
            Err(error) => return refused(format!("the new worker does not start: {error}")),
        };
        let (worker_pid, program) = (successor.id(), successor.program().to_owned());
        let suspended = match self.suspend() {
            Ok(suspended) => suspended,
            Err(NotSuspended::Down) => return refused("no worker serves now".to_owned()),
            // It keeps serving, or ends by itself and is replaced.
            Err(NotSuspended::Kept(reason)) => {
                return refused(format!("the old worker does not hand over: {reason}"));
            }
            Err(NotSuspended::Lost(error)) => {
                return refused(format!("the old worker did not hand over and is replaced: {error}"));
            }
        };
        match self.resume(suspended, successor) {
            Ok(stall) => {
                tracing::info!(
                    "upgraded: worker {worker_pid} (version {program}) serves after a pause of {stall:?}"
                );
                self.exposure.workers = workers;
                let stall_microseconds = microseconds(stall);
                Answer::Upgraded { old_worker_pid, worker_pid, program, stall_microseconds }
            }
            Err(NotResumed::Refused { suspended, reason }) => {
                self.take_back(*suspended);
                refused(format!("the new worker refused the sessions, and the old program goes on: {reason}"))
            }
            Err(NotResumed::Lost(error)) => {
                refused(format!("the new worker failed, and the old program is started again: {error}"))
            }
        }
    }
}

fn refused(message: String) -> Answer {
    Answer::Refused { code: "upgrade".to_owned(), message }
}
