//! The disk below is replaced under running requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::delay::{Delay, DelayDisk, Delays};
use strongroom_filters::error::{ErrorDisk, Fault, Trigger};
use strongroom_filters::park::{ParkDisk, Patience, TroubleBook};
use strongroom_filters::switch::{SwitchDisk, SwitchError};
use strongroom_io::conformance::{Conformance, Driver, Setup};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, RequestKind, Thread, Waker,
};
use strongroom_types::Extent;

use crate::support::clear_memory;

const SIZE_BYTES: u64 = 1 << 20;
/// No test waits so long.
const AMPLE: Duration = Duration::from_secs(60);

fn plain() -> Arc<dyn Disk<Plain>> {
    Arc::new(CleartextDisk::new(clear_memory(SIZE_BYTES)))
}

fn driver(disk: &dyn Disk<Plain>) -> Driver<Plain> {
    Driver::open(disk, &Setup::default(), 32, 4 << 20, 0).unwrap()
}

fn block(number: u64) -> Extent {
    Extent::between(number * 4096, number * 4096 + 4096)
}

fn write_of(driver: &mut Driver<Plain>, number: u64, fill: u8) -> Request<Plain> {
    let from = driver.memory.with::<Plain>(&[fill; 4096], &mut driver.random).unwrap();
    Request::Write { extent: block(number), from, durable: false }
}

fn write(driver: &mut Driver<Plain>, number: u64, fill: u8) {
    let request = write_of(driver, number, fill);
    assert_eq!(driver.run(request).unwrap().result, Ok(()));
}

/// What is on a disk, read on a channel of its own.
fn found(disk: &Arc<dyn Disk<Plain>>, number: u64) -> u8 {
    let read = driver(&**disk).read(block(number)).unwrap();
    assert!(read.iter().all(|byte| *byte == read[0]));
    read[0]
}

/// Prepares while the drivers' threads, which are this one, look at their channels.
fn prepare(
    switch: &SwitchDisk<Plain>,
    next: Arc<dyn Disk<Plain>>,
    drivers: &mut [&mut Driver<Plain>],
) -> Result<(), SwitchError> {
    std::thread::scope(|scope| {
        let preparing = scope.spawn(|| switch.prepare(next, AMPLE));
        while !preparing.is_finished() {
            for driver in drivers.iter_mut() {
                driver.succeed(Request::Flush).unwrap();
            }
        }
        preparing.join().unwrap()
    })
}

/// Counts the requests that came and those that ended.
#[derive(Default)]
struct Counts {
    came: AtomicU64,
    ended: AtomicU64,
    kinds: parking_lot::Mutex<Vec<RequestKind>>,
}

struct CountingDisk {
    below: Arc<dyn Disk<Plain>>,
    counts: Arc<Counts>,
}

struct CountingChannel {
    below: Box<dyn Channel<Plain>>,
    counts: Arc<Counts>,
}

impl Disk<Plain> for CountingDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(CountingChannel {
            below: self.below.open(thread, depth)?,
            counts: Arc::clone(&self.counts),
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

impl Channel<Plain> for CountingChannel {
    fn submit(&mut self, io: Io<Plain>) {
        self.counts.came.fetch_add(1, Ordering::SeqCst);
        self.counts.kinds.lock().push(io.request.kind());
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        let before = done.len();
        self.below.poll(done);
        self.counts.ended.fetch_add((done.len() - before) as u64, Ordering::SeqCst);
    }
}

fn counted(delays: Delays) -> (Arc<dyn Disk<Plain>>, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let below = Arc::new(DelayDisk::new(plain(), delays, 5));
    (Arc::new(CountingDisk { below, counts: Arc::clone(&counts) }), counts)
}

/// A switch whose disk is exchanged all the time for another stage over the same blocks.
struct Restless {
    switch: Arc<SwitchDisk<Plain>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Restless {
    fn new(size_bytes: u64) -> Self {
        let blocks = clear_memory(size_bytes);
        let stage = move || Arc::new(CleartextDisk::new(Arc::clone(&blocks) as _)) as Arc<dyn Disk<Plain>>;
        let (switch, ends) = (Arc::new(SwitchDisk::new(stage())), Arc::new(AtomicBool::new(false)));
        let (switched, ended) = (Arc::clone(&switch), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let mut commits = 0;
            while !ended.load(Ordering::SeqCst) {
                let patience = Duration::from_millis(1);
                if switched.prepare(stage(), patience).is_err() {
                    continue;
                }
                match switched.freeze(patience) {
                    Ok(()) if commits % 3 == 2 => switched.abandon(),
                    Ok(()) => switched.commit().unwrap(),
                    Err(_) => switched.abandon(),
                }
                commits += 1;
            }
            commits
        });
        Self { switch, ends, thread: Some(thread) }
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let commits = self.thread.take().unwrap().join().unwrap();
        // A short check may end before the first one.
        assert!(commits < u64::MAX);
    }
}

impl Disk<Plain> for Restless {
    fn limits(&self) -> Limits {
        self.switch.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        self.switch.open(thread, depth)
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.switch.allocation(extent, report)
    }
}

#[test]
fn a_switch_keeps_the_promises_of_a_stage_while_it_is_switched() {
    const BYTES: u64 = 5 << 20;
    if let Err(failure) =
        Conformance::<Plain>::new(|| SwitchDisk::new(Arc::new(CleartextDisk::new(clear_memory(BYTES))) as _))
            .run()
    {
        panic!("{failure}");
    }
    if let Err(failure) = Conformance::<Plain>::new(|| Restless::new(BYTES)).run() {
        panic!("{failure}");
    }
}

#[test]
fn what_is_in_flight_ends_below_and_what_is_held_goes_on_where_the_change_leads() {
    let slow = Delays { write: Delay::Constant(Duration::from_millis(30)), ..Delays::default() };
    for commits in [true, false] {
        let old: Arc<dyn Disk<Plain>> = Arc::new(DelayDisk::new(plain(), slow, 1));
        let (new, counts) = counted(Delays::default());
        let switch = SwitchDisk::new(Arc::clone(&old));
        let mut driver = driver(&switch);
        write(&mut driver, 0, 1);
        prepare(&switch, Arc::clone(&new), &mut [&mut driver]).unwrap();
        let request = write_of(&mut driver, 1, 2);
        driver.submit(request);
        std::thread::scope(|scope| {
            let freezing = scope.spawn(|| switch.freeze(AMPLE));
            assert_eq!(driver.wait().unwrap().len(), 1);
            freezing.join().unwrap().unwrap();
        });
        let extent = block(3);
        let write = write_of(&mut driver, 2, 3);
        for request in [
            write,
            Request::Flush,
            Request::Discard { extent },
            Request::WriteZeroes { extent, may_unmap: true, durable: true },
        ] {
            driver.submit(request);
        }
        assert_eq!((counts.came.load(Ordering::SeqCst), driver.in_flight()), (0, 4));
        if commits {
            switch.commit().unwrap();
        } else {
            switch.abandon();
        }
        while driver.in_flight() > 0 {
            assert!(driver.wait().unwrap().iter().all(|done| done.result.is_ok()));
        }
        let wanted = [RequestKind::Write, RequestKind::Flush, RequestKind::Discard, RequestKind::WriteZeroes];
        assert_eq!(*counts.kinds.lock(), if commits { &wanted[..] } else { &[] }, "in their order");
        assert_eq!((found(&old, 0), found(&old, 1)), (1, 2));
        let held = if commits { (0, 3) } else { (3, 0) };
        assert_eq!((found(&old, 2), found(&new, 2)), held);
    }
}

#[test]
fn a_freeze_does_not_wait_for_a_thread_that_has_nothing_to_do() {
    let (old, new) = (plain(), plain());
    let switch = SwitchDisk::new(Arc::clone(&old));
    let mut idle = driver(&switch);
    prepare(&switch, Arc::clone(&new), &mut [&mut idle]).unwrap();
    // Its thread is this one, which looks at nothing meanwhile.
    switch.freeze(AMPLE).unwrap();
    switch.commit().unwrap();
    // A client that comes later, and the idle one, are served by the new disk.
    write(&mut driver(&switch), 1, 1);
    write(&mut idle, 2, 2);
    assert_eq!([found(&old, 1), found(&old, 2), found(&new, 1), found(&new, 2)], [0, 0, 1, 2]);
}

#[test]
fn a_client_that_comes_while_a_change_is_under_way_takes_part_in_it() {
    let (old, new) = (plain(), plain());
    let switch = SwitchDisk::new(Arc::clone(&old));
    switch.prepare(Arc::clone(&new), AMPLE).unwrap();
    let mut during = driver(&switch);
    write(&mut during, 1, 1);
    switch.freeze(AMPLE).unwrap();
    let mut frozen = driver(&switch);
    let request = write_of(&mut frozen, 2, 2);
    frozen.submit(request);
    switch.commit().unwrap();
    assert_eq!(frozen.wait().unwrap().len(), 1);
    write(&mut during, 3, 3);
    assert_eq!([1, 2, 3].map(|number| found(&old, number)), [1, 0, 0]);
    assert_eq!([1, 2, 3].map(|number| found(&new, number)), [0, 2, 3]);
}

/// A disk that cannot be opened.
struct Closed;

impl Disk<Plain> for Closed {
    fn limits(&self) -> Limits {
        plain().limits()
    }

    fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Err(IoError::Injected)
    }

    fn allocation(&self, _: Extent, _: &mut dyn FnMut(Extent, Allocation) -> bool) -> Result<(), IoError> {
        Ok(())
    }
}

#[test]
fn a_change_that_fails_leaves_clients_as_they_are() {
    let (old, new) = (plain(), plain());
    let switch = SwitchDisk::new(Arc::clone(&old));
    assert_eq!(switch.freeze(AMPLE), Err(SwitchError::NotPrepared));
    assert_eq!(switch.commit(), Err(SwitchError::NotFrozen));
    let mut driver = driver(&switch);
    let failed = prepare(&switch, Arc::new(Closed), &mut [&mut driver]);
    assert_eq!(failed, Err(SwitchError::Open(IoError::Injected)));
    write(&mut driver, 0, 1);
    // A thread that does not look.
    let within = Duration::from_millis(5);
    assert_eq!(switch.prepare(Arc::clone(&new), within), Err(SwitchError::Slow(within)));
    prepare(&switch, Arc::clone(&new), &mut [&mut driver]).unwrap();
    assert_eq!(switch.prepare(Arc::clone(&new), AMPLE), Err(SwitchError::UnderWay));
    assert_eq!(switch.commit(), Err(SwitchError::NotFrozen));
    // A request that does not end in time: those that were held go on, and the change is still
    // possible.
    let request = write_of(&mut driver, 1, 2);
    driver.submit(request);
    assert_eq!(switch.freeze(within), Err(SwitchError::Busy { requests: 1, within }));
    assert_eq!(switch.commit(), Err(SwitchError::NotFrozen));
    driver.wait().unwrap();
    switch.freeze(AMPLE).unwrap();
    assert_eq!(switch.freeze(AMPLE), Err(SwitchError::NotPrepared));
    switch.commit().unwrap();
    write(&mut driver, 2, 3);
    assert_eq!([0, 1, 2].map(|number| found(&old, number)), [1, 2, 0]);
    assert_eq!(found(&new, 2), 3);
}

#[test]
fn requests_that_are_abandoned_in_flight_are_never_taken_for_ended() {
    let never = Delays { write: Delay::Constant(Duration::from_secs(86_400)), ..Delays::default() };
    let switch = SwitchDisk::new(Arc::new(DelayDisk::new(plain(), never, 1)) as Arc<dyn Disk<Plain>>);
    switch.prepare(plain(), AMPLE).unwrap();
    let mut gone = driver(&switch);
    let request = write_of(&mut gone, 0, 1);
    gone.submit(request);
    drop(gone);
    let within = Duration::from_millis(5);
    assert_eq!(switch.freeze(within), Err(SwitchError::Busy { requests: 1, within }));
}

/// A guest's requests that wait for room are above the switch, so nobody waits for them.
#[test]
fn a_request_that_waits_for_room_finds_it_on_the_new_disk() {
    let no_room = Fault {
        error: IoError::NoSpace,
        kind: Some(RequestKind::Write),
        ..Fault::new(Trigger::Probability(1.0))
    };
    let old: Arc<dyn Disk<Plain>> = Arc::new(ErrorDisk::new(plain(), &[no_room], 1));
    let new = plain();
    let switch = Arc::new(SwitchDisk::new(Arc::clone(&old)));
    let book = Arc::new(TroubleBook::read_by(Arc::new(Waker::new().unwrap())));
    let park = ParkDisk::new(Arc::clone(&switch) as _, Patience::UntilThereIsRoom, Arc::clone(&book));
    let mut driver = driver(&park);
    let request = write_of(&mut driver, 1, 1);
    driver.submit(request);
    prepare(&switch, Arc::clone(&new), &mut [&mut driver]).unwrap();
    assert_eq!(book.read().waiting.requests, 1);
    switch.freeze(AMPLE).unwrap();
    switch.commit().unwrap();
    assert_eq!(driver.wait().unwrap().len(), 1);
    assert_eq!((found(&new, 1), book.read().waiting.requests), (1, 0));
}

/// Several threads write as fast as they can, and the disk is exchanged under them again and again.
#[test]
fn nothing_is_below_while_the_disk_is_frozen() {
    const THREADS: u64 = 3;
    let rounds = if cfg!(debug_assertions) { 300 } else { 3000 };
    let jitter = Delays::all(Delay::Uniform(Duration::ZERO, Duration::from_micros(80)));
    let (first, mut counts) = counted(jitter);
    let switch = SwitchDisk::new(first);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (switch, ends) = (&switch, &ends);
            scope.spawn(move || {
                let mut driver = driver(switch);
                let mut fill = 0_u8;
                while !ends.load(Ordering::SeqCst) {
                    for depth in 0..1 + u64::from(fill) % 4 {
                        let request = write_of(&mut driver, thread * 8 + depth, fill);
                        driver.submit(request);
                    }
                    while driver.in_flight() > 0 {
                        assert!(driver.wait().unwrap().iter().all(|done| done.result.is_ok()));
                    }
                    fill = fill.wrapping_add(1);
                }
            });
        }
        for _ in 0..rounds {
            let (next, next_counts) = counted(jitter);
            switch.prepare(next, AMPLE).unwrap();
            switch.freeze(AMPLE).unwrap();
            let of =
                |counts: &Counts| (counts.came.load(Ordering::SeqCst), counts.ended.load(Ordering::SeqCst));
            let at_freeze = of(&counts);
            assert_eq!(at_freeze.0, at_freeze.1, "something is in flight");
            let until = Instant::now() + Duration::from_micros(200);
            while Instant::now() < until {
                assert_eq!((of(&counts), of(&next_counts)), (at_freeze, (0, 0)), "something was sent below");
            }
            switch.commit().unwrap();
            let until = Instant::now() + AMPLE;
            while next_counts.came.load(Ordering::SeqCst) < THREADS {
                assert!(Instant::now() < until, "a thread does not go on");
                std::thread::yield_now();
            }
            assert_eq!(of(&counts), at_freeze, "something was sent to the former disk");
            counts = next_counts;
        }
        ends.store(true, Ordering::SeqCst);
    });
}
