//! Limits: exact over time, in order, fair, and the same through changes and successors.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::qos::{Clock, LimitPage, Limits, QosChannel, QosDisk, Rate, Throttled};
use strongroom_filters::switch::SwitchDisk;
use strongroom_io::{Channel, Disk, Done, IdleReactor, Io, Plain, Request, RequestKind, Thread};
use strongroom_memory::{BufferPool, GuestSlice, WordsWriter};
use strongroom_types::{
    Bandwidth, BandwidthBurst, BandwidthLimit, Extent, IoLimits, Iops, IopsBurst, IopsLimit,
};

use crate::support::{SpyDisk, clear_memory};

const NS_PER_S: u64 = 1_000_000_000;
const SIZE_BYTES: u64 = 16 << 20;

/// A limit of operations.
fn iops(per_second: u64, burst: u64) -> IoLimits {
    let limit =
        IopsLimit { per_second: Iops::new(per_second).unwrap(), burst: Some(IopsBurst::new(burst).unwrap()) };
    IoLimits { iops: Some(limit), bandwidth: None }
}

/// A limit of bytes.
fn bandwidth(bytes_per_second: u64, burst_bytes: u64) -> IoLimits {
    let limit = BandwidthLimit {
        bytes_per_second: Bandwidth::new(bytes_per_second).unwrap(),
        burst_bytes: Some(BandwidthBurst::new(burst_bytes).unwrap()),
    };
    IoLimits { iops: None, bandwidth: Some(limit) }
}

/// A page, its limits and the disk that keeps within them, by a clock that stands still.
struct Site {
    now_ns: Arc<AtomicU64>,
    page: LimitPage,
    limits: Limits,
    spy: Arc<SpyDisk>,
}

/// A queue of a site.
struct Queue {
    channel: QosChannel<Plain, Box<dyn Channel<Plain>>>,
    thread: Thread,
    done: Vec<Done<Plain>>,
}

impl Site {
    fn new(limits: IoLimits) -> Self {
        let now_ns = Arc::new(AtomicU64::new(77 * NS_PER_S));
        let clock = Clock::Simulated(Arc::clone(&now_ns));
        let page = LimitPage::make_by(limits, clock.clone()).unwrap();
        let limits = Limits::of_pages_by([&page], clock).unwrap();
        let spy = Arc::new(SpyDisk::new(Arc::new(CleartextDisk::new(clear_memory(SIZE_BYTES)))));
        Self { now_ns, page, limits, spy }
    }

    fn clock(&self) -> Clock {
        Clock::Simulated(Arc::clone(&self.now_ns))
    }

    fn passes(&self, time: Duration) {
        self.now_ns.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }

    fn queue(&self) -> Queue {
        self.queue_within(self.limits.clone())
    }

    fn queue_within(&self, limits: Limits) -> Queue {
        let pool = BufferPool::new(4 << 20).unwrap();
        let thread = Thread { pool, reactor: Rc::new(IdleReactor::new().unwrap()) };
        let below = self.spy.open(&thread, 64).unwrap();
        Queue { channel: QosChannel::new(below, &thread, limits, 64), thread, done: Vec::new() }
    }

    /// How many requests went below since the last call.
    fn sent(&self) -> usize {
        self.spy.take().len()
    }
}

impl Queue {
    fn submit(&mut self, tag: u64, request: Request<Plain>) {
        self.channel.submit(Io { tag, request });
        self.channel.kick();
    }

    fn zero(&mut self, tag: u64) {
        let extent = Extent::new(tag % 1024 * 4096, 4096).unwrap();
        self.submit(tag, Request::WriteZeroes { extent, may_unmap: true, durable: false });
    }

    fn read(&mut self, tag: u64, bytes: usize) {
        let into = GuestSlice::from_buffer(self.thread.pool.take(bytes).unwrap());
        let extent = Extent::new(0, bytes as u64).unwrap();
        self.submit(tag, Request::Read { extent, into });
    }

    /// The tags that ended since the last call.
    fn poll(&mut self) -> Vec<u64> {
        self.channel.poll(&mut self.done);
        self.done.drain(..).map(|done| (done.tag, done.result.unwrap()).0).collect()
    }
}

/// A bucket as it is drawn in books: a level that rises with the time up to the burst, and falls
/// with each request. In billionths of tokens.
struct Oracle {
    rate: i128,
    burst: i128,
    level: i128,
    at_ns: u64,
}

impl Oracle {
    const BILLION: i128 = NS_PER_S as i128;

    fn full(rate: u64, burst: u64, at_ns: u64) -> Self {
        let (rate, burst) = (i128::from(rate), i128::from(burst) * Self::BILLION);
        Self { rate, burst, level: burst, at_ns }
    }

    /// When a request that arrives now starts, behind all before it.
    fn starts_at_ns(&mut self, arrives_ns: u64, cost: u64) -> u64 {
        let now_ns = arrives_ns.max(self.at_ns);
        self.level = self.burst.min(self.level + self.rate * i128::from(now_ns - self.at_ns));
        let missing = (i128::from(cost) * Self::BILLION - self.level).max(0);
        let wait_ns = (missing + self.rate - 1) / self.rate;
        self.at_ns = now_ns + wait_ns as u64;
        self.level += self.rate * wait_ns - i128::from(cost) * Self::BILLION;
        self.at_ns
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Each request starts when the plain bucket lets it, but for what one token takes, however
    /// long the history is: nothing drifts.
    #[test]
    fn requests_start_when_a_plain_bucket_lets_them(
        rate in 1_u64..5_000_000_000,
        burst in 1_u64..1_000_000,
        arrivals in prop::collection::vec((0_u64..3_000_000, 1_u64..1_000_000), 1..400),
    ) {
        let begin_ns = 5 * NS_PER_S;
        let bucket = Rate::default().followed_by(rate, burst, 0, begin_ns);
        let mut oracle = Oracle::full(rate, burst, begin_ns);
        let token_ns = NS_PER_S / rate + 2;
        let (mut spent, mut now_ns, mut free_ns) = (0, begin_ns, begin_ns);
        for (pause_ns, cost) in arrivals {
            let cost = cost.min(burst);
            now_ns += pause_ns;
            // A queue asks for a place when the request before it has started.
            let asks_ns = now_ns.max(free_ns);
            let place = bucket.position(spent, cost, asks_ns);
            spent = place.0;
            let starts_ns = bucket.reaches_at_ns(place).max(asks_ns);
            let wanted_ns = oracle.starts_at_ns(asks_ns, cost);
            prop_assert!(
                starts_ns <= wanted_ns && wanted_ns - starts_ns <= token_ns,
                "{starts_ns} for {wanted_ns}, a token takes {token_ns} ns"
            );
            free_ns = starts_ns;
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 50, ..ProptestConfig::default() })]

    /// In no stretch of time does more start than its rates and the largest burst allow, and a busy
    /// queue gets no less, through any changes of the limit.
    #[test]
    fn changes_neither_give_nor_take(
        changes in prop::collection::vec((16_u64..20_000, 25_u64..60, 1_u64..1_000), 1..12),
    ) {
        let (first_rate, first_burst, _) = changes[0];
        let site = Site::new(iops(first_rate, first_burst));
        let mut queue = site.queue();
        let (mut tag, mut started) = (0, 0);
        // In millionths of operations.
        let mut allowed = u128::from(first_burst) * 1_000_000;
        for (rate, burst, time_ms) in changes {
            site.page.set(iops(rate, burst));
            for _ in 0..time_ms {
                while tag - started < 32 {
                    queue.zero(tag);
                    tag += 1;
                }
                site.passes(Duration::from_millis(1));
                allowed += u128::from(rate) * 1000;
                started += queue.poll().len() as u64;
                let low = allowed.saturating_sub(u128::from(first_burst) * 1_000_000);
                prop_assert!(u128::from(started) * 1_000_000 <= allowed + 100_000);
                // What comes in a millisecond is less than the queue is deep, and than any burst.
                prop_assert!(u128::from(started + 2) * 1_000_000 + 100_000 >= low);
            }
        }
    }
}

#[test]
fn without_a_limit_everything_passes_and_nothing_is_counted() {
    let site = Site::new(IoLimits::NONE);
    let mut queue = site.queue();
    (0..40).for_each(|tag| queue.zero(tag));
    assert_eq!((site.sent(), queue.poll().len()), (40, 40));
    assert_eq!(site.page.throttled(), Throttled::default());
}

#[test]
fn a_burst_passes_and_the_rest_comes_at_the_rate() {
    let site = Site::new(iops(1000, 10));
    let mut queue = site.queue();
    (0..30).for_each(|tag| queue.zero(tag));
    assert_eq!((site.sent(), queue.poll().len()), (10, 10));
    for _ in 0..10 {
        site.passes(Duration::from_millis(1));
        assert_eq!(queue.poll().len(), 1);
    }
    let counted = site.page.throttled();
    assert_eq!((counted.requests, counted.time_ns), (10, 55 * 1_000_000));
    // The pause fills the bucket, and not more.
    site.passes(Duration::from_secs(3600));
    assert_eq!(queue.poll().len(), 10);
    (30..60).for_each(|tag| queue.zero(tag));
    assert_eq!(queue.poll().len(), 1, "the last one's place was of the hour before");
}

#[test]
fn a_queue_keeps_its_order() {
    let site = Site::new(iops(1000, 1));
    let mut queue = site.queue();
    (0..20).for_each(|tag| queue.zero(tag));
    let mut ended = Vec::new();
    while ended.len() < 20 {
        ended.extend(queue.poll());
        site.passes(Duration::from_micros(300));
    }
    assert_eq!(ended, (0..20).collect::<Vec<_>>());
}

#[test]
fn a_flush_waits_for_nothing_that_waits() {
    let site = Site::new(iops(16, 1));
    let mut queue = site.queue();
    (0..5).for_each(|tag| queue.zero(tag));
    queue.submit(99, Request::Flush);
    assert_eq!(queue.poll(), [0, 99]);
    let kinds: Vec<_> = site.spy.take().into_iter().map(|seen| seen.kind).collect();
    assert_eq!(kinds, [RequestKind::WriteZeroes, RequestKind::Flush]);
}

#[test]
fn bytes_are_of_transfers_and_long_transfers_are_several_operations() {
    let site = Site::new(bandwidth(1 << 20, 256 << 10));
    let mut queue = site.queue();
    // Moves no data.
    (0..20).for_each(|tag| queue.zero(tag));
    assert_eq!(queue.poll().len(), 20);
    queue.read(20, 256 << 10);
    queue.read(21, 4096);
    assert_eq!(queue.poll(), [20]);
    site.passes(Duration::from_nanos(3_906_249));
    assert!(queue.poll().is_empty());
    site.passes(Duration::from_nanos(1));
    assert_eq!(queue.poll(), [21], "4096 of 1048576 bytes take a 256th of a second");

    let site = Site::new(iops(1000, 5));
    let mut queue = site.queue();
    queue.read(0, 1 << 20);
    queue.zero(1);
    queue.zero(2);
    assert_eq!(queue.poll(), [0, 1], "a MiB is four operations");
}

#[test]
fn a_request_above_the_burst_passes_too() {
    let site = Site::new(iops(1000, 1));
    let mut queue = site.queue();
    queue.read(0, 1 << 20);
    assert!(queue.poll().is_empty());
    site.passes(Duration::from_millis(3));
    assert_eq!(queue.poll(), [0]);
}

#[test]
fn queues_take_turns_however_deep_they_are() {
    let site = Site::new(iops(1000, 1));
    let (mut deep, mut shallow) = (site.queue(), site.queue());
    (0..60).for_each(|tag| deep.zero(tag));
    let (mut of_deep, mut of_shallow) = (0, 0);
    shallow.zero(0);
    for _ in 0..100 {
        site.passes(Duration::from_micros(500));
        // The deep one always looks first.
        of_deep += deep.poll().len();
        let ended = shallow.poll().len();
        of_shallow += ended;
        (0..ended).for_each(|_| shallow.zero(of_shallow as u64));
    }
    assert_eq!(of_deep + of_shallow, 50 + 1, "at the rate, with the burst");
    assert!(of_shallow >= 24, "{of_shallow} of the shallow queue, {of_deep} of the deep one");
}

#[test]
fn a_change_holds_for_what_waits_and_keeps_what_is_owed() {
    let site = Site::new(iops(16, 1));
    let mut queue = site.queue();
    (0..5).for_each(|tag| queue.zero(tag));
    assert_eq!(queue.poll().len(), 1);
    // Half of the first one's wait has passed, and half an operation is earned.
    site.passes(Duration::from_micros(31_250));
    site.page.set(iops(1000, 1));
    site.passes(Duration::from_micros(499));
    assert!(queue.poll().is_empty());
    site.passes(Duration::from_micros(1));
    assert_eq!(queue.poll(), [1], "it has half an operation from before");
    site.page.set(IoLimits::NONE);
    assert_eq!(queue.poll(), [2, 3, 4]);
}

#[test]
fn a_new_limit_holds_from_the_next_request_on() {
    let site = Site::new(IoLimits::NONE);
    let mut queue = site.queue();
    queue.zero(0);
    site.page.set(iops(1000, 2));
    (1..6).for_each(|tag| queue.zero(tag));
    assert_eq!(queue.poll(), [0, 1, 2], "its bucket begins full");
}

#[test]
fn a_successor_pays_what_its_predecessor_owes() {
    let site = Site::new(iops(1000, 10));
    let mut queue = site.queue();
    (0..40).for_each(|tag| queue.zero(tag));
    assert_eq!(queue.poll().len(), 10);
    // It hands over: what waits goes below at once.
    site.limits.hasten();
    assert_eq!(queue.poll().len(), 30);
    let successor = Limits::of_pages_by([&site.page], site.clock()).unwrap();
    let mut queue = site.queue_within(successor);
    queue.zero(0);
    site.passes(Duration::from_millis(30));
    assert!(queue.poll().is_empty());
    site.passes(Duration::from_millis(1));
    assert_eq!(queue.poll(), [0]);
}

#[test]
fn a_queue_that_ends_waits_for_nothing_and_others_do() {
    let site = Site::new(iops(16, 1));
    let (mut ending, mut other) = (site.queue(), site.queue());
    (0..10).for_each(|tag| ending.zero(tag));
    (0..2).for_each(|tag| other.zero(tag));
    ending.channel.hasten();
    assert_eq!(ending.poll().len(), 10);
    assert!(other.poll().is_empty());
    ending.zero(10);
    assert_eq!(ending.poll(), [10]);
    site.passes(Duration::from_millis(500));
    assert_eq!(other.poll(), [0], "what has gone ahead is paid for first");
}

#[test]
fn the_limit_of_a_vm_holds_for_all_of_its_disks() {
    let site = Site::new(iops(1000, 4));
    let own = [IoLimits::NONE, iops(100, 1)].map(|limits| LimitPage::make_by(limits, site.clock()).unwrap());
    let mut queues = own
        .each_ref()
        .map(|page| site.queue_within(Limits::of_pages_by([page, &site.page], site.clock()).unwrap()));
    for queue in &mut queues {
        (0..60).for_each(|tag| queue.zero(tag));
    }
    let mut ended = [0, 0];
    for _ in 0..40 {
        site.passes(Duration::from_millis(1));
        for (ended, queue) in ended.iter_mut().zip(&mut queues) {
            *ended += queue.poll().len();
        }
    }
    assert!((4..=5).contains(&ended[1]), "{ended:?}: its own limit is the lower one");
    assert!((42..=44).contains(&(ended[0] + ended[1])), "{ended:?}");
    let [throttled, _] = own.each_ref().map(LimitPage::throttled);
    assert_eq!(throttled.requests as usize, ended[0] - 4, "each disk counts its own");
}

#[test]
fn numbers_of_a_captured_worker_end_no_loop_and_panic_nowhere() {
    let site = Site::new(iops(1000, 4));
    let words = WordsWriter::map(&site.page, 64).unwrap();
    let mut queue = site.queue();
    for word in [u64::MAX, 1, 0, u64::MAX - 1] {
        for at in 0..64 {
            words.words()[at].store(word, Ordering::Relaxed);
            queue.read(0, 4096);
            queue.poll();
            site.page.throttled();
        }
    }
    site.page.set(iops(2000, 4));
    site.page.set(IoLimits::NONE);
    queue.channel.hasten();
    queue.poll();
}

#[test]
fn what_waits_does_not_hold_up_a_new_top() {
    let now_ns = Arc::new(AtomicU64::new(NS_PER_S));
    let clock = Clock::Simulated(Arc::clone(&now_ns));
    let page = LimitPage::make_by(iops(16, 1), clock.clone()).unwrap();
    let limits = Limits::of_pages_by([&page], clock).unwrap();
    let disk = |disk: Arc<MemoryDisk>| Arc::new(CleartextDisk::new(disk)) as Arc<dyn Disk<Plain>>;
    let switch = Arc::new(SwitchDisk::new(disk(clear_memory(SIZE_BYTES))));
    let qos = QosDisk::new(Arc::clone(&switch) as _, limits);
    let pool = BufferPool::new(4 << 20).unwrap();
    let thread = Thread { pool, reactor: Rc::new(IdleReactor::new().unwrap()) };
    let mut channel = qos.open(&thread, 64).unwrap();
    let zero = |tag: u64| {
        let extent = Extent::new(tag * 4096, 4096).unwrap();
        Io { tag, request: Request::WriteZeroes { extent, may_unmap: true, durable: false } }
    };
    (0..8).for_each(|tag| channel.submit(zero(tag)));
    channel.kick();
    let mut done = Vec::new();
    channel.poll(&mut done);
    assert_eq!(done.len(), 1);
    std::thread::scope(|scope| {
        let next = disk(clear_memory(SIZE_BYTES));
        let changing = scope.spawn(|| {
            switch.prepare(next, Duration::from_secs(10))?;
            switch.freeze(Duration::from_secs(10))?;
            switch.commit()
        });
        while !changing.is_finished() {
            channel.poll(&mut done);
        }
        changing.join().unwrap().unwrap();
    });
    assert_eq!(done.len(), 1, "the others have waited meanwhile");
    now_ns.fetch_add(10 * NS_PER_S, Ordering::SeqCst);
    let mut waiting: VecDeque<u64> = (1..8).collect();
    while !waiting.is_empty() {
        now_ns.fetch_add(NS_PER_S, Ordering::SeqCst);
        done.clear();
        channel.poll(&mut done);
        for ended in &done {
            assert_eq!(Some(ended.tag), waiting.pop_front());
        }
    }
}
