//! Replaces a dead worker by its successor.

use std::time::{Duration, Instant};

use strongroom_datastore::file::DatastoreError;
use strongroom_keys::KeyError;

use super::child::{ChildError, End, WorkerProcess};
use super::{Phase, SuperviseError, Supervisor, start_worker};
use crate::condition::{Condition, State};

/// How often the dead worker's lock is tried: its last I/O ends within milliseconds, on a slow disk
/// later.
const LOCK_RETRY: Duration = Duration::from_millis(1);
/// The interval at which a continued wait for the lock is logged.
const LOCK_REMINDER: Duration = Duration::from_secs(5);
/// The pause before the second attempt to start a worker that died before it served or soon after.
/// It doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, and so the longest time until a repair takes effect.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A worker that served for this long does not count as crashing at once.
const SETTLED: Duration = Duration::from_secs(10);

/// Counts the crashes of successive workers. The cause may be a request in flight that every
/// successor repeats. So successors are started ever more slowly, and a guest that causes this
/// cannot occupy a processor.
#[derive(Debug)]
pub struct Crashes {
    count: u32,
    serving_since: Instant,
}

impl Crashes {
    /// No crashes so far, with a worker that serves from now on.
    pub fn none() -> Self {
        Self { count: 0, serving_since: Instant::now() }
    }

    /// Notes that a worker serves from now on.
    pub fn serving(&mut self) {
        self.serving_since = Instant::now();
    }

    /// Notes the death of a worker that served. Returns the outage that begins.
    pub fn died(&mut self, how: &End) -> Outage {
        let at_once = how.is_own_doing() && self.serving_since.elapsed() < SETTLED;
        self.count = if at_once { self.count + 1 } else { 0 };
        let mut outage = Outage::new(Instant::now());
        if let Some(again) = self.count.checked_sub(2) {
            outage.failures = again + 1;
            outage.next_attempt += pause(again);
        }
        outage
    }
}

/// The pause after a failure that `failures` others preceded.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(PAUSE_MAX)
}

/// A period without a worker.
#[derive(Debug)]
pub struct Outage {
    since: Instant,
    /// The successor, confined and waiting for the layer.
    successor: Option<WorkerProcess>,
    next_attempt: Instant,
    failures: u32,
    remind_at: Instant,
    /// Set while the volume's key is missing.
    missing_key: Option<MissingKey>,
}

#[derive(Debug)]
struct MissingKey {
    reason: String,
    /// Whether to try again as soon as the key may be available. Not if a provider gave a wrong
    /// key, which it might do repeatedly.
    at_once: bool,
}

impl Outage {
    /// An outage that began at `since`.
    pub fn new(since: Instant) -> Self {
        Self {
            since,
            successor: None,
            next_attempt: since,
            failures: 0,
            remind_at: since + LOCK_REMINDER,
            missing_key: None,
        }
    }

    /// The time of the next attempt.
    pub fn next_attempt(&self) -> Instant {
        self.next_attempt
    }

    /// The condition of a volume that is not served.
    pub fn condition(&self) -> Condition {
        let state = if self.missing_key.is_some() { State::KeyUnavailable } else { State::Running };
        Condition { state, ..Condition::default() }
    }

    /// Notes that the volume's key is not available now. It is tried again when the state of the
    /// key changes, or after a pause.
    fn misses_key(&mut self, error: &KeyError) {
        self.next_attempt = Instant::now() + PAUSE_MAX;
        let reason = error.to_string();
        if self.missing_key.as_ref().is_none_or(|missing| missing.reason != reason) {
            tracing::error!("nobody serves the volume until its key can be had. {reason}");
        }
        let at_once = !matches!(error, KeyError::WrongKek { .. });
        self.missing_key = Some(MissingKey { reason, at_once });
    }

    /// Notes a worker that died before it served. The next one is started after a pause.
    fn failed(&mut self, error: &ChildError) {
        let pause = pause(self.failures);
        self.failures += 1;
        self.successor = None;
        self.next_attempt = Instant::now() + pause;
        tracing::error!("no worker serves yet: {error}; attempt {} in {pause:?}", self.failures + 1);
    }
}

impl Supervisor {
    /// Called when the state of the key has changed: if it was missing, tries again.
    pub(super) fn key_may_be_back(&mut self) {
        if let Phase::Down(Outage { missing_key: Some(MissingKey { at_once: true, .. }), .. }) = &self.phase {
            self.look_for_key();
        }
    }

    /// If no worker serves, makes the next attempt due now.
    pub(super) fn look_for_key(&mut self) {
        if let Phase::Down(outage) = &mut self.phase {
            outage.next_attempt = Instant::now();
        }
    }

    /// Does the next step towards a new worker, if one is due.
    pub(super) fn restart(&mut self) -> Result<(), SuperviseError> {
        let Phase::Down(outage) = &mut self.phase else { return Ok(()) };
        if Instant::now() < outage.next_attempt {
            return Ok(());
        }
        // It is started while the dead one's I/O ends.
        let mut successor = match outage.successor.take() {
            Some(successor) => successor,
            None => match start_worker(&self.exposure, self.page.as_deref(), &self.exposure.workers) {
                Ok(successor) => successor,
                Err(error) => {
                    outage.failed(&error);
                    return Ok(());
                }
            },
        };
        let kek = match self.exposure.kek.now() {
            Ok(kek) => kek,
            Err(error) => {
                outage.successor = Some(successor);
                outage.misses_key(&error);
                self.exposure.kek.ask_for(&error);
                return Ok(());
            }
        };
        let reopened = self.exposure.head.reopen(kek.protection(), Duration::ZERO);
        drop(kek);
        let (layer, deks) = match reopened {
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
        match successor.give_keys(deks, &self.exposure.kek).and_then(|()| successor.serve(layer)) {
            Ok(()) => {
                self.restarts += 1;
                self.crashes.serving();
                self.herald.begins_anew();
                self.merge.begins_anew();
                let outage = outage.since.elapsed();
                tracing::warn!("worker {} serves; the outage took {outage:?}", successor.id());
                self.phase = Phase::Serving(successor);
            }
            Err(error) => outage.failed(&error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn workers_that_crash_at_once_are_started_ever_more_slowly() {
        let (bus_error, killed) = (End(ExitStatus::from_raw(7)), End(ExitStatus::from_raw(9)));
        let mut crashes = Crashes::none();
        let mut pause_of = |how| {
            let outage = crashes.died(how);
            outage.next_attempt - outage.since
        };
        let pauses: Vec<_> = (0..9).map(|_| pause_of(&bus_error).as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause_of(&killed), Duration::ZERO);
        assert_eq!(pause_of(&bus_error), Duration::ZERO);
    }

    #[test]
    fn a_worker_that_served_for_long_is_replaced_at_once() {
        let Some(long_ago) = Instant::now().checked_sub(2 * SETTLED) else { return };
        let mut crashes = Crashes { count: 7, serving_since: long_ago };
        let outage = crashes.died(&End(ExitStatus::from_raw(11)));
        assert_eq!(outage.next_attempt, outage.since);
    }
}
