//! The writing side: the recorders with which lanes count.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use strongroom_memory::WordsWriter;

use crate::histogram::{BUCKETS, bucket_of};
use crate::page::{
    BLOCK_WORDS, BYTES, ERRORS, IN_FLIGHT, LANES_MAX, LATENCY, PAGE_WORDS, PROGRESS_NS, PageError, TIME_NS,
    operation_words,
};
use crate::snapshot::{Answered, ErrorKind, Operation};

/// Converts this process's instants to nanoseconds of CLOCK_MONOTONIC, which all processes share.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    instant: Instant,
    monotonic_ns: u64,
}

impl Clock {
    /// The clock.
    #[expect(clippy::new_without_default, reason = "it looks at the time")]
    pub fn new() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        Self { instant: Instant::now(), monotonic_ns: nanoseconds(now) }
    }

    /// Converts an instant.
    pub fn ns_of(&self, moment: Instant) -> u64 {
        self.monotonic_ns.saturating_add(nanoseconds(moment.saturating_duration_since(self.instant)))
    }

    /// Now.
    pub fn now_ns(&self) -> u64 {
        self.ns_of(Instant::now())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    // 584 years fit into it.
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into())
}

/// The recorders of a worker, one for each lane that may serve at once.
#[derive(Clone, Debug, Default)]
pub struct Recorders(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    words: WordsWriter,
    clock: Clock,
    /// Blocks that no lane has.
    free: Mutex<Vec<usize>>,
}

impl Recorders {
    /// Recorders that count nothing, without a page.
    pub fn none() -> Self {
        Self::default()
    }

    /// The recorders of a page that a supervisor made.
    ///
    /// # Errors
    /// If the file is no such page.
    pub fn of_page(page: impl AsFd) -> Result<Self, PageError> {
        let words = WordsWriter::map(page, PAGE_WORDS)?;
        let free = Mutex::new((0..LANES_MAX).rev().collect());
        Ok(Self(Some(Arc::new(Shared { words, clock: Clock::new(), free }))))
    }

    /// Resets the gauges to nothing in flight: a killed predecessor left its requests counted, and
    /// a lane that resumes them counts them again. Called before any lane serves, and when no
    /// predecessor writes any more.
    pub fn begin(&self) {
        let Some(shared) = &self.0 else { return };
        for lane in 0..LANES_MAX {
            shared.words.words()[lane * BLOCK_WORDS + IN_FLIGHT].store(0, Ordering::Relaxed);
        }
    }

    /// Whether clients have asked for anything since `then`, or wait for an answer now. `true` if
    /// nothing is counted.
    pub fn have_worked_since(&self, then: Instant) -> bool {
        let Some(shared) = &self.0 else { return true };
        let then_ns = shared.clock.ns_of(then);
        (0..LANES_MAX).map(|lane| &shared.words.words()[lane * BLOCK_WORDS..]).any(|block| {
            block[IN_FLIGHT].load(Ordering::Relaxed) > 0
                || block[PROGRESS_NS].load(Ordering::Relaxed) >= then_ns
        })
    }

    /// The reads and writes that clients have had answered; `None` if nothing is counted.
    pub fn answered(&self) -> Option<Answered> {
        let words = self.0.as_ref()?.words.words();
        let mut all = Answered::default();
        for lane in 0..LANES_MAX {
            for operation in [Operation::Read, Operation::Write] {
                let counters = &words[lane * BLOCK_WORDS + operation_words(operation)..];
                let sum = |words: &[AtomicU64]| {
                    words.iter().fold(0_u64, |sum, word| sum.wrapping_add(word.load(Ordering::Relaxed)))
                };
                all.requests = all.requests.wrapping_add(sum(&counters[LATENCY..LATENCY + BUCKETS]));
                all.time_ns = all.time_ns.wrapping_add(sum(&counters[TIME_NS..=TIME_NS]));
            }
        }
        Some(all)
    }

    /// A recorder for a lane, the only writer of its block until it is dropped. A recorder beyond
    /// [`LANES_MAX`] counts nothing.
    pub fn claim(&self) -> Recorder {
        let claimed = self.0.as_ref().and_then(|shared| {
            let lane = shared.free.lock().pop()?;
            Some(Lane { shared: Arc::clone(shared), lane })
        });
        Recorder { lane: claimed, in_flight: 0 }
    }
}

/// Counts the requests of one lane.
#[derive(Debug)]
pub struct Recorder {
    lane: Option<Lane>,
    /// A private copy of the gauge.
    in_flight: u64,
}

#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    lane: usize,
}

impl Lane {
    fn block(&self) -> &[AtomicU64] {
        let start = self.lane * BLOCK_WORDS;
        &self.shared.words.words()[start..start + BLOCK_WORDS]
    }
}

/// Adds to a word of which this thread is the only writer: no locked instruction.
fn add(word: &AtomicU64, count: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl Recorder {
    /// Counts a request that was taken from the client at `now`.
    pub fn taken(&mut self, now: Instant) {
        self.in_flight += 1;
        let Some(lane) = &self.lane else { return };
        let block = lane.block();
        if self.in_flight == 1 {
            block[PROGRESS_NS].store(lane.shared.clock.ns_of(now), Ordering::Relaxed);
        }
        block[IN_FLIGHT].store(self.in_flight, Ordering::Relaxed);
    }

    /// Counts a request that was taken at `taken` and answered at `now`, with its bytes or its
    /// failure. Returns its latency in nanoseconds.
    pub fn answered(
        &mut self,
        operation: Operation,
        result: Result<u64, ErrorKind>,
        taken: Instant,
        now: Instant,
    ) -> u64 {
        let latency_ns = nanoseconds(now.saturating_duration_since(taken));
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(lane) = &self.lane else { return latency_ns };
        let block = lane.block();
        let words = &block[operation_words(operation)..][..LATENCY + BUCKETS];
        match result {
            Ok(0) => {}
            Ok(bytes) => add(&words[BYTES], bytes),
            Err(kind) => add(&words[ERRORS + kind as usize], 1),
        }
        add(&words[TIME_NS], latency_ns);
        add(&words[LATENCY + bucket_of(latency_ns)], 1);
        block[PROGRESS_NS].store(lane.shared.clock.ns_of(now), Ordering::Relaxed);
        block[IN_FLIGHT].store(self.in_flight, Ordering::Relaxed);
        latency_ns
    }

    /// Counts a request that was refused at once, and so was never in flight.
    pub fn refused(&mut self, operation: Operation) {
        let Some(lane) = &self.lane else { return };
        add(&lane.block()[operation_words(operation) + ERRORS + ErrorKind::Refused as usize], 1);
    }

    /// Notes that a request is left unanswered, for a successor to repeat.
    pub fn left(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(lane) = &self.lane {
            lane.block()[IN_FLIGHT].store(self.in_flight, Ordering::Relaxed);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            lane.block()[IN_FLIGHT].store(0, Ordering::Relaxed);
            lane.shared.free.lock().push(lane.lane);
        }
    }
}
