//! A full disk: a guest's writes wait, whatever happens to the server and the front end meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod vhost_user_support;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, RequestKind, Thread};
use strongroom_types::Extent;

use vhost_user_support::driver::{Driver, FLUSH as FLUSH_REQUEST, IN, OUT, QUEUE_SIZE, WRITE_ZEROES};
use vhost_user_support::front_end::{BASIC, EVENT_INDEX, FLUSH, FrontEnd, INDIRECT, WCE};
use vhost_user_support::{Local, QUEUES, disk};

const ALL: u64 = BASIC | FLUSH | WCE | EVENT_INDEX | INDIRECT;
/// Requests that wait.
const WAITING: u16 = 8;
/// Content of each.
const BYTES: u32 = 8192;

/// A disk that takes no writes while it is full.
struct Fillable {
    below: Arc<dyn Disk<Plain>>,
    full: Arc<AtomicBool>,
}

struct FillableChannel {
    below: Box<dyn Channel<Plain>>,
    full: Arc<AtomicBool>,
    refused: Vec<Done<Plain>>,
}

impl Fillable {
    fn full() -> (Arc<Self>, Arc<AtomicBool>) {
        let full = Arc::new(AtomicBool::new(true));
        (Arc::new(Self { below: disk(), full: Arc::clone(&full) }), full)
    }
}

impl Disk<Plain> for Fillable {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let (below, full) = (self.below.open(thread, depth)?, Arc::clone(&self.full));
        Ok(Box::new(FillableChannel { below, full, refused: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

impl Channel<Plain> for FillableChannel {
    fn submit(&mut self, io: Io<Plain>) {
        let needs_none = matches!(io.request.kind(), RequestKind::Read | RequestKind::Flush);
        match needs_none || !self.full.load(Ordering::SeqCst) {
            true => self.below.submit(io),
            false => self.refused.push(io.end(Err(IoError::NoSpace))),
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

/// An in-flight area, which the front end keeps.
struct Area(OwnedFd);

impl Area {
    const BYTES: u64 = 64 << 10;

    fn new() -> Self {
        let file = memfd_create("area", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, Self::BYTES).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        Self(file)
    }

    fn give(&self, front_end: &mut FrontEnd) {
        let numbers = u64::from(QUEUES) | u64::from(QUEUE_SIZE) << 16;
        front_end.acknowledged(32, &[Self::BYTES, 0, numbers], &[self.0.as_fd()]);
    }
}

/// Submits writes that will wait.
fn write_some(driver: &mut Driver) {
    for slot in 0..WAITING {
        driver.set_content(slot, &[slot as u8 + 1; BYTES as usize]);
        driver.submit(slot, OUT, u64::from(slot) * 16, BYTES);
    }
    driver.publish();
}

/// A read and a flush pass while writes wait, and the writes are not answered.
fn expect_waiting(driver: &mut Driver, front_end: &mut FrontEnd) {
    for (slot, kind) in [(WAITING, IN), (WAITING + 1, FLUSH_REQUEST)] {
        driver.submit(slot, kind, 0, if kind == IN { 4096 } else { 0 });
        driver.publish();
        let (ended, status, _) = driver.complete();
        assert_eq!((ended, status), (slot, 0));
    }
    front_end.ask(17, &[]);
    assert!(driver.try_complete().is_none());
}

fn expect_written(driver: &mut Driver) {
    let mut ended: Vec<u16> = (0..WAITING)
        .map(|_| {
            let (slot, status, _) = driver.complete();
            assert_eq!(status, 0, "slot {slot}");
            slot
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..WAITING).collect::<Vec<_>>());
    for slot in 0..WAITING {
        assert_eq!(driver.run(IN, u64::from(slot) * 16, BYTES), 0);
        assert!(driver.get_content(0, BYTES as usize).iter().all(|byte| *byte == slot as u8 + 1));
    }
}

/// A guest whose writes wait for room.
struct Full {
    disk: Arc<Fillable>,
    full: Arc<AtomicBool>,
    local: Local,
    front_end: FrontEnd,
    driver: Driver,
}

impl Full {
    /// Starts it; the front end keeps an in-flight area if it is given one.
    fn start(area: Option<&Area>) -> Self {
        let (disk, full) = Fillable::full();
        let local = Local::start(disk.clone());
        let mut front_end = FrontEnd::connect(&local.socket, ALL);
        if let Some(area) = area {
            area.give(&mut front_end);
        }
        let mut driver = front_end.start(0, 0);
        write_some(&mut driver);
        expect_waiting(&mut driver, &mut front_end);
        Self { disk, full, local, front_end, driver }
    }

    fn expect_waiting(&mut self) {
        expect_waiting(&mut self.driver, &mut self.front_end);
    }

    /// Makes room, and checks that all waiting writes are done.
    fn make_room(mut self) {
        self.full.store(false, Ordering::SeqCst);
        expect_written(&mut self.driver);
        self.local.server.stop().unwrap();
    }
}

#[test]
fn a_guest_whose_disk_is_full_waits_and_goes_on() {
    Full::start(None).make_room();
}

#[test]
fn a_ring_that_is_stopped_while_its_writes_wait_does_them_when_it_goes_on() {
    let mut full = Full::start(Some(&Area::new()));
    // The guest is stopped, as by a person, and resumes, first still without room and then with
    // some.
    let base = full.front_end.stop(0);
    assert_eq!(base, u64::from(WAITING) + 2);
    assert!(full.driver.try_complete().is_none());
    full.front_end.set_up(0, base, &full.driver);
    full.expect_waiting();
    let base = full.front_end.stop(0);
    full.full.store(false, Ordering::SeqCst);
    full.front_end.set_up(0, base, &full.driver);
    full.make_room();
}

#[test]
fn an_upgrade_while_writes_wait_answers_none_of_them_and_its_successor_does_them() {
    let mut full = Full::start(Some(&Area::new()));
    full.local = full.local.upgrade(full.disk.clone());
    full.expect_waiting();
    full.local = full.local.upgrade(full.disk.clone());
    full.make_room();
}

#[test]
fn a_server_that_ends_while_writes_wait_leaves_them_to_the_next() {
    let area = Area::new();
    let mut full = Full::start(Some(&area));
    full.local = full.local.restart(full.disk.clone());
    assert!(full.driver.try_complete().is_none());
    let memory = full.front_end.file.try_clone().unwrap();
    full.front_end = FrontEnd::connect_with(&full.local.socket, ALL, memory);
    area.give(&mut full.front_end);
    full.front_end.set_up(0, 0, &full.driver);
    full.expect_waiting();
    full.make_room();
}

/// Writes that would otherwise be lost fail: the guest would wait for them forever.
#[test]
fn writes_that_nobody_will_find_again_fail_when_their_ring_stops() {
    // No in-flight area.
    let Full { full, local, mut front_end, mut driver, .. } = Full::start(None);
    front_end.stop(0);
    expect_failed(&mut driver);
    drop(front_end);
    // An area that stays behind when the guest migrates.
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    Area::new().give(&mut front_end);
    let mut driver = front_end.start(1, 0);
    write_some(&mut driver);
    let log = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&log, 4 << 20).unwrap();
    front_end.set_log(&log, 4 << 20);
    expect_waiting(&mut driver, &mut front_end);
    front_end.stop(1);
    expect_failed(&mut driver);
    // A queue whose requests have failed takes new ones, and they find room by now.
    full.store(false, Ordering::SeqCst);
    front_end.set_up(1, u64::from(WAITING) + 2, &driver);
    driver.submit(0, WRITE_ZEROES, 0, 0);
    driver.submit(1, OUT, 0, BYTES);
    driver.publish();
    let mut statuses: Vec<_> =
        (0..2).map(|_| driver.complete()).map(|(slot, status, _)| (slot, status)).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [(0, 1), (1, 0)]);
    local.server.stop().unwrap();
}

fn expect_failed(driver: &mut Driver) {
    for _ in 0..WAITING {
        let (slot, status, _) = driver.complete();
        assert!(slot < WAITING && status == 1, "slot {slot} ended with {status}");
    }
}
