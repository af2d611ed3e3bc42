//! Writes to a server as a guest does, and times each answer.
//!
//! Less than [`crate::vhost_user::verify`] does, so that the load takes little of the processor
//! that the server needs as well: a block says which it is and in which pass it was written, and
//! only samples are read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use strongroom_types::Extent;
use thiserror::Error;

use crate::latency::Latencies;
use crate::vhost_user::front_end::{CONTENT_BYTES_MAX, FrontEnd, FrontEndError, Wake};
use crate::vhost_user::protocol::{STATUS_OK, feature};
use crate::vhost_user::queue::{Operation, QueueError, Shape};

/// What of the content says which block it is.
const BLOCK_BYTES: u64 = 4096;
/// Without an answer for so long, the server is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a signal is looked for while no answer comes.
const SIGNAL_PERIOD: Duration = Duration::from_millis(500);

/// Why a server cannot be measured.
#[derive(Debug, Error)]
pub enum WriterError {
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A request that failed.
    #[error("{operation:?} was answered with status {status}")]
    Answer {
        /// What was asked.
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
    /// A person wants it to end.
    #[error("a signal asked for the end")]
    Signal,
}

impl From<QueueError> for WriterError {
    fn from(error: QueueError) -> Self {
        FrontEndError::from(error).into()
    }
}

/// What a run of requests took.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// Requests that were answered.
    pub operations: u64,
    /// What they transferred.
    pub bytes: u64,
    /// From before the first until after the last.
    pub elapsed: Duration,
    /// Of each.
    pub latencies: Latencies,
}

impl Timed {
    /// This and the run that followed.
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
        // As Linux's driver has them.
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

    /// From now on, writes carry this number, and reads look for it.
    pub fn set_pass(&mut self, pass: u64) {
        self.pass = pass;
    }

    /// Writes the next `count` of `extents`.
    pub fn write(
        &mut self,
        extents: &mut dyn Iterator<Item = Extent>,
        count: u64,
    ) -> Result<Timed, WriterError> {
        self.run(&mut extents.take(count as usize).map(Operation::Write))
    }

    /// Reads, whatever it finds.
    pub fn read(&mut self, extents: &mut dyn Iterator<Item = Extent>) -> Result<Timed, WriterError> {
        self.run(&mut extents.map(Operation::Read))
    }

    /// Has everything that was answered made durable.
    pub fn flush(&mut self) -> Result<(), WriterError> {
        if self.front_end.features() & feature::FLUSH != 0 {
            self.run(&mut std::iter::once(Operation::Flush))?;
        }
        Ok(())
    }

    /// Reads what was written in this pass, and looks whether it is that.
    pub fn verify(&mut self, extents: &mut dyn Iterator<Item = Extent>) -> Result<(), WriterError> {
        let mut found = Vec::new();
        for extent in extents {
            // Alone, it is in the first queue's next slot.
            let slot = self.queues[0].free.last().copied().unwrap_or_default();
            self.run(&mut std::iter::once(Operation::Read(extent)))?;
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

    /// Makes the content that of a write.
    fn stamp(&mut self, extent: Extent) {
        let blocks = self.content[..extent.length() as usize].chunks_mut(BLOCK_BYTES as usize);
        for (block, number) in blocks.zip(extent.offset() / BLOCK_BYTES..) {
            let stamp = u128::from(number) << 64 | u128::from(self.pass);
            if let Some(start) = block.first_chunk_mut::<16>() {
                *start = stamp.to_le_bytes();
            }
        }
    }

    /// Keeps the queues full until there is no more to do and everything is answered.
    fn run(&mut self, operations: &mut dyn Iterator<Item = Operation>) -> Result<Timed, WriterError> {
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
