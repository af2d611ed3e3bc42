//! The suite that every [`Disk`] must pass, from the lowest datastore to the highest stack of
//! stages.
//!
//! It drives a new, empty disk through its channels as a frontend would, and compares the results
//! with a slow, obvious [model](self::model). It checks that
//! - every tag comes back exactly once, with its own memory, and no other tag does;
//! - requests that the limits forbid are refused with the right error, and change nothing;
//! - reads return what was written, zeroed or discarded, at any depth, on several channels and
//!   threads; if requests in flight overlap, any outcome that the order allows, and no other;
//! - holes read as zeroes, and a sealed block has a seal exactly if it is not all zeroes;
//! - a thread that sleeps until its reactor is woken misses no completion;
//! - an exhausted pool delays requests but never stalls them;
//! - channels can be opened and dropped, flushes return, and reported allocation is correct.
//!
//! A failed write may have happened or not: with [`Conformance::run_faulty`] that is part of the
//! model.
//!
//! The suite does not check durability; that needs power cuts.

mod basics;
mod driver;
mod event_loop;
mod model;
mod payload;
mod random;
mod refusals;
pub mod reorder;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use strongroom_types::{Extent, KeyEpoch};
use thiserror::Error;

pub use crate::reactor::EventLoop;
pub use driver::Driver;
pub use event_loop::IdleLoop;
pub use payload::{TestMemory, TestPayload};

use crate::disk::Disk;
use crate::error::IoError;
use crate::request::RequestKind;
use random::Workload;

/// How long nothing may happen while requests are in flight, unless a suite sets another time. It
/// is far beyond any disk's latency, so that a busy machine causes no violation.
const DEADLINE: Duration = Duration::from_secs(30);

/// The violations of the contract.
#[derive(Debug, Error)]
pub enum Violation {
    /// The disk could not be opened, or the harness has no memory.
    #[error("the disk cannot be driven: {0}")]
    Setup(IoError),
    /// The limits are inconsistent.
    #[error("limits: {0}")]
    Limits(&'static str),
    /// Requests never end.
    #[error("{in_flight} requests are in flight and nothing has happened for {waited:?}")]
    Stalled {
        /// Count of requests.
        in_flight: usize,
        /// The deadline.
        waited: Duration,
    },
    /// Requests had ended, but the thread was not woken.
    #[error("{ended} requests had ended, and the thread was not woken for {waited:?}")]
    LostWakeUp {
        /// Count of requests.
        ended: usize,
        /// The deadline.
        waited: Duration,
    },
    /// A tag came back that was not in flight: it came back twice, or was invented.
    #[error("tag {0:#x} came back and is not in flight")]
    UnknownTag(u64),
    /// A transfer came back without its memory or with another's, or another request came back with
    /// memory.
    #[error("a {0:?} came back without its own memory")]
    Memory(RequestKind),
    /// A request had the wrong result.
    #[error("a {kind:?} of {extent} ended as {result:?}; expected: {expected}")]
    Result {
        /// The kind of request.
        kind: RequestKind,
        /// Its extent.
        extent: Extent,
        /// The result.
        result: Result<(), IoError>,
        /// The expected result.
        expected: &'static str,
    },
    /// A read returned content that no order of requests allows.
    #[error(
        "byte {offset} of the disk is {found:#04x} in a read of {extent}; {allowed} other values are allowed"
    )]
    Content {
        /// The extent that was read.
        extent: Extent,
        /// The first wrong byte.
        offset: u64,
        /// Its value.
        found: u8,
        /// Count of writes whose content would be allowed.
        allowed: usize,
    },
    /// A sealed block of zeroes has a seal, or another block has none or one of the wrong epoch.
    #[error("block {block} has the seal {seal:?} and is {}", if *is_zero { "all zeroes" } else { "not all zeroes" })]
    Seal {
        /// The block's number.
        block: u64,
        /// The seal that it came with.
        seal: Option<KeyEpoch>,
        /// Whether its content is all zeroes.
        is_zero: bool,
    },
    /// A report of allocation does not cover the requested extent, or calls data zero.
    #[error("allocation: {what} at {extent}")]
    Allocation {
        /// The run in question.
        extent: Extent,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Another thread of the same check failed first.
    #[error("another thread failed")]
    Elsewhere,
}

/// A violation, and how to reproduce it.
#[derive(Debug, Error)]
#[error("{check}, seed {seed}: {violation}")]
pub struct Failure {
    /// The check that failed.
    pub check: String,
    /// The seed for [`Conformance::seed`].
    pub seed: u64,
    /// The violation.
    pub violation: Violation,
}

/// How the suite drives disks.
#[derive(Clone)]
pub struct Setup {
    event_loops: Arc<dyn Fn() -> Result<Box<dyn EventLoop>, IoError> + Send + Sync>,
    deadline: Duration,
    epoch: KeyEpoch,
    seed: u64,
    tolerated: Option<IoError>,
}

impl Default for Setup {
    /// Threads without files, and seed 1.
    fn default() -> Self {
        Self {
            event_loops: Arc::new(|| Ok(Box::new(IdleLoop::new()?))),
            deadline: DEADLINE,
            epoch: KeyEpoch::FIRST,
            seed: 1,
            tolerated: None,
        }
    }
}

impl Setup {
    /// Threads on event loops from `make`, for disks that need a ring.
    pub fn on<L: EventLoop + 'static>(make: impl Fn() -> Result<L, IoError> + Send + Sync + 'static) -> Self {
        Self { event_loops: Arc::new(move || Ok(Box::new(make()?))), ..Self::default() }
    }

    /// Sets the epoch of sealed writes, which sealed reads must return; the default is the first.
    #[must_use]
    pub fn epoch(self, epoch: KeyEpoch) -> Self {
        Self { epoch, ..self }
    }
}

/// The suite.
pub struct Conformance<P: TestPayload> {
    make: Box<dyn Fn() -> Arc<dyn Disk<P>>>,
    setup: Setup,
    requests: usize,
}

impl<P: TestPayload> Conformance<P> {
    /// The suite for disks from `make`, each new and empty.
    pub fn new<D: Disk<P> + 'static>(make: impl Fn() -> D + 'static) -> Self {
        Self { make: Box::new(move || Arc::new(make())), setup: Setup::default(), requests: 400 }
    }

    /// Runs each thread on an event loop from `make`, for disks that need a ring.
    #[must_use]
    pub fn event_loops<L: EventLoop + 'static>(
        mut self,
        make: impl Fn() -> Result<L, IoError> + Send + Sync + 'static,
    ) -> Self {
        self.setup.event_loops = Arc::new(move || Ok(Box::new(make()?)));
        self
    }

    /// Sets the seed; the default is 1.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.setup.seed = seed;
        self
    }

    /// Sets the epoch of sealed writes, which sealed reads must return; the default is the first.
    #[must_use]
    pub fn epoch(mut self, epoch: KeyEpoch) -> Self {
        self.setup.epoch = epoch;
        self
    }

    /// Sets how long nothing may happen; the default is 30 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.setup.deadline = deadline;
        self
    }

    /// Sets the count of random requests of each thread in each check; the default is 400.
    #[must_use]
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    /// Runs all checks, each on a new disk, up to the first violation.
    pub fn run(&self) -> Result<(), Box<Failure>> {
        self.check("limits", |disk, _| basics::limits(disk))?;
        self.check("an empty disk", |disk, setup| basics::empty(disk, setup))?;
        self.check("refusals", |disk, setup| refusals::refusals(disk, setup))?;
        if !(self.make)().limits().read_only {
            self.check("channels come and go", |disk, setup| basics::channels(disk, setup))?;
            self.check("the whole disk at once", |disk, setup| basics::whole_disk(disk, setup))?;
            self.check("allocation", |disk, setup| basics::allocation(disk, setup))?;
        }
        self.random(&self.setup)
    }

    /// Runs only the random checks, on disks whose requests may also fail with `tolerated`; all
    /// other results must still be right.
    pub fn run_faulty(&self, tolerated: IoError) -> Result<(), Box<Failure>> {
        self.random(&Setup { tolerated: Some(tolerated), ..self.setup.clone() })
    }

    fn random(&self, setup: &Setup) -> Result<(), Box<Failure>> {
        for workload in Workload::matrix(self.requests) {
            random::run(&*(self.make)(), setup, workload)
                .map_err(|violation| self.failure(workload.to_string(), violation))?;
        }
        Ok(())
    }

    fn check(
        &self,
        name: &str,
        check: impl Fn(&dyn Disk<P>, &Setup) -> Result<(), Violation>,
    ) -> Result<(), Box<Failure>> {
        check(&*(self.make)(), &self.setup).map_err(|violation| self.failure(name.to_owned(), violation))
    }

    fn failure(&self, check: String, violation: Violation) -> Box<Failure> {
        Box::new(Failure { check, seed: self.setup.seed, violation })
    }
}
