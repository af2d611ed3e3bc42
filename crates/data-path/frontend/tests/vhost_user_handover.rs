//! From one server to the next, and from one front end to the next: planned upgrades and live
//! migration.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod vhost_user_support;

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use strongroom_memory::{GuestAddress, GuestMemory, GuestRegion};
use strongroom_types::VolumeSize;

use vhost_user_support::driver::{DISCARD, Driver, FLUSH as FLUSH_REQUEST, GET_ID, IN, OUT, SLOTS};
use vhost_user_support::front_end::{BASIC, EVENT_INDEX, FLUSH, FrontEnd, INDIRECT, MEMORY_BYTES, WCE};
use vhost_user_support::{DISK_BYTES, Local, disk, stages};

const ALL: u64 = BASIC | FLUSH | WCE | EVENT_INDEX | INDIRECT;
const PAGE: u64 = 4096;

/// Fills every slot with its own write, and publishes them to the device.
fn write_all(driver: &mut Driver, round: u8) {
    for slot in 0..SLOTS {
        driver.set_content(slot, &[round ^ slot as u8; 8192]);
        driver.submit(slot, OUT, u64::from(slot) * 16, 8192);
    }
    driver.publish();
}

fn expect_all(driver: &mut Driver, round: u8) {
    for slot in 0..SLOTS {
        assert_eq!(driver.run(IN, u64::from(slot) * 16, 8192), 0);
        assert!(driver.get_content(0, 8192).iter().all(|byte| *byte == round ^ slot as u8), "slot {slot}");
    }
}

#[test]
fn an_upgrade_under_load_is_a_pause_and_nothing_else() {
    let disk = disk();
    let mut local = Local::start(disk.clone());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut drivers = [front_end.start(0, 0), front_end.start(3, 0)];
    for round in 0..30_u8 {
        write_all(&mut drivers[usize::from(round % 2)], round);
        local = local.upgrade(disk.clone());
        let driver = &mut drivers[usize::from(round % 2)];
        for _ in 0..SLOTS {
            assert_eq!(driver.complete().1, 0);
        }
        expect_all(&mut drivers[usize::from((round + 1) % 2)], round);
    }
    // The connection is the one that the first server accepted.
    assert_eq!(front_end.ask(17, &[]), 4);
    local.server.stop().unwrap();
}

#[test]
fn what_a_front_end_has_set_survives_an_upgrade() {
    let (blocks, highest) = stages();
    let mut local = Local::start(highest.clone());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let (ours, theirs) = UnixStream::pair().unwrap();
    front_end.acknowledged(21, &[], &[theirs.as_fd()]);
    // The write cache off, and a device status.
    let range: Vec<u8> = [32_u32, 1, 0].iter().flat_map(|word| word.to_le_bytes()).chain([0]).collect();
    front_end.send_flagged(25, 9, &range, &[]);
    front_end.receive(25);
    front_end.acknowledged(39, &[15], &[]);
    let mut driver = front_end.start(1, 0);
    write_all(&mut driver, 1);
    for _ in 0..SLOTS {
        assert_eq!(driver.complete().1, 0);
    }
    local = local.upgrade(highest.clone());
    assert_eq!(front_end.ask(40, &[]), 15);
    let range = [32_u32, 1, 0].map(u32::to_le_bytes).concat();
    front_end.send_flagged(24, 1, &[&range[..], &[0]].concat(), &[]);
    assert_eq!(front_end.receive(24)[12..], [0]);
    let grown = VolumeSize::new(2 * DISK_BYTES).unwrap();
    blocks.grow(grown).unwrap();
    highest.grow(grown.bytes()).unwrap();
    local.server.announce_config();
    let mut message = [0; 12];
    (&ours).read_exact(&mut message).unwrap();
    assert_eq!(message[..4], 2_u32.to_le_bytes());
    assert_eq!(driver.run(OUT, DISK_BYTES / 512, 8192), 0);
    // An upgrade of a server whose front ends have left, and of one without any front end yet.
    drop(front_end);
    local = local.upgrade(highest.clone()).upgrade(highest.clone());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    expect_all(&mut driver, 1);
    local.server.stop().unwrap();
}

#[test]
fn a_destination_begins_when_its_source_has_stopped_and_the_source_never_again() {
    let disk = disk();
    let local = Local::start(disk.clone());
    let mut source = FrontEnd::connect(&local.socket, ALL);
    let mut source_driver = source.start(0, 0);
    let mut destination = FrontEnd::connect(&local.socket, ALL);
    assert_eq!(destination.ask(17, &[]), 4);
    write_all(&mut source_driver, 7);
    std::thread::scope(|threads| {
        // Its ring is enabled while the source's still runs: the answer comes when that has
        // stopped.
        let beginning = threads.spawn(|| destination.start(0, 0));
        let base = source.stop(0);
        assert_eq!(u64::from(source_driver.memory.load_u16(source_driver.at(0x4002)).unwrap()), base);
        let mut driver = beginning.join().unwrap();
        for slot in 0..u16::try_from(base).unwrap() {
            assert_eq!(driver.run(IN, u64::from(slot) * 16, 8192), 0);
            assert!(driver.get_content(0, 8192).iter().all(|byte| *byte == 7 ^ slot as u8));
        }
    });
    // The destination has run the device: the source's guest is now older than the disk, even when
    // the destination is gone, and after an upgrade.
    let local = local.upgrade(disk.clone());
    drop(destination);
    let kick = source_driver.kick.try_clone().unwrap();
    assert_eq!(source.result(12, &[0], &[kick.as_fd()]), 1);
    // Its ring lacks only the right to run, and an upgrade does not give it that.
    let local = local.upgrade(disk);
    assert_eq!(source.result(12, &[0], &[kick.as_fd()]), 1);
    local.server.stop().unwrap();
}

#[test]
fn a_source_goes_on_where_the_migration_failed() {
    let local = Local::start(disk());
    let mut source = FrontEnd::connect(&local.socket, ALL);
    let mut driver = source.start(0, 0);
    let destination = FrontEnd::connect(&local.socket, ALL);
    write_all(&mut driver, 9);
    let base = source.stop(0);
    drop(destination);
    source.set_up(0, base, &driver);
    driver.kick();
    for _ in 0..SLOTS {
        assert_eq!(driver.complete().1, 0);
    }
    expect_all(&mut driver, 9);
    local.server.stop().unwrap();
}

/// A log, and the pages marked in it.
struct Log(OwnedFd, GuestMemory);

impl Log {
    const BYTES: u64 = MEMORY_BYTES / PAGE / 8;

    fn new() -> Self {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, Self::BYTES).unwrap();
        let region = GuestRegion::map(&file, 0, GuestAddress(0), Self::BYTES).unwrap();
        Self(file, GuestMemory::new(vec![region], None).unwrap())
    }

    fn marked(&self) -> BTreeSet<u64> {
        let is_marked = |page: &u64| self.1.load_u8(GuestAddress(page / 8)).unwrap() >> (page % 8) & 1 == 1;
        (0..MEMORY_BYTES / PAGE).filter(is_marked).collect()
    }

    fn clear(&self) {
        (0..Self::BYTES).for_each(|byte| self.1.store_u8(GuestAddress(byte), 0).unwrap());
    }
}

/// The guest's memory, page by page.
fn snapshot(driver: &Driver) -> Vec<[u8; 4096]> {
    (0..MEMORY_BYTES / PAGE).map(|page| driver.memory.read(GuestAddress(page * PAGE)).unwrap()).collect()
}

#[test]
fn every_page_that_the_device_changes_is_in_the_log_and_no_others() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(2, 0);
    write_all(&mut driver, 5);
    for _ in 0..SLOTS {
        assert_eq!(driver.complete().1, 0);
    }
    let log = Log::new();
    front_end.set_log(&log.0, Log::BYTES);
    log.clear();
    let mut marked_in_all = BTreeSet::new();
    for (kind, sector, length) in
        [(IN, 0, 512), (IN, 9, 8192), (OUT, 3, 512), (FLUSH_REQUEST, 0, 0), (GET_ID, 0, 20)]
    {
        for slot in [0, 3, 17] {
            driver.submit(slot, kind, sector, length);
        }
        // The driver writes the request itself; everything after that is written by the device.
        let before = snapshot(&driver);
        driver.publish();
        for _ in 0..3 {
            assert_eq!(driver.complete().1, 0);
        }
        front_end.ask(17, &[]);
        let after = snapshot(&driver);
        let marked = log.marked();
        let available = driver.at(0x2000).0 / PAGE;
        let changed = (0..MEMORY_BYTES / PAGE)
            .filter(|page| *page != available && before[*page as usize] != after[*page as usize]);
        for page in changed {
            assert!(
                marked.contains(&page),
                "page {page:#x} changed by a request of kind {kind} and is not marked"
            );
        }
        // Nothing but its rings, the status bytes, and what the guest reads into.
        let parts = [driver.at(0x4000), driver.at(0x8000), driver.at(0x9000)].map(|part| part.0 / PAGE);
        let content = |page: u64| {
            [0, 3, 17].iter().any(|slot| {
                let start = driver.content(*slot).0;
                matches!(kind, IN | GET_ID)
                    && (start / PAGE..=(start + u64::from(length.max(1)) - 1) / PAGE).contains(&page)
            })
        };
        for page in &marked {
            assert!(parts.contains(page) || content(*page), "page {page:#x} is marked for kind {kind}");
        }
        marked_in_all.extend(marked);
        log.clear();
    }
    assert!(marked_in_all.len() > 8);
    // Without the feature nothing is logged; a log that is too short is refused.
    front_end.acknowledged(2, &[front_end.features], &[]);
    log.clear();
    assert_eq!(driver.run(IN, 0, 8192), 0);
    assert_eq!(log.marked(), BTreeSet::new());
    front_end.send(6, &[Log::BYTES - 1, 0], &[log.0.as_fd()]);
    front_end.receive(6);
    assert_eq!(front_end.result(2, &[front_end.features | 1 << 26], &[]), 1);
    local.server.stop().unwrap();
}

#[test]
fn rings_wait_for_a_log_that_comes_last() {
    // As QEMU does when it reconnects to the successor of a killed worker while its guest migrates.
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    front_end.acknowledged(2, &[ALL | 1 << 26], &[]);
    let mut driver = front_end.start(0, 0);
    driver.submit(0, IN, 0, 8192);
    driver.publish();
    // Every message has been handled, and nothing was taken from the ring.
    assert_eq!(front_end.ask(17, &[]), 4);
    assert!(driver.try_complete().is_none());
    let log = Log::new();
    front_end.set_log(&log.0, Log::BYTES);
    assert_eq!(driver.complete().1, 0);
    let pages = [driver.at(0x4000), driver.at(0x8000), driver.content(0)].map(|part| part.0 / PAGE);
    assert!(pages.iter().all(|page| log.marked().contains(page)));
    local.server.stop().unwrap();
}

#[test]
fn a_log_goes_on_in_the_next_server() {
    let disk = disk();
    let local = Local::start(disk.clone());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    let log = Log::new();
    front_end.set_log(&log.0, Log::BYTES);
    let local = local.upgrade(disk);
    log.clear();
    assert_eq!(driver.run(IN, 0, 8192), 0);
    assert!(log.marked().contains(&(driver.content(0).0 / PAGE)));
    local.server.stop().unwrap();
}

#[test]
fn a_driver_is_reset_by_a_status_of_zero() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    assert_eq!(driver.run(OUT, 0, 512), 0);
    front_end.acknowledged(39, &[15], &[]);
    front_end.acknowledged(39, &[0], &[]);
    assert_eq!(front_end.ask(40, &[]), 0);
    assert_eq!(front_end.result(39, &[256], &[]), 1);
    driver.submit(1, DISCARD, 0, 0);
    driver.publish();
    // The ring is stopped: the request is not taken until the ring is set up again.
    assert_eq!(front_end.stop(0), 1);
    assert!(driver.try_complete().is_none());
    front_end.set_up(0, 1, &driver);
    assert_eq!(driver.complete().1, 1);
    local.server.stop().unwrap();
}
