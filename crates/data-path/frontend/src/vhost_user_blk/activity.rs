//! Which front end runs the device: at most one, and never one that missed a run.
//!
//! While a guest migrates on one host, two front ends are connected: the source, whose queues run,
//! and the destination, which waits. The source's queues are drained before the destination's
//! start. Each time the device begins to run for a front end, it is a new *run*, with a number. A
//! front end that ran before may run again only if it had the last run: after another one has run,
//! its guest's state is older than the disk, and would corrupt it.
//!
//! The number is stored in the front end's session, and in its in-flight area
//! ([`super::in_flight`]), where it survives the end of a connection and of this process. A server
//! that has just started knows of no run and accepts the first number that it receives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use thiserror::Error;

/// The reasons why a front end may not run the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotActive {
    /// Another front end runs it, and did not stop in time.
    #[error("another front end runs the device; stop its guest first")]
    Busy,
    /// Another front end has run it since.
    #[error(
        "this front end's guest is of run {known} and the disk is of run {last}: another front end ran the device \
         meanwhile, and going on would destroy its disk"
    )]
    Stale {
        /// The last run that this front end had.
        known: u64,
        /// The last run of the device.
        last: u64,
    },
}

/// The session that runs the device.
#[derive(Default)]
pub struct Activity {
    state: Mutex<State>,
    released: Condvar,
    /// Whether waiting has been ended for all.
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The session that runs it.
    holder: Option<usize>,
    /// The last run; 0 before the first.
    last: u64,
}

impl State {
    /// Refuses a front end that did not have the last run.
    fn refuse_stale(&self, known: Option<u64>) -> Result<(), NotActive> {
        let last = self.last;
        match known.filter(|known| last != 0 && *known != last) {
            Some(known) => Err(NotActive::Stale { known, last }),
            None => Ok(()),
        }
    }
}

impl Activity {
    /// The activity of a device whose last run was this one, according to a predecessor.
    pub fn after(last: u64) -> Self {
        let state = Mutex::new(State { holder: None, last });
        Self { state, ..Self::default() }
    }

    /// The last run.
    pub fn last(&self) -> u64 {
        self.state.lock().last
    }

    /// Begins a run for `session`, whose last run was `known`. Waits for another session to end its
    /// run. Returns the new run's number; a session that is already running gets the same number
    /// again.
    pub fn begin(&self, session: usize, known: Option<u64>, patience: Duration) -> Result<u64, NotActive> {
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.holder.is_some_and(|holder| holder != session) {
            // A front end that missed a run is refused without waiting.
            state.refuse_stale(known)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.closed.load(Ordering::SeqCst) {
                return Err(NotActive::Busy);
            }
            self.released.wait_for(&mut state, left);
        }
        if state.holder == Some(session) {
            return Ok(state.last);
        }
        state.refuse_stale(known)?;
        state.last = state.last.max(known.unwrap_or(0)) + 1;
        state.holder = Some(session);
        Ok(state.last)
    }

    /// Whether this session runs it.
    pub fn is_run_by(&self, session: usize) -> bool {
        self.state.lock().holder == Some(session)
    }

    /// Resumes a run that a predecessor handed over.
    pub fn continue_run(&self, session: usize) {
        self.state.lock().holder = Some(session);
    }

    /// Ends the run of `session`, if it has one.
    pub fn end(&self, session: usize) {
        let mut state = self.state.lock();
        if state.holder == Some(session) {
            state.holder = None;
            self.released.notify_all();
        }
    }

    /// Ends all waiting.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let _state = self.state.lock();
        self.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_runs_and_who_missed_a_run_never_again() {
        let activity = Activity::default();
        assert_eq!(activity.begin(0, None, Duration::ZERO), Ok(1));
        assert_eq!(activity.begin(0, Some(1), Duration::ZERO), Ok(1));
        assert_eq!(activity.begin(1, None, Duration::ZERO), Err(NotActive::Busy));
        activity.end(1);
        assert_eq!(activity.begin(1, None, Duration::ZERO), Err(NotActive::Busy));
        activity.end(0);
        // A failed migration: the source resumes.
        assert_eq!(activity.begin(0, Some(1), Duration::ZERO), Ok(2));
        activity.end(0);
        assert_eq!(activity.begin(1, None, Duration::ZERO), Ok(3));
        // Refused at once, however long it would wait.
        assert_eq!(
            activity.begin(0, Some(2), Duration::from_secs(3600)),
            Err(NotActive::Stale { known: 2, last: 3 })
        );
        activity.end(1);
        assert_eq!(activity.begin(0, Some(2), Duration::ZERO), Err(NotActive::Stale { known: 2, last: 3 }));
        assert_eq!(activity.begin(1, Some(3), Duration::ZERO), Ok(4));
    }

    #[test]
    fn a_new_server_believes_the_first_and_counts_on() {
        let activity = Activity::default();
        assert_eq!(activity.begin(0, Some(41), Duration::ZERO), Ok(42));
        let successor = Activity::after(42);
        successor.continue_run(1);
        assert_eq!(successor.begin(0, None, Duration::ZERO), Err(NotActive::Busy));
        assert_eq!(successor.begin(1, Some(42), Duration::ZERO), Ok(42));
    }

    #[test]
    fn whoever_waits_is_let_in_or_sent_away() {
        let activity = Activity::default();
        activity.begin(0, None, Duration::ZERO).unwrap();
        let patience = Duration::from_secs(60);
        std::thread::scope(|threads| {
            let waiting = threads.spawn(|| activity.begin(1, None, patience));
            activity.end(0);
            assert_eq!(waiting.join().unwrap(), Ok(2));
            let waiting = threads.spawn(|| activity.begin(0, None, patience));
            activity.close();
            assert_eq!(waiting.join().unwrap(), Err(NotActive::Busy));
        });
    }
}
