//! Replaces the disk below while channels are open and clients send requests.
//!
//! ```text
//! flowing -- prepare --> prepared -- freeze --> frozen -- commit --> flowing, over the new disk
//!    ^                      |                     |
//!    +------- abandon ------+------ abandon ------+
//! ```
//!
//! - *Prepared*: every thread has opened its channel to the new disk, beside the one that it uses.
//! - *Frozen*: nothing is in flight below. New requests are held here.
//! - *Commit* and *abandon* send the held requests on, to the new disk or to the old one. Whatever
//!   was answered before the freeze went to the old disk, and whatever is answered after a commit
//!   goes to the new one.
//!
//! A freeze needs no thread that has nothing in flight: a channel publishes its count of requests
//! before it looks whether the disk is frozen, and a freeze is published before the counts are
//! read. So one of the two sides always sees the other, and an idle client is not waited for. The
//! other steps wake the threads, because they have something to do.

mod channel;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Payload, Thread, Waker};
use strongroom_memory::Padded;
use strongroom_types::Extent;
use thiserror::Error;

use channel::SwitchChannel;

/// Why the disk below is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SwitchError {
    /// Another disk is prepared already.
    #[error("another change of the disk is under way")]
    UnderWay,
    /// No disk is prepared.
    #[error("no other disk is prepared")]
    NotPrepared,
    /// Requests flow.
    #[error("requests are not held")]
    NotFrozen,
    /// A thread cannot open its channel to the new disk.
    #[error("a client's thread cannot open the new disk: {0}")]
    Open(#[source] IoError),
    /// A thread has not opened its channel to the new disk in time.
    #[error("a client's thread has not opened the new disk within {0:?}")]
    Slow(Duration),
    /// Requests were still in flight at the end of the time given.
    #[error("{requests} requests have not ended within {within:?}")]
    Busy {
        /// How many.
        requests: usize,
        /// The time given.
        within: Duration,
    },
}

/// A disk whose blocks can be served by another disk from a moment on.
pub struct SwitchDisk<P: Payload> {
    shared: Arc<Shared<P>>,
}

struct Shared<P: Payload> {
    /// Counts the steps. A channel that has seen another number looks at the state again.
    step: AtomicU64,
    state: Mutex<State<P>>,
    /// A channel has opened the new disk, has nothing in flight any more, or is gone.
    changed: Condvar,
}

struct State<P: Payload> {
    current: Numbered<P>,
    stage: Stage<P>,
    seats: Vec<Arc<Seat>>,
    /// Why a channel cannot open the prepared disk.
    failure: Option<IoError>,
    last_number: u64,
}

/// A disk, with a number that no other disk of the same switch has.
struct Numbered<P: Payload> {
    number: u64,
    disk: Arc<dyn Disk<P>>,
}

enum Stage<P: Payload> {
    Flowing,
    Prepared(Numbered<P>),
    Frozen(Numbered<P>),
}

/// What a channel tells the side that changes the disk.
struct Seat {
    /// Requests below that have not come back; one more while a request decides where it goes. It
    /// is on a cache line of its own, since every request changes it.
    in_flight: Padded<AtomicUsize>,
    /// The number of the disk that the channel has opened beside the one that it uses.
    opened: AtomicU64,
    waker: Arc<Waker>,
}

impl<P: Payload> Clone for Numbered<P> {
    fn clone(&self) -> Self {
        Self { number: self.number, disk: Arc::clone(&self.disk) }
    }
}

impl<P: Payload> Stage<P> {
    fn next(&self) -> Option<&Numbered<P>> {
        match self {
            Self::Flowing => None,
            Self::Prepared(next) | Self::Frozen(next) => Some(next),
        }
    }

    fn is_frozen(&self) -> bool {
        match self {
            Self::Flowing | Self::Prepared(_) => false,
            Self::Frozen(_) => true,
        }
    }
}

impl<P: Payload> SwitchDisk<P> {
    /// Passes everything to `disk`.
    pub fn new(disk: Arc<dyn Disk<P>>) -> Self {
        let state = State {
            current: Numbered { number: 0, disk },
            stage: Stage::Flowing,
            seats: Vec::new(),
            failure: None,
            last_number: 0,
        };
        let shared = Shared { step: AtomicU64::new(0), state: Mutex::new(state), changed: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Has every thread open a channel to `next`, which must have the present limits, and waits for
    /// that.
    ///
    /// # Errors
    /// [`SwitchError::UnderWay`], [`SwitchError::Open`], [`SwitchError::Slow`]: clients are served
    /// as before.
    pub fn prepare(&self, next: Arc<dyn Disk<P>>, within: Duration) -> Result<(), SwitchError> {
        let until = Instant::now() + within;
        let mut state = self.shared.state.lock();
        if state.stage.next().is_some() {
            return Err(SwitchError::UnderWay);
        }
        state.last_number += 1;
        state.failure = None;
        let number = state.last_number;
        state.stage = Stage::Prepared(Numbered { number, disk: next });
        self.shared.step(&state);
        state.wake_all();
        loop {
            if let Some(error) = state.failure {
                self.abandon_in(state);
                return Err(SwitchError::Open(error));
            }
            if state.all_have_opened(number) {
                return Ok(());
            }
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                self.abandon_in(state);
                return Err(SwitchError::Slow(within));
            }
        }
    }

    /// Holds new requests, and waits until nothing is in flight.
    ///
    /// # Errors
    /// [`SwitchError::NotPrepared`], [`SwitchError::Busy`]: requests flow again, and the disk stays
    /// prepared.
    pub fn freeze(&self, within: Duration) -> Result<(), SwitchError> {
        let until = Instant::now() + within;
        let mut state = self.shared.state.lock();
        state.stage = match std::mem::replace(&mut state.stage, Stage::Flowing) {
            Stage::Prepared(next) => Stage::Frozen(next),
            other => {
                state.stage = other;
                return Err(SwitchError::NotPrepared);
            }
        };
        self.shared.step(&state);
        loop {
            let requests = state.in_flight();
            if requests == 0 {
                return Ok(());
            }
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                if let Stage::Frozen(next) = std::mem::replace(&mut state.stage, Stage::Flowing) {
                    state.stage = Stage::Prepared(next);
                }
                self.shared.step(&state);
                state.wake_all();
                return Err(SwitchError::Busy { requests, within });
            }
        }
    }

    /// Sends the held requests, and all others, to the prepared disk.
    ///
    /// # Errors
    /// [`SwitchError::NotFrozen`]: nothing has changed.
    pub fn commit(&self) -> Result<(), SwitchError> {
        let mut state = self.shared.state.lock();
        match std::mem::replace(&mut state.stage, Stage::Flowing) {
            Stage::Frozen(next) => state.current = next,
            other => {
                state.stage = other;
                return Err(SwitchError::NotFrozen);
            }
        }
        self.shared.step(&state);
        state.wake_all();
        Ok(())
    }

    /// Sends the held requests to the disk that was served all the time, and forgets the prepared
    /// one, if there is any.
    pub fn abandon(&self) {
        self.abandon_in(self.shared.state.lock());
    }

    fn abandon_in(&self, mut state: MutexGuard<'_, State<P>>) {
        state.stage = Stage::Flowing;
        self.shared.step(&state);
        state.wake_all();
    }
}

impl<P: Payload> Shared<P> {
    /// Announces a change of the state, which is locked.
    fn step(&self, _state: &State<P>) {
        self.step.fetch_add(1, Ordering::SeqCst);
    }
}

impl<P: Payload> State<P> {
    fn wake_all(&self) {
        self.seats.iter().for_each(|seat| seat.waker.wake());
    }

    fn all_have_opened(&self, number: u64) -> bool {
        self.seats.iter().all(|seat| seat.opened.load(Ordering::SeqCst) == number)
    }

    fn in_flight(&self) -> usize {
        self.seats.iter().map(|seat| seat.in_flight.load(Ordering::SeqCst)).sum()
    }
}

impl<P: Payload> Disk<P> for SwitchDisk<P> {
    fn limits(&self) -> Limits {
        self.shared.state.lock().current.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        Ok(Box::new(SwitchChannel::open(Arc::clone(&self.shared), thread, depth)?))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let disk = Arc::clone(&self.shared.state.lock().current.disk);
        disk.allocation(extent, report)
    }
}
