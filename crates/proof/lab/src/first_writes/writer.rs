//! Writes to a server like a guest, and times each answer.
//!
//! It checks less than [`crate::vhost_user::verify`], so that the load leaves the processor to the
//! server: a block contains its number and its pass, and only samples are read back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use strongroom_types::Extent;
use thiserror::Error;

use crate::latency::Latencies;
use crate::vhost_user::front_end::{CONTENT_BYTES_MAX, FrontEnd, FrontEndError, Wake};
use crate::vhost_user::protocol::{STATUS_OK, feature};
use crate::vhost_user::queue::{Operation, QueueError, Shape};

/// The unit of content that carries a block's number.
const BLOCK_BYTES: u64 = 4096;
/// How long to wait for an answer before giving up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The period of checking for a signal while waiting.
const SIGNAL_PERIOD: Duration = Duration::from_millis(500);

/// Why measuring a server failed.
#[derive(Debug, Error)]
pub enum WriterError {
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A request that failed.
    #[error("{operation:?} was answered with status {status}")]
    Answer {
        /// The request.
        operation: Operation,
        /// The status byte.
        status: u8,
    },
    /// Nothing was answered for too long.
    #[error("no answer in {STALL_TIMEOUT:?}, with {0} requests in flight")]
    Stalled(usize),
    /// The server went away.
    #[error("the server is gone")]
    Gone,
    /// The server says that a queue is broken.
    #[error("the server gave up queue {0}")]
    BrokenQueue(usize),
    /// A block does not hold what was last written to it.
    #[error("the block at byte {0} does not hold what was written to it")]
    Content(u64),
    /// Stopped by a signal.
    #[error("a signal asked for the end")]
    Signal,
}

impl From<QueueError> for WriterError {
    fn from(error: QueueError) -> Self {
        FrontEndError::from(error).into()
    }
}

/// The times of a run of requests.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// Requests that were answered.
    pub operations: u64,
    /// Bytes that they transferred.
    pub bytes: u64,
    /// From before the first until after the last.
    pub elapsed: Duration,
    /// The latency of each.
    pub latencies: Latencies,
}

impl Timed {
    /// Adds the following run.
    #[must_use]
    pub fn and(mut self, next: &Self) -> Self {
        self.latencies.add(&next.latencies);
        Self {
            operations: self.operations + next.operations,
            bytes: self.bytes + next.bytes,
            elapsed: self.elapsed + next.elapsed,
            latencies: self.latencies,
        }
    }
}

/// When answers came, for one that looks on.
#[derive(Debug, Default)]
pub struct Answers(Mutex<Vec<Instant>>);

impl Answers {
    /// Takes the times since the last call, in their order.
    pub fn take(&self) -> Vec<Instant> {
        std::mem::take(&mut self.0.lock())
    }
}

struct Slots {
    in_flight: Vec<Option<(Operation, Instant)>>,
    free: Vec<usize>,
}

/// A guest that writes.
pub struct Writer {
    front_end: FrontEnd,
    queues: Vec<Slots>,
    shape: Shape,
    content: Vec<u8>,
    pass: u64,
    stop: Arc<AtomicBool>,
}

impl Writer {
    /// A guest with this front end, until `stop` is set.
    pub fn new(front_end: FrontEnd, stop: Arc<AtomicBool>) -> Self {
        let settings = front_end.settings();
        let depth = usize::from(settings.depth);
        let slots = || Slots { in_flight: vec![None; depth], free: (0..depth).rev().collect() };
        let mut content = vec![0; CONTENT_BYTES_MAX as usize];
        StdRng::seed_from_u64(CONTENT_BYTES_MAX).fill_bytes(&mut content);
        // Like Linux's driver.
        let indirect = front_end.features() & feature::RING_INDIRECT_DESC != 0;
        Self {
            queues: (0..settings.queues).map(|_| slots()).collect(),
            shape: Shape { indirect, ..Shape::default() },
            front_end,
            content,
            pass: 0,
            stop,
        }
    }

    /// Bytes of the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.front_end.disk().sectors * strongroom_types::SECTOR_BYTES
    }

    /// Sets the number that later writes contain and reads expect.
    pub fn set_pass(&mut self, pass: u64) {
        self.pass = pass;
    }

    /// Writes the next `count` of `extents`.
    pub fn write(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        count: u64,
    ) -> Result<Timed, WriterError> {
        self.run(&mut extents.take(count as usize).map(Operation::Write), None)
    }

    /// Writes `extents` to their end, and notes in `answers` when answers came.
    pub fn write_noting(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        answers: &Answers,
    ) -> Result<Timed, WriterError> {
        self.run(&mut extents.map(Operation::Write), Some(answers))
    }

    /// Reads without checking the content.
    pub fn read(&mut self, extents: &mut dyn Iterator<Item = Extent>) -> Result<Timed, WriterError> {
        self.run(&mut extents.map(Operation::Read), None)
    }

    /// Flushes, so that all answered writes are durable.
    pub fn flush(&mut self) -> Result<(), WriterError> {
        if self.front_end.features() & feature::FLUSH != 0 {
            self.run(&mut std::iter::once(Operation::Flush), None)?;
        }
        Ok(())
    }

    /// Reads blocks written in this pass, and verifies them.
    pub fn verify(&mut self, extents: &mut dyn Iterator<Item = Extent>) -> Result<(), WriterError> {
        let mut found = Vec::new();
        for extent in extents {
            // As the only request, it is in the first queue's next slot.
            let slot = self.queues[0].free.last().copied().unwrap_or_default();
            self.run(&mut std::iter::once(Operation::Read(extent)), None)?;
            found.resize(extent.length() as usize, 0);
            self.front_end.queues()[0].content(slot, &mut found)?;
            self.stamp(extent);
            let expected = &self.content[..found.len()];
            if let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected) {
                return Err(WriterError::Content(extent.offset() + at as u64 / BLOCK_BYTES * BLOCK_BYTES));
            }
        }
        Ok(())
    }

    /// Prepares the content of a write.
    fn stamp(&mut self, extent: Extent) {
        let blocks = self.content[..extent.length() as usize].chunks_mut(BLOCK_BYTES as usize);
        for (block, number) in blocks.zip(extent.offset() / BLOCK_BYTES..) {
            let stamp = u128::from(number) << 64 | u128::from(self.pass);
            if let Some(start) = block.first_chunk_mut::<16>() {
                *start = stamp.to_le_bytes();
            }
        }
    }

    /// Keeps the queues full until all operations are sent and answered.
    fn run(
        &mut self,
        operations: &mut dyn Iterator<Item = Operation>,
        answers: Option<&Answers>,
    ) -> Result<Timed, WriterError> {
        let mut timed = Timed::default();
        let mut in_flight = 0;
        let mut next = operations.next();
        let start = Instant::now();
        let mut last_answer = start;
        loop {
            for index in 0..self.queues.len() {
                while let Some(operation) = next.take_if(|_| self.has_room(index)) {
                    self.submit(index, operation)?;
                    in_flight += 1;
                    next = operations.next();
                }
                self.front_end.queues()[index].publish()?;
            }
            if in_flight == 0 && next.is_none() {
                timed.elapsed = start.elapsed();
                return Ok(timed);
            }
            let before = timed.operations;
            for index in 0..self.queues.len() {
                self.collect(index, &mut timed)?;
            }
            let answered = timed.operations - before;
            in_flight -= answered as usize;
            if answered > 0 {
                last_answer = Instant::now();
                if let Some(answers) = answers {
                    answers.0.lock().push(last_answer);
                }
            } else {
                self.wait(last_answer, in_flight)?;
            }
        }
    }

    fn has_room(&mut self, index: usize) -> bool {
        !self.queues[index].free.is_empty() && self.front_end.queues()[index].has_room(&self.shape)
    }

    fn submit(&mut self, index: usize, operation: Operation) -> Result<(), WriterError> {
        if let Operation::Write(extent) = operation {
            self.stamp(extent);
        }
        let Some(slot) = self.queues[index].free.pop() else { return Ok(()) };
        let queue = &mut self.front_end.queues()[index];
        let now = Instant::now();
        queue.submit(slot, &operation, &self.shape, &self.content)?;
        self.queues[index].in_flight[slot] = Some((operation, now));
        Ok(())
    }

    fn collect(&mut self, index: usize, timed: &mut Timed) -> Result<(), WriterError> {
        while let Some(answered) = self.front_end.queues()[index].take_answered()? {
            let slots = &mut self.queues[index];
            let Some((operation, since)) = slots.in_flight[answered.slot].take() else { continue };
            slots.free.push(answered.slot);
            if answered.status != STATUS_OK {
                return Err(WriterError::Answer { operation, status: answered.status });
            }
            timed.latencies.record(since.elapsed());
            timed.operations += 1;
            timed.bytes += u64::from(operation.content_bytes());
        }
        Ok(())
    }

    fn wait(&mut self, last_answer: Instant, in_flight: usize) -> Result<(), WriterError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(WriterError::Signal);
        }
        match self.front_end.wait(SIGNAL_PERIOD)? {
            Wake::Gone => Err(WriterError::Gone),
            Wake::Broken(queue) => Err(WriterError::BrokenQueue(queue)),
            Wake::Nothing if last_answer.elapsed() > STALL_TIMEOUT => Err(WriterError::Stalled(in_flight)),
            Wake::Answers | Wake::Nothing => Ok(()),
        }
    }
}
