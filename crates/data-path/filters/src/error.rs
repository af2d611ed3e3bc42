//! A test instrument: makes requests fail, before or after they were done below.
//!
//! A [`Fault`] says which requests, how often or where, when, and with which error. The first of a
//! disk's faults that strikes a request decides. The same seed gives each channel the same
//! failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_io::{
    Allocation, Channel, Disk, Done, InFlight, Io, IoError, Limits, Payload, RequestKind, Slot, Thread,
};
use strongroom_types::Extent;

use crate::random::SplitMix64;

/// What makes a request fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// Only requests of this kind, or all.
    pub kind: Option<RequestKind>,
    /// Which of them.
    pub trigger: Trigger,
    /// Whether they are done below nevertheless.
    pub moment: Moment,
    /// What they fail with.
    pub error: IoError,
}

/// Which requests fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// Each with this probability, from 0.0 to 1.0.
    Probability(f64),
    /// The one with this number, from 1, counted over all channels; and no other.
    Nth(u64),
    /// Those that touch these bytes: bad sectors.
    Touches(Extent),
}

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// It is not done.
    Before,
    /// It is done, and is said to have failed.
    After,
}

impl Fault {
    /// A fault of all kinds of request that are not done, with [`IoError::Injected`].
    pub fn new(trigger: Trigger) -> Self {
        Self { kind: None, trigger, moment: Moment::Before, error: IoError::Injected }
    }
}

/// A disk that fails as told.
pub struct ErrorDisk<P: Payload> {
    below: Arc<dyn Disk<P>>,
    faults: Arc<[(Fault, AtomicU64)]>,
    seed: u64,
    channels: AtomicU64,
}

impl<P: Payload> ErrorDisk<P> {
    /// Makes requests to `below` fail. `seed` fixes what chance decides in each channel, counted in
    /// the order of opening.
    pub fn new(below: Arc<dyn Disk<P>>, faults: &[Fault], seed: u64) -> Self {
        let faults = faults.iter().map(|fault| (*fault, AtomicU64::new(0))).collect();
        Self { below, faults, seed, channels: AtomicU64::new(0) }
    }
}

impl<P: Payload> Disk<P> for ErrorDisk<P> {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        let number = self.channels.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(ErrorChannel {
            below: self.below.open(thread, depth)?,
            faults: Arc::clone(&self.faults),
            random: SplitMix64::new(self.seed.wrapping_add(number)),
            active: InFlight::with_depth(depth),
            returned: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
        }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct ErrorChannel<P: Payload> {
    below: Box<dyn Channel<P>>,
    /// Each with the count of requests of its kind so far, on all channels.
    faults: Arc<[(Fault, AtomicU64)]>,
    random: SplitMix64,
    /// Tag of each request below, and the error that it will end with.
    active: InFlight<(u64, Option<IoError>)>,
    returned: Vec<Done<P>>,
    ended: Vec<Done<P>>,
}

impl<P: Payload> ErrorChannel<P> {
    fn strike(&mut self, kind: RequestKind, extent: Extent) -> Option<Fault> {
        let Self { faults, random, .. } = self;
        let of_this_kind = faults.iter().filter(|(fault, _)| fault.kind.is_none_or(|only| only == kind));
        // Every fault counts and draws, whether or not one before it strikes, so that each is
        // repeatable by itself.
        let mut struck = None;
        for (fault, count) in of_this_kind {
            let number = count.fetch_add(1, Ordering::Relaxed) + 1;
            let strikes = match fault.trigger {
                Trigger::Probability(probability) => random.next_fraction() < probability,
                Trigger::Nth(nth) => number == nth,
                Trigger::Touches(bad) => extent.overlaps(bad),
            };
            if strikes {
                struck.get_or_insert(*fault);
            }
        }
        struck
    }
}

impl<P: Payload> Channel<P> for ErrorChannel<P> {
    fn submit(&mut self, mut io: Io<P>) {
        let fault = self.strike(io.request.kind(), io.request.extent());
        let error = match fault {
            None => None,
            Some(Fault { moment: Moment::Before, error, .. }) => return self.ended.push(io.end(Err(error))),
            Some(Fault { moment: Moment::After, error, .. }) => Some(error),
        };
        io.tag = self.active.insert((io.tag, error)).tag();
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        self.below.poll(&mut self.returned);
        for mut ended in self.returned.drain(..) {
            let active = Slot::from_tag(ended.tag).and_then(|slot| self.active.take(slot));
            let Some((tag, error)) = active else {
                debug_assert!(false, "the disk below returned what was not submitted");
                continue;
            };
            ended.tag = tag;
            ended.result = error.map_or(ended.result, Err);
            done.push(ended);
        }
        done.append(&mut self.ended);
    }
}
