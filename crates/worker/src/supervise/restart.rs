//! From a worker's death to its successor.

use std::time::{Duration, Instant};

use strongroom_datastore::file::DatastoreError;

use super::child::{ChildError, WorkerProcess};
use super::{Phase, SuperviseError, Supervisor, protection, start_worker};

/// How often the dead worker's lock is tried: its last I/O ends within milliseconds, on a slow disk later.
const LOCK_RETRY: Duration = Duration::from_millis(1);
/// After how long it is said that the lock is still waited for, and how often again.
const LOCK_REMINDER: Duration = Duration::from_secs(5);
/// The pause before the second attempt to start a worker that died before it served; twice as long before each further
/// one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause: a person who repairs something does not wait longer for it to be noticed.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The time without a worker.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    /// The successor, confined and waiting for the layer.
    successor: Option<WorkerProcess>,
    next_attempt: Instant,
    failures: u32,
    remind_at: Instant,
}

impl Outage {
    /// One that began just now.
    pub fn new(since: Instant) -> Self {
        Self { since, successor: None, next_attempt: since, failures: 0, remind_at: since + LOCK_REMINDER }
    }

    /// When something is to be tried.
    pub fn next_attempt(&self) -> Instant {
        self.next_attempt
    }

    /// A worker that died before it served: the next one is started after a pause.
    fn failed(&mut self, error: &ChildError) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(PAUSE_MAX);
        self.failures += 1;
        self.successor = None;
        self.next_attempt = Instant::now() + pause;
        tracing::error!("no worker serves yet: {error}; attempt {} in {pause:?}", self.failures + 1);
    }
}

impl Supervisor {
    /// Does the next step towards a new worker, if one is due.
    pub(super) fn restart(&mut self) -> Result<(), SuperviseError> {
        let Phase::Down(outage) = &mut self.phase else { return Ok(()) };
        if Instant::now() < outage.next_attempt {
            return Ok(());
        }
        // It is started while the dead one's I/O ends.
        let mut successor = match outage.successor.take() {
            Some(successor) => successor,
            None => match start_worker(&self.exposure, &self.exposure.program) {
                Ok(successor) => successor,
                Err(error) => {
                    outage.failed(&error);
                    return Ok(());
                }
            },
        };
        let protection = protection(self.exposure.kek.as_ref());
        let (layer, deks) = match self.exposure.head.reopen(protection, Duration::ZERO) {
            Ok(opened) => opened,
            Err(DatastoreError::InUse { .. }) => {
                outage.successor = Some(successor);
                outage.next_attempt = Instant::now() + LOCK_RETRY;
                if Instant::now() >= outage.remind_at {
                    outage.remind_at = Instant::now() + LOCK_REMINDER;
                    tracing::warn!("the dead worker's last requests are still in the disk; waiting for them");
                }
                return Ok(());
            }
            Err(error @ (DatastoreError::System { .. } | DatastoreError::Full { .. })) => {
                outage.failed(&ChildError::Refused(error.to_string()));
                return Ok(());
            }
            Err(error) => return Err(SuperviseError::Lost(error)),
        };
        match successor.give_keys(deks).and_then(|()| successor.serve(layer)) {
            Ok(()) => {
                self.restarts += 1;
                let outage = outage.since.elapsed();
                tracing::warn!("worker {} serves; the outage took {outage:?}", successor.id());
                self.phase = Phase::Serving(successor);
            }
            Err(error) => outage.failed(&error),
        }
        Ok(())
    }
}
