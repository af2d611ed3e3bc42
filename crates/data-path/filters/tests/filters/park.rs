//! Writes that find no room wait for it, and nothing else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use strongroom_filters::error::{ErrorDisk, Fault, Moment, Trigger};
use strongroom_filters::park::{ParkDisk, Patience, TroubleBook, Waiting};
use strongroom_io::conformance::{Conformance, Driver, EventLoop, IdleLoop, Setup};
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, RequestKind, Thread, Waker,
};
use strongroom_memory::BufferPool;
use strongroom_types::Extent;

use crate::support::{blocksize, crypt, memory};

const SIZE_BYTES: u64 = 1 << 20;
const DEPTH: usize = 8;

/// A disk with room for so many bytes more, which reads and flushes do not need.
struct FullDisk {
    below: Arc<dyn Disk<Plain>>,
    room_bytes: Arc<AtomicU64>,
}

impl FullDisk {
    fn new(below: Arc<dyn Disk<Plain>>, room_bytes: u64) -> (Self, Arc<AtomicU64>) {
        let room_bytes = Arc::new(AtomicU64::new(room_bytes));
        (Self { below, room_bytes: Arc::clone(&room_bytes) }, room_bytes)
    }
}

impl Disk<Plain> for FullDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let (below, room_bytes) = (self.below.open(thread, depth)?, Arc::clone(&self.room_bytes));
        Ok(Box::new(FullChannel { below, room_bytes, refused: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct FullChannel {
    below: Box<dyn Channel<Plain>>,
    room_bytes: Arc<AtomicU64>,
    refused: Vec<Done<Plain>>,
}

impl Channel<Plain> for FullChannel {
    fn submit(&mut self, io: Io<Plain>) {
        let needed = match io.request.kind() {
            RequestKind::Read | RequestKind::Flush => 0,
            _ => io.request.extent().length(),
        };
        let take = |room: u64| room.checked_sub(needed);
        match self.room_bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => self.below.submit(io),
            Err(_) => self.refused.push(io.end(Err(IoError::NoSpace))),
        }
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        done.append(&mut self.refused);
        self.below.poll(done);
    }
}

fn driver(disk: &dyn Disk<Plain>) -> Driver<Plain> {
    Driver::open(disk, &Setup::default(), DEPTH, 4 << 20, 0).unwrap()
}

fn submit_write(driver: &mut Driver<Plain>, block: u64, fill: u8) -> u64 {
    let from = driver.memory.with::<Plain>(&[fill; 4096], &mut driver.random).unwrap();
    let extent = Extent::between(block * 4096, block * 4096 + 4096);
    driver.submit(Request::Write { extent, from, durable: false })
}

fn read(driver: &mut Driver<Plain>, block: u64) -> Vec<u8> {
    driver.read(Extent::between(block * 4096, block * 4096 + 4096)).unwrap()
}

fn park(below: impl Disk<Plain> + 'static, patience: Patience) -> (ParkDisk, Arc<TroubleBook>) {
    let book = Arc::new(TroubleBook::new());
    (ParkDisk::new(Arc::new(below), patience, Arc::clone(&book)), book)
}

#[test]
fn writes_wait_for_room_and_nothing_else_does() {
    let (full, room) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), 4096);
    let (disk, book) = park(full, Patience::UntilThereIsRoom);
    let mut driver = driver(&disk);
    let first = submit_write(&mut driver, 0, 1);
    assert_eq!(driver.wait().unwrap()[0].tag, first);
    let mut parked = vec![submit_write(&mut driver, 1, 2), submit_write(&mut driver, 2, 3)];
    let extent = Extent::between(0, 8192);
    parked.push(driver.submit(Request::WriteZeroes { extent, may_unmap: true, durable: true }));
    parked.push(driver.submit(Request::Discard { extent: Extent::between(40_960, 45_056) }));
    // Reads and flushes pass, and the flush covers only what was done.
    let flush = driver.submit(Request::Flush);
    let done = driver.wait().unwrap();
    assert_eq!((done.len(), done[0].tag, done[0].result), (1, flush, Ok(())));
    assert!(read_beside(&mut driver, 0) == [1; 4096]);
    assert!(read_beside(&mut driver, 1) == [0; 4096]);
    assert_eq!(book.read().waiting, Waiting { requests: 4, bytes: 3 * 4096 + 8192 });
    room.store(u64::MAX, Ordering::SeqCst);
    let mut ended = Vec::new();
    while driver.in_flight() > 0 {
        ended.extend(driver.wait().unwrap().iter().map(|done| (done.tag, done.result)));
    }
    ended.sort_unstable_by_key(|(tag, _)| *tag);
    parked.sort_unstable();
    assert_eq!(ended, parked.iter().map(|tag| (*tag, Ok(()))).collect::<Vec<_>>());
    assert_eq!(book.read(), Default::default());
    assert!(read(&mut driver, 2) == [3; 4096]);
}

/// Reads a block while other requests wait.
fn read_beside(driver: &mut Driver<Plain>, block: u64) -> Vec<u8> {
    let extent = Extent::between(block * 4096, block * 4096 + 4096);
    let into = driver.memory.blank::<Plain>(4096, &mut driver.random).unwrap();
    let tag = driver.submit(Request::Read { extent, into });
    let done = driver.wait().unwrap();
    assert_eq!((done.len(), done[0].tag, done[0].result), (1, tag, Ok(())));
    let mut found = vec![0; 4096];
    done[0].memory.as_ref().unwrap().copy_to(0, &mut found);
    found
}

#[test]
fn room_for_some_lets_some_go_on() {
    let (full, room) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), 0);
    let (disk, book) = park(full, Patience::UntilThereIsRoom);
    let mut driver = driver(&disk);
    // The first to be tried is one for which there will be no room for long.
    let from = driver.memory.with::<Plain>(&[9; 65_536], &mut driver.random).unwrap();
    let long = driver.submit(Request::Write { extent: Extent::between(0, 65_536), from, durable: false });
    let short = [submit_write(&mut driver, 20, 1), submit_write(&mut driver, 21, 2)];
    room.store(2 * 4096, Ordering::SeqCst);
    let mut ended: Vec<u64> = Vec::new();
    while ended.len() < 2 {
        ended.extend(driver.wait().unwrap().iter().map(|done| done.tag));
    }
    ended.sort_unstable();
    assert!(ended.iter().all(|tag| short.contains(tag)));
    assert_eq!(book.read().waiting, Waiting { requests: 1, bytes: 65_536 });
    room.store(65_536, Ordering::SeqCst);
    assert_eq!(driver.wait().unwrap()[0].tag, long);
    assert_eq!(room.load(Ordering::SeqCst), 0, "each was done once");
}

#[test]
fn a_quota_that_is_used_up_is_want_of_room() {
    assert_eq!([28, 122].map(IoError::from_errno), [IoError::NoSpace; 2]);
}

#[test]
fn a_client_that_can_be_told_is_told() {
    let (full, room) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), 0);
    let (disk, book) = park(full, Patience::None);
    let mut driver = driver(&disk);
    submit_write(&mut driver, 0, 1);
    assert_eq!(driver.wait().unwrap()[0].result, Err(IoError::NoSpace));
    assert_eq!((book.read().refused, book.read().waiting), (1, Waiting::default()));
    room.store(4096, Ordering::SeqCst);
    submit_write(&mut driver, 0, 1);
    assert_eq!(driver.wait().unwrap()[0].result, Ok(()));
}

#[test]
fn a_channel_that_gives_up_hands_everything_back_and_keeps_nothing_more() {
    let (full, _room) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), 0);
    let (disk, book) = park(full, Patience::UntilThereIsRoom);
    let event_loop = IdleLoop::new().unwrap();
    let thread = Thread { pool: BufferPool::new(4 << 20).unwrap(), reactor: event_loop.reactor() };
    let mut channel = disk.open_channel(&thread, DEPTH).unwrap();
    let zero = |tag| {
        let extent = Extent::between(tag * 4096, tag * 4096 + 4096);
        Io { tag, request: Request::WriteZeroes { extent, may_unmap: false, durable: false } }
    };
    let mut done = Vec::new();
    (0..3).for_each(|tag| channel.submit(zero(tag)));
    channel.kick();
    channel.poll(&mut done);
    assert_eq!((done.len(), book.read().waiting.requests), (0, 3));
    channel.give_up();
    channel.submit(zero(3));
    channel.kick();
    channel.poll(&mut done);
    let mut ended: Vec<_> = done.iter().map(|done| (done.tag, done.result)).collect();
    ended.sort_unstable_by_key(|(tag, _)| *tag);
    assert_eq!(ended, (0..4).map(|tag| (tag, Err(IoError::NoSpace))).collect::<Vec<_>>());
    assert_eq!(book.read().waiting, Waiting::default());

    // One that is dropped with what waits leaves nothing in the book.
    let mut channel = disk.open_channel(&thread, DEPTH).unwrap();
    channel.submit(zero(0));
    channel.poll(&mut Vec::new());
    assert_eq!(book.read().waiting.requests, 1);
    drop(channel);
    assert_eq!(book.read().waiting, Waiting::default());
}

#[test]
fn a_flush_that_fails_is_not_done_again_and_is_told() {
    let fault =
        Fault { kind: Some(RequestKind::Flush), error: IoError::NoSpace, ..Fault::new(Trigger::Nth(1)) };
    let below = ErrorDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), &[fault], 0);
    let (disk, _) = park(below, Patience::UntilThereIsRoom);
    let reader = Arc::new(Waker::new().unwrap());
    let book = Arc::new(TroubleBook::read_by(Arc::clone(&reader)));
    let disk = ParkDisk::new(Arc::new(disk), Patience::UntilThereIsRoom, Arc::clone(&book));
    let mut driver = driver(&disk);
    assert_eq!(driver.run(Request::Flush).unwrap().result, Err(IoError::NoSpace));
    assert!(book.read().flush_failed);
    let mut told = [0; 8];
    assert_eq!(rustix::io::read(reader.event(), &mut told).unwrap(), 8, "the owner is woken");
}

#[test]
fn device_errors_are_told_and_never_kept() {
    let error = IoError::from_errno(5);
    let fault = Fault { error, ..Fault::new(Trigger::Nth(1)) };
    let below = ErrorDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), &[fault], 0);
    let (disk, book) = park(below, Patience::UntilThereIsRoom);
    let mut driver = driver(&disk);
    submit_write(&mut driver, 0, 1);
    assert_eq!(driver.wait().unwrap()[0].result, Err(error));
    assert_eq!((book.read().device_errors, book.read().last_device_error), (1, Some(error)));
}

#[test]
fn nothing_wakes_a_thread_where_nothing_waits() {
    let (full, room) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), 0);
    let (disk, _) = park(full, Patience::UntilThereIsRoom);
    let setup = Setup::on(Counting::new);
    let mut driver = Driver::open(&disk, &setup, DEPTH, 4 << 20, 0).unwrap();
    driver.succeed(Request::Flush).unwrap();
    assert_eq!(DEADLINES.load(Ordering::SeqCst), 0);
    submit_write(&mut driver, 0, 1);
    room.store(u64::MAX, Ordering::SeqCst);
    driver.wait().unwrap();
    let asked = DEADLINES.load(Ordering::SeqCst);
    assert!(asked > 0);
    submit_write(&mut driver, 1, 1);
    driver.wait().unwrap();
    assert_eq!(DEADLINES.load(Ordering::SeqCst), asked);
}

static DEADLINES: AtomicU64 = AtomicU64::new(0);

/// An event loop that counts the deadlines that it is asked for.
struct Counting(IdleLoop);

impl Counting {
    fn new() -> Result<Self, IoError> {
        IdleLoop::new().map(Self)
    }
}

impl EventLoop for Counting {
    fn reactor(&self) -> std::rc::Rc<dyn strongroom_io::Reactor> {
        std::rc::Rc::new(CountingReactor(self.0.reactor()))
    }

    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        self.0.sleep(at_most)
    }
}

struct CountingReactor(std::rc::Rc<dyn strongroom_io::Reactor>);

impl strongroom_io::Reactor for CountingReactor {
    fn file_queue(&self) -> Result<Box<dyn strongroom_io::FileQueue>, IoError> {
        self.0.file_queue()
    }

    fn wake_at(&self, deadline: std::time::Instant) {
        DEADLINES.fetch_add(1, Ordering::SeqCst);
        self.0.wake_at(deadline);
    }

    fn waker(&self) -> Arc<Waker> {
        self.0.waker()
    }
}

#[track_caller]
fn passes(make: impl Fn() -> ParkDisk + 'static) {
    if let Err(failure) = Conformance::<Plain>::new(make).requests(150).run() {
        panic!("{failure}");
    }
}

#[test]
fn the_suite_passes_with_room_and_without_patience() {
    passes(|| park(crypt(memory(SIZE_BYTES + 1536)), Patience::UntilThereIsRoom).0);
    passes(|| park(blocksize(Arc::new(crypt(memory(SIZE_BYTES))), SIZE_BYTES, 512), Patience::None).0);
}

/// One request in two hundred finds no room, before or after it was done, and room is there when it
/// is tried again.
#[test]
fn the_suite_passes_on_a_disk_that_is_full_now_and_then() {
    let no_room = Fault { error: IoError::NoSpace, ..Fault::new(Trigger::Probability(0.005)) };
    let faults: Vec<Fault> = [RequestKind::Write, RequestKind::WriteZeroes, RequestKind::Discard]
        .into_iter()
        .flat_map(|kind| {
            [Moment::Before, Moment::After].map(|moment| Fault { kind: Some(kind), moment, ..no_room })
        })
        .collect();
    let make = move || {
        let below = ErrorDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), &faults, 3);
        blocksize(Arc::new(park(below, Patience::UntilThereIsRoom).0), SIZE_BYTES, 512)
    };
    if let Err(failure) = Conformance::<Plain>::new(make).requests(60).run() {
        panic!("{failure}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever room comes when, every write is done exactly once in the end, and each byte of room
    /// is used once.
    #[test]
    fn every_write_ends_once_there_is_room(
        blocks in prop::collection::vec(1..9_u64, 1..24),
        room in prop::collection::vec(0..20_u64, 1..6),
    ) {
        let needed: u64 = blocks.iter().map(|count| count * 4096).sum();
        let (full, left) = FullDisk::new(Arc::new(crypt(memory(SIZE_BYTES))), room[0] * 4096);
        let (disk, book) = park(full, Patience::UntilThereIsRoom);
        let mut driver = Driver::open(&disk, &Setup::default(), 32, 4 << 20, 0).unwrap();
        let mut at = 0;
        for (number, count) in blocks.iter().enumerate() {
            let content = vec![number as u8 + 1; (count * 4096) as usize];
            let from = driver.memory.with::<Plain>(&content, &mut driver.random).unwrap();
            driver.submit(Request::Write { extent: Extent::between(at, at + count * 4096), from, durable: false });
            at += count * 4096;
        }
        let mut given = room[0] * 4096;
        for more in &room[1..] {
            given += more * 4096;
            left.fetch_add(more * 4096, Ordering::SeqCst);
        }
        if given < needed {
            left.fetch_add(needed - given, Ordering::SeqCst);
            given = needed;
        }
        while driver.in_flight() > 0 {
            prop_assert!(driver.wait().unwrap().iter().all(|done| done.result == Ok(())));
        }
        prop_assert_eq!(left.load(Ordering::SeqCst), given - needed);
        prop_assert_eq!(book.read(), Default::default());
        let mut at = 0;
        for (number, count) in blocks.iter().enumerate() {
            let found = driver.read(Extent::between(at, at + count * 4096)).unwrap();
            prop_assert!(found.iter().all(|byte| *byte == number as u8 + 1));
            at += count * 4096;
        }
    }
}
