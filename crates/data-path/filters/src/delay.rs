//! A test instrument: makes requests take longer, for a guest's patience, and out of order, for
//! everybody's assumptions.
//!
//! A request goes below at once. When it has come back it is held for as long as its kind's
//! [`Delay`] says, and the thread is woken for it. With a range of delays, requests overtake each
//! other. The same seed gives each channel the same delays.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};
use std::time::{Duration, Instant};

use strongroom_io::{
    Allocation, Channel, Disk, Done, InFlight, Io, IoError, Limits, Payload, Reactor, RequestKind, Slot,
    Thread,
};
use strongroom_types::Extent;

use crate::random::SplitMix64;

/// How much longer a request takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// No longer.
    #[default]
    None,
    /// Always so long.
    Constant(Duration),
    /// Evenly spread from the first up to the second.
    Uniform(Duration, Duration),
}

impl Delay {
    fn draw(self, random: &mut SplitMix64) -> Option<Duration> {
        match self {
            Delay::None => None,
            Delay::Constant(delay) => Some(delay),
            Delay::Uniform(from, to) => Some(from + to.saturating_sub(from).mul_f64(random.next_fraction())),
        }
    }
}

/// The delay of each kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// Of reads.
    pub read: Delay,
    /// Of writes.
    pub write: Delay,
    /// Of flushes.
    pub flush: Delay,
    /// Of discards.
    pub discard: Delay,
    /// Of zeroings.
    pub write_zeroes: Delay,
}

impl Delays {
    /// The same for every kind.
    pub fn all(delay: Delay) -> Self {
        Self { read: delay, write: delay, flush: delay, discard: delay, write_zeroes: delay }
    }

    fn of(&self, kind: RequestKind) -> Delay {
        match kind {
            RequestKind::Read => self.read,
            RequestKind::Write => self.write,
            RequestKind::Flush => self.flush,
            RequestKind::Discard => self.discard,
            RequestKind::WriteZeroes => self.write_zeroes,
        }
    }
}

/// A disk on which everything takes longer.
pub struct DelayDisk<P: Payload> {
    below: Arc<dyn Disk<P>>,
    delays: Delays,
    seed: u64,
    channels: AtomicU64,
}

impl<P: Payload> DelayDisk<P> {
    /// Delays what `below` has done. `seed` fixes the delays of each channel, counted in the order
    /// of opening.
    pub fn new(below: Arc<dyn Disk<P>>, delays: Delays, seed: u64) -> Self {
        Self { below, delays, seed, channels: AtomicU64::new(0) }
    }
}

impl<P: Payload> Disk<P> for DelayDisk<P> {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        let number = self.channels.fetch_add(1, atomic::Ordering::Relaxed);
        Ok(Box::new(DelayChannel {
            below: self.below.open(thread, depth)?,
            reactor: Rc::clone(&thread.reactor),
            delays: self.delays,
            random: SplitMix64::new(self.seed.wrapping_add(number)),
            active: InFlight::with_depth(depth),
            returned: Vec::with_capacity(depth),
            held: BinaryHeap::with_capacity(depth),
            sequence: 0,
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

struct DelayChannel<P: Payload> {
    below: Box<dyn Channel<P>>,
    reactor: Rc<dyn Reactor>,
    delays: Delays,
    random: SplitMix64,
    /// Tag and delay of each request below.
    active: InFlight<(u64, Option<Duration>)>,
    returned: Vec<Done<P>>,
    held: BinaryHeap<Reverse<Held<P>>>,
    sequence: u64,
}

struct Held<P: Payload> {
    until: Instant,
    /// Keeps the order of those that are due at the same time.
    sequence: u64,
    done: Done<P>,
}

impl<P: Payload> Channel<P> for DelayChannel<P> {
    fn submit(&mut self, mut io: Io<P>) {
        let delay = self.delays.of(io.request.kind()).draw(&mut self.random);
        io.tag = self.active.insert((io.tag, delay)).tag();
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        self.below.poll(&mut self.returned);
        if self.returned.is_empty() && self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        for mut ended in self.returned.drain(..) {
            let active = Slot::from_tag(ended.tag).and_then(|slot| self.active.take(slot));
            let Some((tag, delay)) = active else {
                debug_assert!(false, "the disk below returned what was not submitted");
                continue;
            };
            ended.tag = tag;
            match delay {
                None => done.push(ended),
                Some(delay) => {
                    self.sequence += 1;
                    self.held.push(Reverse(Held {
                        until: now + delay,
                        sequence: self.sequence,
                        done: ended,
                    }));
                }
            }
        }
        while self.held.peek().is_some_and(|held| held.0.until <= now) {
            done.extend(self.held.pop().map(|held| held.0.done));
        }
        if let Some(next) = self.held.peek() {
            self.reactor.wake_at(next.0.until);
        }
    }
}

impl<P: Payload> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.until, self.sequence).cmp(&(other.until, other.sequence))
    }
}

impl<P: Payload> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P: Payload> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P: Payload> Eq for Held<P> {}
