//! The page of a bucket for operations and one for bytes, shared by a supervisor and its workers.
//!
//! ```text
//! word  0       which limits there are: 1 of operations, 2 of bytes
//!       1       the sequence: odd while the supervisor changes the words below
//!       2 ..= 5 operations: thousandths a second | burst | earned | since, in ns of CLOCK_MONOTONIC
//!       6 ..= 9 bytes: a second | burst | earned | since
//!      16, 32   what was spent: thousandths of operations, bytes
//!      48, 49   requests that have waited, and the sum of their waits, in ns
//! ```
//!
//! Whatever is in it is treated as numbers, and every loop over it ends: a worker that has been
//! captured can write all of it. It then deceives the workers with the same page, which are those
//! of its own VM, and could do its I/O without a limit anyway.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use strongroom_memory::{SealedFileError, WordsWriter, make_shared_words};
use strongroom_types::{BandwidthLimit, IoLimits, IopsLimit};

use super::OPERATION_BYTES;
use super::bucket::{Position, Rate};

/// The number of this layout. A worker that uses another layout limits nothing.
pub const LAYOUT: u32 = 1;

/// The most pages that limit one volume: its own, and its VM's.
pub const PAGES_MAX: usize = 2;

const WORDS: usize = 64;
const ACTIVE: usize = 0;
const SEQUENCE: usize = 1;
const RATES: usize = 2;
const RATE_WORDS: usize = 4;
/// Each on cache lines of its own.
const SPENT: usize = 16;
const SPENT_WORDS: usize = 16;
const THROTTLED_REQUESTS: usize = 48;
const THROTTLED_NS: usize = 49;

/// The buckets of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bucket {
    Operations,
    Bytes,
}

impl Bucket {
    /// All of them, in the order of the page.
    const ALL: [Self; BUCKETS] = [Self::Operations, Self::Bytes];

    /// Tokens a second, and the burst, under these limits.
    fn numbers(self, limits: &IoLimits) -> Option<Numbers> {
        match self {
            Self::Operations => {
                let IopsLimit { per_second, burst } = limits.iops?;
                let least = LONGEST_BYTES.div_ceil(OPERATION_BYTES);
                let usual = per_second.get().div_ceil(BURSTS_PER_S).max(least);
                let burst = burst.map_or(usual, |burst| burst.get());
                let in_tokens = |operations| operations * TOKENS_PER_OPERATION;
                Some(Numbers { per_second: in_tokens(per_second.get()), burst: in_tokens(burst) })
            }
            Self::Bytes => {
                let BandwidthLimit { bytes_per_second, burst_bytes } = limits.bandwidth?;
                let usual = bytes_per_second.get().div_ceil(BURSTS_PER_S).max(LONGEST_BYTES);
                let burst = burst_bytes.map_or(usual, |burst| burst.get());
                Some(Numbers { per_second: bytes_per_second.get(), burst })
            }
        }
    }
}

const BUCKETS: usize = 2;

/// A limit in tokens.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    per_second: u64,
    burst: u64,
}

/// Tokens of an operation: a rate that changes loses less than a thousandth of one.
const TOKENS_PER_OPERATION: u64 = 1000;

/// A burst without a person's choice is what comes in a tenth of a second.
const BURSTS_PER_S: u64 = 10;

/// The least burst without a person's choice: the longest request, widened to whole blocks, starts
/// at once on an idle disk.
const LONGEST_BYTES: u64 = strongroom_io::TRANSFER_BYTES_MAX as u64 + 8192;

/// How often the words of a rate are read until they fit together. They change when a person asks
/// for that.
const READS_MAX: usize = 100;

/// The reasons why there is no page.
pub type LimitPageError = SealedFileError;

/// The time, in ns from the same moment for all who share a page.
#[derive(Clone)]
pub enum Clock {
    /// CLOCK_MONOTONIC.
    Monotonic {
        /// A moment,
        instant: Instant,
        /// and its time.
        at_ns: u64,
    },
    /// A time that a test sets.
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// The clock of all processes.
    pub fn monotonic() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        Self::Monotonic { instant: Instant::now(), at_ns: nanoseconds(now) }
    }

    /// Now.
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Monotonic { instant, at_ns } => at_ns.saturating_add(nanoseconds(instant.elapsed())),
            Self::Simulated(now_ns) => now_ns.load(Ordering::SeqCst),
        }
    }
}

/// 584 years fit into it.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What requests cost, in tokens of each bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost([u64; BUCKETS]);

impl Cost {
    /// A transfer.
    pub fn of_transfer(bytes: u64) -> Self {
        Self([bytes.div_ceil(OPERATION_BYTES).max(1) * TOKENS_PER_OPERATION, bytes])
    }

    /// An operation that moves no data.
    pub const fn of_operation() -> Self {
        Self([TOKENS_PER_OPERATION, 0])
    }
}

/// Requests that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// How many.
    pub requests: u64,
    /// The sum of their waits, in ns.
    pub time_ns: u64,
}

/// A mapped page.
#[derive(Debug)]
struct Words(WordsWriter);

impl Words {
    fn map(file: impl AsFd) -> Result<Self, LimitPageError> {
        WordsWriter::map(file, WORDS).map(Self)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.0.words()[at]
    }

    fn spent(&self, bucket: Bucket) -> &AtomicU64 {
        self.word(SPENT + bucket as usize * SPENT_WORDS)
    }

    fn is_limited(&self) -> bool {
        self.word(ACTIVE).load(Ordering::Relaxed) != 0
    }

    /// The rates. If the sequence never settles they may not fit together; that only happens if
    /// another worker of the VM was captured.
    fn rates(&self) -> [Rate; BUCKETS] {
        let mut rates = [Rate::default(); BUCKETS];
        for _ in 0..READS_MAX {
            let before = self.word(SEQUENCE).load(Ordering::Acquire);
            for (bucket, rate) in rates.iter_mut().enumerate() {
                let word = |at| self.word(RATES + bucket * RATE_WORDS + at).load(Ordering::Relaxed);
                *rate = Rate { per_second: word(0), burst: word(1), earned: word(2), since_ns: word(3) };
            }
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.word(SEQUENCE).load(Ordering::Relaxed) == before {
                break;
            }
        }
        rates
    }

    fn set_rates(&self, rates: &[Rate; BUCKETS]) {
        let sequence = self.word(SEQUENCE).load(Ordering::Relaxed) | 1;
        self.word(SEQUENCE).store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut active = 0;
        for (bucket, rate) in rates.iter().enumerate() {
            let words = [rate.per_second, rate.burst, rate.earned, rate.since_ns];
            for (at, word) in words.into_iter().enumerate() {
                self.word(RATES + bucket * RATE_WORDS + at).store(word, Ordering::Relaxed);
            }
            active |= u64::from(rate.is_limited()) << bucket;
        }
        self.word(ACTIVE).store(active, Ordering::Relaxed);
        self.word(SEQUENCE).store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Spends a cost in the buckets that limit something.
    fn spend(&self, cost: Cost, now_ns: u64) -> [Option<Position>; BUCKETS] {
        let rates = self.rates();
        let mut positions = [None; BUCKETS];
        for bucket in Bucket::ALL {
            let (rate, cost) = (rates[bucket as usize], cost.0[bucket as usize]);
            if !rate.is_limited() || cost == 0 {
                continue;
            }
            let spend = |spent| Some(rate.position(spent, cost, now_ns).0);
            let spent = self.spent(bucket).fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
            positions[bucket as usize] = spent.ok().map(|spent| rate.position(spent, cost, now_ns));
        }
        positions
    }

    fn due_at_ns(&self, positions: &[Option<Position>; BUCKETS]) -> u64 {
        let rates = self.rates();
        let due = rates.iter().zip(positions).filter_map(|(rate, position)| {
            let position = (*position)?;
            rate.is_limited().then(|| rate.reaches_at_ns(position))
        });
        due.max().unwrap_or(0)
    }
}

/// The page of a volume, or of a VM, from the side of its supervisor, which sets the limits.
pub struct LimitPage {
    file: OwnedFd,
    words: Words,
    clock: Clock,
    limits: Mutex<IoLimits>,
}

impl fmt::Debug for LimitPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LimitPage({})", self.limits())
    }
}

impl LimitPage {
    /// Makes a page with these limits.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn make(limits: IoLimits) -> Result<Self, LimitPageError> {
        Self::make_by(limits, Clock::monotonic())
    }

    /// As [`Self::make`], by another clock, for tests.
    ///
    /// # Errors
    /// If the kernel has no memory for it.
    pub fn make_by(limits: IoLimits, clock: Clock) -> Result<Self, LimitPageError> {
        let file = make_shared_words(WORDS)?;
        let words = Words::map(&file)?;
        let page = Self { file, words, clock, limits: Mutex::new(IoLimits::NONE) };
        page.set(limits);
        Ok(page)
    }

    /// The present limits.
    pub fn limits(&self) -> IoLimits {
        *self.limits.lock()
    }

    /// Sets other limits, for requests that wait too. Buckets that were limited keep what they
    /// hold or owe.
    pub fn set(&self, limits: IoLimits) {
        let mut present = self.limits.lock();
        if *present == limits {
            return;
        }
        let (now_ns, before) = (self.clock.now_ns(), self.words.rates());
        let mut rates = [Rate::default(); BUCKETS];
        for bucket in Bucket::ALL {
            let Some(Numbers { per_second, burst }) = bucket.numbers(&limits) else { continue };
            let (before, spent) = (before[bucket as usize], self.words.spent(bucket));
            if before.is_limited() {
                // What did not fit into the former bucket is lost, whatever the new one takes.
                let least = before.at_least_spent(0, now_ns);
                spent.fetch_max(least, Ordering::Relaxed);
            }
            let spent = spent.load(Ordering::Relaxed);
            rates[bucket as usize] = before.followed_by(per_second, burst, spent, now_ns);
        }
        self.words.set_rates(&rates);
        *present = limits;
    }

    /// The requests that had to wait, under whichever limit.
    pub fn throttled(&self) -> Throttled {
        let load = |at| self.words.word(at).load(Ordering::Relaxed);
        Throttled { requests: load(THROTTLED_REQUESTS), time_ns: load(THROTTLED_NS) }
    }
}

/// The page's file, which a worker gets at its start.
impl AsFd for LimitPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The limits of a volume, from its worker's side: those of all of its pages hold.
#[derive(Clone)]
pub struct Limits(Arc<Shared>);

struct Shared {
    /// The volume's own first: requests that wait are counted in it.
    pages: Vec<Words>,
    clock: Clock,
    is_hastened: AtomicBool,
}

/// A request's place in the order of each bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket([[Option<Position>; BUCKETS]; PAGES_MAX]);

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limits({} pages)", self.0.pages.len())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::none()
    }
}

impl Limits {
    /// No limits.
    pub fn none() -> Self {
        Self::over(Vec::new(), Clock::monotonic())
    }

    /// The limits of at most [`PAGES_MAX`] pages that a supervisor made, the volume's own first.
    ///
    /// # Errors
    /// If a file is no such page.
    pub fn of_pages(pages: impl IntoIterator<Item: AsFd>) -> Result<Self, LimitPageError> {
        Self::of_pages_by(pages, Clock::monotonic())
    }

    /// As [`Self::of_pages`], by another clock, for tests.
    ///
    /// # Errors
    /// If a file is no such page.
    pub fn of_pages_by(pages: impl IntoIterator<Item: AsFd>, clock: Clock) -> Result<Self, LimitPageError> {
        let pages = pages.into_iter().take(PAGES_MAX).map(Words::map).collect::<Result<_, _>>()?;
        Ok(Self::over(pages, clock))
    }

    fn over(pages: Vec<Words>, clock: Clock) -> Self {
        Self(Arc::new(Shared { pages, clock, is_hastened: AtomicBool::new(false) }))
    }

    /// Lets nothing wait any more, in all channels: the volume is handed over, or ends. What waits
    /// goes below within [`LOOKS_EVERY`](super::LOOKS_EVERY).
    pub fn hasten(&self) {
        self.0.is_hastened.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_hastened(&self) -> bool {
        self.0.is_hastened.load(Ordering::Relaxed)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.0.clock.now_ns()
    }

    pub(super) fn is_limited(&self) -> bool {
        self.0.pages.iter().any(Words::is_limited)
    }

    /// Spends a cost, and returns the request's place.
    pub(super) fn spend(&self, cost: Cost, now_ns: u64) -> Ticket {
        let mut places = [[None; BUCKETS]; PAGES_MAX];
        for (page, place) in self.0.pages.iter().zip(&mut places) {
            *place = page.spend(cost, now_ns);
        }
        Ticket(places)
    }

    /// When all limits allow the request.
    pub(super) fn due_at_ns(&self, ticket: &Ticket) -> u64 {
        let due = self.0.pages.iter().zip(&ticket.0).map(|(page, place)| page.due_at_ns(place));
        due.max().unwrap_or(0)
    }

    /// Counts a request that has waited.
    pub(super) fn count(&self, waited_ns: u64) {
        if let Some(page) = self.0.pages.first() {
            page.word(THROTTLED_REQUESTS).fetch_add(1, Ordering::Relaxed);
            page.word(THROTTLED_NS).fetch_add(waited_ns, Ordering::Relaxed);
        }
    }
}
