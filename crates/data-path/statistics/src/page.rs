//! The page: shared memory in which the lanes of a volume's worker count, from its supervisor's
//! side.
//!
//! ```text
//! page   = block of lane 0 | ... | block of lane LANES_MAX - 1
//! block  = gauges (16 words) | read | write | flush | discard | write_zeroes (128 words each)
//! gauges = in flight | progress, in ns of CLOCK_MONOTONIC: the last completion, or the time at
//!          which the first request came in flight
//! each   = bytes | time, in ns | errors of each kind (5) | the histogram's buckets (106) | unused
//! ```
//!
//! A block is a multiple of 128 bytes long, so that two lanes never write to one cache line.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use strongroom_memory::{SealedFileError, WordsReader, make_shared_words};
use strongroom_types::unix_milliseconds_now;

use crate::histogram::BUCKETS;
use crate::recorder::Clock;
use crate::snapshot::{ErrorKind, Operation, Snapshot};

/// The number of this layout. A worker that uses another layout does not count.
pub const LAYOUT: u32 = 1;

/// Blocks of a page: the most queues of a vhost-user disk, and the most connections of an NBD
/// export.
pub const LANES_MAX: usize = 16;

pub(crate) const IN_FLIGHT: usize = 0;
pub(crate) const PROGRESS_NS: usize = 1;
const GAUGE_WORDS: usize = 16;
pub(crate) const BYTES: usize = 0;
pub(crate) const TIME_NS: usize = 1;
pub(crate) const ERRORS: usize = 2;
pub(crate) const LATENCY: usize = ERRORS + ErrorKind::ALL.len();
const OPERATION_WORDS: usize = 128;
pub(crate) const BLOCK_WORDS: usize = GAUGE_WORDS + Operation::ALL.len() * OPERATION_WORDS;
/// Words of a page.
pub const PAGE_WORDS: usize = LANES_MAX * BLOCK_WORDS;

const _: () = assert!(LATENCY + BUCKETS <= OPERATION_WORDS);
const _: () = assert!((BLOCK_WORDS * size_of::<u64>()).is_multiple_of(128));

/// Where the words of an operation begin in a block.
pub(crate) const fn operation_words(operation: Operation) -> usize {
    GAUGE_WORDS + operation as usize * OPERATION_WORDS
}

/// The reasons why there is no page.
pub type PageError = SealedFileError;

/// The page of a volume, from the side of its supervisor, which reads it.
#[derive(Debug)]
pub struct Page {
    file: OwnedFd,
    words: WordsReader,
    clock: Clock,
    since_unix_ms: u64,
}

impl Page {
    /// Makes a page with all counters at zero.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn make() -> Result<Self, PageError> {
        let file = make_shared_words(PAGE_WORDS)?;
        let words = WordsReader::map(&file, PAGE_WORDS)?;
        Ok(Self { file, words, clock: Clock::new(), since_unix_ms: unix_milliseconds_now() })
    }

    /// Reads the counters. Whatever the worker has written is treated as numbers, and does not
    /// affect the time that this takes.
    pub fn read(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            since_unix_ms: self.since_unix_ms,
            read_unix_ms: unix_milliseconds_now(),
            ..Snapshot::default()
        };
        let now_ns = self.clock.now_ns();
        for lane in 0..LANES_MAX {
            let block = lane * BLOCK_WORDS;
            let in_flight = self.words.load(block + IN_FLIGHT);
            if in_flight > 0 {
                snapshot.in_flight = snapshot.in_flight.saturating_add(in_flight);
                let idle_ns = now_ns.saturating_sub(self.words.load(block + PROGRESS_NS));
                snapshot.stalled_ms = snapshot.stalled_ms.max(idle_ns / 1_000_000);
            }
            for operation in Operation::ALL {
                self.add(&mut snapshot, block + operation_words(operation), operation);
            }
        }
        snapshot
    }

    fn add(&self, snapshot: &mut Snapshot, start: usize, operation: Operation) {
        let counters = snapshot.of_mut(operation);
        counters.bytes = counters.bytes.saturating_add(self.words.load(start + BYTES));
        counters.time_ns = counters.time_ns.saturating_add(self.words.load(start + TIME_NS));
        for (at, kind) in ErrorKind::ALL.into_iter().enumerate() {
            counters.errors.add(kind, self.words.load(start + ERRORS + at));
        }
        for bucket in 0..BUCKETS {
            counters.latency.add(bucket, self.words.load(start + LATENCY + bucket));
        }
    }
}

/// The page's file, which the worker gets at its start.
impl AsFd for Page {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
