//! A stage that lets requests overtake each other on their way down and up, wherever the contract
//! leaves the order open. The stages above it must still be right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_types::Extent;

use crate::disk::{Allocation, Channel, Disk, Limits};
use crate::error::IoError;
use crate::reactor::{Thread, Waker};
use crate::request::{Done, Io, Payload};

/// A disk that keeps no order.
pub struct ReorderDisk<P: Payload> {
    below: Arc<dyn Disk<P>>,
    seed: u64,
    channels: AtomicU64,
}

impl<P: Payload> ReorderDisk<P> {
    /// Reorders requests and completions of `below`, differently in each channel.
    pub fn new(below: Arc<dyn Disk<P>>, seed: u64) -> Self {
        Self { below, seed, channels: AtomicU64::new(0) }
    }
}

impl<P: Payload> Disk<P> for ReorderDisk<P> {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        let number = self.channels.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(ReorderChannel {
            below: self.below.open(thread, depth)?,
            waker: thread.reactor.waker(),
            random: StdRng::seed_from_u64(self.seed.wrapping_add(number)),
            down: Vec::with_capacity(depth),
            up: Vec::with_capacity(depth),
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

struct ReorderChannel<P: Payload> {
    below: Box<dyn Channel<P>>,
    waker: Arc<Waker>,
    random: StdRng,
    /// Requests held back on their way down.
    down: Vec<Io<P>>,
    /// Completions held back on their way up.
    up: Vec<Done<P>>,
}

/// Releases some of the held items, in any order; at least one, so that none is held forever.
fn release<T>(random: &mut StdRng, held: &mut Vec<T>, mut take: impl FnMut(T)) {
    let count = if held.is_empty() { 0 } else { random.random_range(1..=held.len()) };
    for _ in 0..count {
        take(held.swap_remove(random.random_range(0..held.len())));
    }
}

impl<P: Payload> Channel<P> for ReorderChannel<P> {
    fn submit(&mut self, io: Io<P>) {
        self.down.push(io);
    }

    fn kick(&mut self) {
        release(&mut self.random, &mut self.down, |io| self.below.submit(io));
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        self.below.poll(&mut self.up);
        release(&mut self.random, &mut self.up, |ended| done.push(ended));
        let submits = !self.down.is_empty();
        if submits {
            self.kick();
        }
        // Held requests, and those that may have ended at once below, are handled after the next
        // wake-up.
        if submits || !self.up.is_empty() {
            self.waker.wake();
        }
    }
}
