//! Merging a layer into the one below it while the volume is served.
//!
//! The supervisor has opened the lower layer to be written and orders the merge. A thread of its
//! own copies the upper layer's blocks, step by step ([`Copying`]). All clients' reads of these
//! blocks go to the upper layer meanwhile, so a step needs no lock against them. When everything is
//! durable in the lower layer, the supervisor has a successor serve without the upper one.
//!
//! [`Pace`] says how long it pauses after each step, so that clients keep their speed.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use strongroom_datastore::file::tags::TagsDisk;
use strongroom_io::{Errno, IoError, Reactor, Waker};
use strongroom_ring::{Job, Lanes, Ring};
use strongroom_statistics::Recorders;
use thiserror::Error;

use crate::condition::{MergeReport, MergeState};
use crate::layers::MergeStages;
use crate::merge::{Copying, Step, Stride};
use crate::pace::{Pace, Throttle};
use crate::transfer::TransferError;

/// Small steps: a request of a client waits for one of them at most.
#[cfg(not(test))]
const SERVED: Stride = Stride { depth: 4, piece_bytes: 256 << 10, step_bytes: 512 << 10 };

/// So that a merge of the tests' small volumes takes many steps.
#[cfg(test)]
const SERVED: Stride = Stride { depth: 2, piece_bytes: 8 << 10, step_bytes: 8 << 10 };

/// How often a paused merge looks whether it goes on, beside being woken.
const PAUSED_FOR: Duration = Duration::from_secs(5);

/// How often the progress is reported.
const REPORTS_EVERY: Duration = Duration::from_secs(1);

/// How a merge is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergeOrder {
    /// Everything before this byte was copied by a predecessor that handed over in order.
    pub copied_bytes: u64,
    /// How it shares the machine with the clients.
    #[serde(flatten)]
    pub throttle: Throttle,
    /// Whether it is to wait.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_paused: bool,
}

/// Why a merge ended early.
#[derive(Debug, Error)]
enum MergingError {
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("{0}")]
    Wait(#[from] IoError),
}

impl MergingError {
    fn is_full(&self) -> bool {
        matches!(self, Self::Transfer(TransferError::Volume(IoError::NoSpace)))
    }
}

/// A merge on its way.
pub struct Merging {
    shared: Arc<Shared>,
    job: Mutex<Option<Job<()>>>,
}

struct Shared {
    stages: MergeStages,
    recorders: Recorders,
    stop: AtomicBool,
    order: Mutex<MergeOrder>,
    copied_bytes: AtomicU64,
    /// Since when it goes as it goes now, and what was copied then.
    since: Mutex<(Instant, u64)>,
    state: Mutex<MergeState>,
    /// Wakes the thread that merges.
    waker: Mutex<Option<Arc<Waker>>>,
    told: Arc<Waker>,
}

impl Merging {
    /// Begins, on a lane. `told` is woken when there is something to report.
    pub fn begin(
        stages: MergeStages,
        order: MergeOrder,
        recorders: Recorders,
        lanes: &Lanes,
        told: Arc<Waker>,
    ) -> Result<Self, IoError> {
        let shared = Arc::new(Shared {
            stages,
            recorders,
            stop: AtomicBool::new(false),
            copied_bytes: AtomicU64::new(order.copied_bytes),
            since: Mutex::new((Instant::now(), order.copied_bytes)),
            order: Mutex::new(order),
            state: Mutex::new(MergeState::UnderWay),
            waker: Mutex::new(None),
            told,
        });
        let work = Arc::clone(&shared);
        let job = lanes.run(move |ring: &Ring| work.run(ring));
        let job = job.map_err(|_| IoError::Device(Errno(rustix::io::Errno::BUSY.raw_os_error())))?;
        Ok(Self { shared, job: Mutex::new(Some(job)) })
    }

    /// Goes on at another speed, or pauses.
    pub fn adjust(&self, order: MergeOrder) {
        *self.shared.order.lock() = order;
        *self.shared.since.lock() = (Instant::now(), self.shared.copied_bytes.load(Ordering::SeqCst));
        self.shared.wake();
    }

    /// A look at how far it has come, for another thread.
    pub fn watch(&self) -> MergingWatch {
        MergingWatch(Arc::clone(&self.shared))
    }

    /// Ends it where it is, and leaves the rest to a successor. Nothing is written to the lower
    /// layer afterwards. Returns the bytes that are copied: none if the successor has to begin
    /// again.
    pub fn end(&self) -> u64 {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake();
        let joined = self.job.lock().take().is_none_or(|job| job.join().is_ok());
        let MergeStages { into_tags, into_discards, .. } = &self.shared.stages;
        let is_in_order = match *self.shared.state.lock() {
            MergeState::Complete => true,
            MergeState::UnderWay => {
                // What is in memory of the tags is written, or the next one has to write it again.
                joined
                    && into_tags.as_ref().is_none_or(TagsDisk::close)
                    && into_discards.as_ref().is_none_or(|discards| !discards.have_failed())
            }
            MergeState::Failed { .. } => false,
        };
        if is_in_order { self.shared.copied_bytes.load(Ordering::SeqCst) } else { 0 }
    }
}

impl Drop for Merging {
    fn drop(&mut self) {
        self.end();
    }
}

/// A look at how far a merge has come.
pub struct MergingWatch(Arc<Shared>);

impl MergingWatch {
    /// How far it has come.
    pub fn report(&self) -> MergeReport {
        MergeReport {
            state: self.0.state.lock().clone(),
            copied_bytes: self.0.copied_bytes.load(Ordering::SeqCst),
            total_bytes: self.0.stages.size_bytes(),
            bytes_per_second: self.0.bytes_per_second(),
        }
    }
}

impl std::fmt::Debug for MergingWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MergingWatch({:?})", self.report())
    }
}

/// Whether a merge goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Step,
    Stop,
}

impl Shared {
    /// How fast it has gone since it was last adjusted.
    fn bytes_per_second(&self) -> u64 {
        let (since, then_bytes) = *self.since.lock();
        let bytes = self.copied_bytes.load(Ordering::SeqCst).saturating_sub(then_bytes);
        (bytes as f64 / since.elapsed().as_secs_f64().max(1e-3)) as u64
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake();
        }
    }

    fn run(&self, ring: &Ring) {
        *self.waker.lock() = Some(ring.waker());
        let state = match self.copy(ring) {
            Ok(Turn::Step) => MergeState::Complete,
            Ok(Turn::Stop) => return,
            Err(error) => {
                tracing::error!(%error, "the merge of two layers ends early; the upper one stays");
                if error.is_full() {
                    self.give_back(ring);
                }
                MergeState::Failed { reason: error.to_string() }
            }
        };
        *self.state.lock() = state;
        self.told.wake();
    }

    /// Copies what is left. Returns whether it is done.
    fn copy(&self, ring: &Ring) -> Result<Turn, MergingError> {
        let left: Range<u64> = self.copied_bytes.load(Ordering::SeqCst)..self.stages.size_bytes();
        let mut copying = Copying::open(&self.stages, left, Rc::new(ring.clone()), SERVED)?;
        let (mut pace, mut reports) = (Pace::default(), Reports::new());
        loop {
            if self.await_turn(ring, &mut copying, &pace, &mut reports)? == Turn::Stop {
                return Ok(Turn::Stop);
            }
            pace.begin(self.recorders.answered());
            let Step::Wrote(bytes) = copying.step()? else { break };
            pace.end(bytes, self.recorders.answered());
            self.copied_bytes.store(copying.copied_bytes(), Ordering::SeqCst);
        }
        copying.finish()?;
        Ok(Turn::Step)
    }

    /// Waits until the next step may begin.
    fn await_turn(
        &self,
        ring: &Ring,
        copying: &mut Copying<'_>,
        pace: &Pace,
        reports: &mut Reports,
    ) -> Result<Turn, MergingError> {
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return Ok(Turn::Stop);
            }
            let now = Instant::now();
            if reports.take_due(now) {
                self.told.wake();
            }
            let order = *self.order.lock();
            let pause = match order.is_paused {
                true => PAUSED_FOR,
                false => {
                    let are_busy = self.recorders.have_worked_since(pace.began());
                    pace.pause(order.throttle, are_busy, now)
                }
            };
            if pause.is_zero() {
                return Ok(Turn::Step);
            }
            copying.poll();
            ring.wait(Some(pause))?;
        }
    }

    /// Erases what was copied, so that clients have the room that they had before the merge.
    fn give_back(&self, ring: &Ring) {
        let erase = || -> Result<(), TransferError> {
            let copied = 0..self.stages.size_bytes();
            let mut erasing = Copying::erase(&self.stages, copied, Rc::new(ring.clone()), SERVED)?;
            loop {
                if self.stop.load(Ordering::SeqCst) || erasing.step()? == Step::Ended {
                    return Ok(());
                }
            }
        };
        if let Err(error) = erase() {
            tracing::warn!(%error, "what a merge has copied still takes space; a later merge uses it");
        }
    }
}

/// When the progress is reported.
struct Reports(Instant);

impl Reports {
    fn new() -> Self {
        Self(Instant::now())
    }

    /// Whether a report is due, which then counts as made.
    fn take_due(&mut self, now: Instant) -> bool {
        let is_due = now.saturating_duration_since(self.0) >= REPORTS_EVERY;
        if is_due {
            self.0 = now;
        }
        is_due
    }
}
