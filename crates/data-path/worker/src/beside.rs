//! What jobs have in common that rewrite or copy the layers of a volume beside the process that
//! exposes it: they wait for its other changes, and leave clients their speed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strongroom_datastore::file::DatastoreError;
use strongroom_statistics::Answered;
use thiserror::Error;

use crate::control::{ControlError, Peer, statistics_of};
use crate::merge::MergeError;
use crate::pace::{Pace, Throttle};
use crate::transfer::TransferError;

/// How long the process that exposes the volume may take for a step: it may wait for a key, and
/// syncs a layer.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(600);

/// The interval at which a step is tried again that another change of the volume holds up.
const RETRY: Duration = Duration::from_millis(200);

/// How long that may last: a merge of large layers takes its time.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Why a job beside the process that serves a volume does not go on.
#[derive(Debug, Error)]
pub enum ServedError {
    /// A layer cannot be rewritten, or copied.
    #[error(transparent)]
    Rewrite(#[from] MergeError),
    /// The process that exposes the volume cannot be asked, or refuses.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl From<DatastoreError> for ServedError {
    fn from(error: DatastoreError) -> Self {
        Self::Rewrite(error.into())
    }
}

/// A volume that is served.
#[derive(Clone, Copy, Debug)]
pub struct ServedVolume<'a> {
    /// The volume.
    pub path: &'a Path,
    /// Who may answer as its supervisor.
    pub supervisor: Peer,
}

/// What a step is refused for that passes by itself. A file on a cluster gives up its lock some
/// time after this job has closed it, as its storage process closes it on another thread.
const PASSES: [&str; 4] = ["busy", "snapshot", "not_closed", "in_use"];

/// Waits for other changes of the volume, but not for ever, and reports all the while. `P` is how
/// far the job is.
pub(crate) struct Patience<'a, P> {
    path: &'a Path,
    stop: &'a AtomicBool,
    told: P,
    report: &'a mut dyn FnMut(P),
    until: Instant,
    reason: String,
    /// The error when it has waited too long, with what was in its way.
    gives_up: fn(PathBuf, String) -> DatastoreError,
}

impl<'a, P: Copy> Patience<'a, P> {
    pub(crate) fn new(
        path: &'a Path,
        stop: &'a AtomicBool,
        told: P,
        report: &'a mut dyn FnMut(P),
        gives_up: fn(PathBuf, String) -> DatastoreError,
    ) -> Self {
        let reason = "its layers are being changed".to_owned();
        Self { path, stop, told, report, until: Instant::now() + PATIENCE, reason, gives_up }
    }

    pub(crate) fn tell(&mut self, progress: P) {
        self.told = progress;
        (self.report)(progress);
    }

    /// The answer to a step, or nothing if it has to be tried again.
    pub(crate) fn on<T>(&mut self, answer: Result<T, ServedError>) -> Result<Option<T>, ServedError> {
        match answer {
            Ok(step) => {
                self.until = Instant::now() + PATIENCE;
                Ok(Some(step))
            }
            Err(ServedError::Control(ControlError::Refused { code, message }))
                if PASSES.contains(&code.as_str()) =>
            {
                self.reason = message;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn pause(&mut self) -> Result<(), ServedError> {
        (self.report)(self.told);
        if self.stop.load(Ordering::Relaxed) {
            return Err(ServedError::Rewrite(TransferError::Stopped.into()));
        }
        if Instant::now() >= self.until {
            let reason = std::mem::take(&mut self.reason);
            return Err((self.gives_up)(self.path.to_owned(), reason).into());
        }
        std::thread::sleep(RETRY);
        Ok(())
    }
}

/// Keeps to a throttle, between the steps of a copy. What steps cost the clients is read from the
/// statistics of the process that exposes the volume, which contacts no worker for that.
pub(crate) struct Beside<'a> {
    served: ServedVolume<'a>,
    throttle: Throttle,
    stop: &'a AtomicBool,
    pace: Pace,
    /// What clients had asked for when the step began; nothing before the first one.
    began: Option<Clients>,
    moved_bytes: u64,
}

/// What clients have asked for until now.
#[derive(Clone, Copy)]
struct Clients {
    answered: Option<Answered>,
    are_waiting: bool,
}

impl Clients {
    fn of(served: ServedVolume<'_>) -> Self {
        let statistics = statistics_of(served.path, served.supervisor);
        let are_waiting = statistics.as_ref().is_none_or(|read| read.in_flight > 0);
        Self { answered: statistics.map(|read| read.answered()), are_waiting }
    }

    fn have_asked_since(self, before: Self) -> bool {
        self.are_waiting || before.are_waiting || self.answered != before.answered
    }
}

impl<'a> Beside<'a> {
    pub(crate) fn new(served: ServedVolume<'a>, throttle: Throttle, stop: &'a AtomicBool) -> Self {
        Self { served, throttle, stop, pace: Pace::default(), began: None, moved_bytes: 0 }
    }

    /// Pauses before the next step. `moved_bytes` were written since the beginning.
    pub(crate) fn keep(&mut self, moved_bytes: u64) {
        if let Some(began) = self.began {
            let ended = Clients::of(self.served);
            self.pace.end(moved_bytes - self.moved_bytes, ended.answered);
            let are_busy = ended.have_asked_since(began);
            while !self.stop.load(Ordering::Relaxed) {
                let pause = self.pace.pause(self.throttle, are_busy, Instant::now());
                if pause.is_zero() {
                    break;
                }
                std::thread::sleep(pause.min(RETRY));
            }
        }
        let begins = Clients::of(self.served);
        self.pace.begin(begins.answered);
        (self.began, self.moved_bytes) = (Some(begins), moved_bytes);
    }
}
