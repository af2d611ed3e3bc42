//! One queue of a guest that loads a disk, on a thread of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::time::ClockId;
use strongroom_types::SECTOR_BYTES;

use super::guest_load::{Loaded, Order, Pattern};
use crate::vhost_user::prepared::{Kind, PreparedError, PreparedQueue};

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    WarmUp,
    Counted,
    /// No more requests are sent.
    Over,
    /// No more answers are awaited.
    Abandoned,
}

/// The progress of a run, shared by its threads.
pub(super) struct Progress {
    pub phase: AtomicU8,
    /// The number of ended threads.
    pub ended: OwnedFd,
}

/// The requests of a run.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The pattern of the requests.
    pub pattern: Pattern,
    /// The distance of consecutive requests, in blocks.
    pub stride: u64,
    /// The number of requests of each queue.
    pub count_max: u64,
    /// The time from one request of a queue to the next; zero for as many as are answered.
    pub interval: Duration,
}

impl Asked {
    /// So many requests, one block after the other where the pattern has an order.
    pub fn of(pattern: Pattern, count_max: u64) -> Self {
        Self { pattern, stride: 1, count_max, interval: Duration::ZERO }
    }
}

/// A queue of a guest, and its part of the disk.
pub(super) struct QueueLoad {
    queue: PreparedQueue,
    /// Wakes the thread that waits for answers.
    pub call: OwnedFd,
    /// Its part of the disk, in blocks.
    first_block: u64,
    pub blocks: u64,
    next_block: u64,
    chance: Chance,
}

impl QueueLoad {
    /// A queue that uses `blocks` blocks from `first_block` on, with randomness from `seed`.
    pub fn new(
        queue: PreparedQueue,
        first_block: u64,
        blocks: u64,
        seed: u64,
    ) -> Result<Self, PreparedError> {
        let call = queue.call_file()?;
        Ok(Self { queue, call, first_block, blocks, next_block: 0, chance: Chance(seed) })
    }

    /// Sends requests and takes answers until the end; returns the counts.
    pub fn drive(
        &mut self,
        asked: Asked,
        spin: Duration,
        progress: &Progress,
    ) -> Result<Loaded, PreparedError> {
        let Asked { pattern, stride, count_max, interval } = asked;
        self.next_block = 0;
        let mut left = count_max;
        let mut due = Instant::now();
        let depth = usize::from(pattern.depth);
        let mut free: Vec<u16> = (0..pattern.depth).collect();
        let mut answered = Vec::with_capacity(depth);
        let mut sent = vec![Instant::now(); depth];
        let mut count = Count::default();
        loop {
            let now = Instant::now();
            let phase = progress.phase.load(Ordering::Acquire);
            count.turn(phase, now, &self.queue);
            if phase == Phase::Abandoned as u8 {
                return Ok(count.counted);
            }
            let mut may_send = left.min(free.len() as u64);
            if !interval.is_zero() {
                let are_due = now.saturating_duration_since(due).div_duration_f64(interval) as u64;
                // What a slow server has not taken is not sent later.
                due = due.max(now.checked_sub(interval * u32::from(pattern.depth)).unwrap_or(due));
                may_send = may_send.min(are_due);
                due += interval * may_send as u32;
            }
            if phase < Phase::Over as u8 && may_send > 0 {
                left -= may_send;
                for slot in free.drain(free.len() - may_send as usize..) {
                    let (kind, sector) = self.next(pattern, stride);
                    self.queue.submit(slot, kind, sector)?;
                    sent[usize::from(slot)] = now;
                }
                self.queue.publish()?;
            }
            if free.len() == depth && (interval.is_zero() || phase >= Phase::Over as u8) {
                return Ok(count.counted);
            }
            self.queue.take_answered(&mut answered)?;
            if answered.is_empty() {
                if spin.is_zero() || !self.spins(spin)? {
                    let next = !interval.is_zero() && !free.is_empty() && phase < Phase::Over as u8;
                    self.queue.sleep(next.then(|| due + interval))?;
                }
                continue;
            }
            if count.runs() {
                let now = Instant::now();
                for slot in &answered {
                    count.counted.latencies.record(now - sent[usize::from(*slot)]);
                    count.counted.bytes += u64::from(self.queue.content_bytes(*slot));
                }
                count.counted.operations += answered.len() as u64;
            }
            free.append(&mut answered);
        }
    }

    /// Polls for answers for a while; returns whether there are any.
    fn spins(&self, spin: Duration) -> Result<bool, PreparedError> {
        let since = Instant::now();
        while since.elapsed() < spin {
            if self.queue.has_answers()? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    fn next(&mut self, pattern: Pattern, stride: u64) -> (Kind, u64) {
        let block = match pattern.order {
            Order::Random => self.chance.below(self.blocks),
            Order::Sequential => {
                let block = self.next_block;
                self.next_block = if block + stride >= self.blocks { 0 } else { block + stride };
                block
            }
        };
        let is_read = match pattern.reads_percent {
            0 => false,
            100.. => true,
            percent => self.chance.below(100) < u64::from(percent),
        };
        let kind = if is_read { Kind::Read } else { Kind::Write };
        (kind, (self.first_block + block) * (u64::from(pattern.block_bytes) / SECTOR_BYTES))
    }
}

/// The counts of a thread.
#[derive(Default)]
struct Count {
    since: Option<(Instant, Duration)>,
    counted: Loaded,
    is_over: bool,
}

impl Count {
    fn runs(&self) -> bool {
        self.since.is_some() && !self.is_over
    }

    fn turn(&mut self, phase: u8, now: Instant, queue: &PreparedQueue) {
        match self.since {
            None if phase == Phase::Counted as u8 => {
                self.since = Some((now, thread_time()));
                (self.counted.kicks, self.counted.sleeps) = (queue.kicks(), queue.sleeps());
            }
            Some((start, client_cpu)) if phase > Phase::Counted as u8 && !self.is_over => {
                self.is_over = true;
                self.counted.elapsed = now - start;
                self.counted.client_cpu = thread_time().saturating_sub(client_cpu);
                self.counted.kicks = queue.kicks() - self.counted.kicks;
                self.counted.sleeps = queue.sleeps() - self.counted.sleeps;
            }
            _ => {}
        }
    }
}

/// Processor time of the calling thread.
fn thread_time() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().map_or(Duration::ZERO, Duration::from)
}

/// Random numbers that take a nanosecond each (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}
