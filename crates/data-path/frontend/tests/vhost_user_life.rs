//! The life of a session whose front end leaves, returns, or changes its settings.
#![allow(clippy::unwrap_used)]

mod vhost_user_support;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use strongroom_io::RequestKind;
use strongroom_types::VolumeSize;

use vhost_user_support::driver::{DISCARD, FLUSH as FLUSH_REQUEST, GET_ID, IN, OUT, SLOTS, WRITE_ZEROES};
use vhost_user_support::front_end::{BASIC, EVENT_INDEX, FLUSH, FrontEnd, INDIRECT, WCE};
use vhost_user_support::{DISK_BYTES, Local, Log, Recorded, disk, stages};

const ALL: u64 = BASIC | FLUSH | WCE | EVENT_INDEX | INDIRECT;
const SECTORS: u64 = DISK_BYTES / 512;

#[test]
fn requests_are_answered_as_the_standard_says() {
    let local = Local::start(disk());
    assert_eq!(local.socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    assert_eq!(driver.run(GET_ID, 0, 20), 0);
    assert_eq!(&driver.get_content(0, 20), b"room-1\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(driver.run(FLUSH_REQUEST, 0, 0), 0);
    assert_eq!(driver.run(99, 0, 512), 2);
    for (sector, length) in [(SECTORS, 512), (SECTORS - 1, 1024), (u64::MAX, 512), (u64::MAX / 512, 512)] {
        assert_eq!(driver.run(IN, sector, length), 1, "{sector}");
        assert_eq!(driver.run(OUT, sector, length), 1, "{sector}");
    }
    assert_eq!((driver.run(OUT, 0, 511), driver.run(IN, 0, 513), driver.run(OUT, 0, 0)), (1, 1, 1));
    let mut clear = |kind, word: u128, length| {
        driver.set_content(0, &[word, word].map(u128::to_le_bytes).concat());
        driver.run(kind, 0, length)
    };
    let (eight, unmap, reserved) = (8 << 64, 1 << 96, 2 << 96);
    assert_eq!((clear(DISCARD, eight, 32), clear(WRITE_ZEROES, eight | unmap, 32)), (0, 0));
    assert_eq!((clear(DISCARD, eight | unmap, 16), clear(WRITE_ZEROES, eight | reserved, 16)), (2, 2));
    assert_eq!((clear(DISCARD, eight, 15), clear(DISCARD, eight, 0), clear(DISCARD, eight, 17)), (1, 1, 1));
    assert_eq!(clear(DISCARD, eight | u128::from(SECTORS), 16), 1);
    assert_eq!(clear(DISCARD, u128::from(u32::MAX) << 64, 16), 1);
    assert_eq!(clear(DISCARD, eight, 17 * 16), 1);
    local.server.stop().unwrap();
}

#[test]
fn writes_go_through_where_the_driver_cannot_flush_or_turned_write_back_off() {
    let log = Log::default();
    let local = Local::start(Arc::new(Recorded { disk: disk(), log: Arc::clone(&log), read_only: false }));
    for (features, writeback, durable) in [(ALL, 1, false), (ALL, 0, true), (BASIC, 1, true)] {
        let mut front_end = FrontEnd::connect(&local.socket, features);
        let mut driver = front_end.start(0, 0);
        // Offset 32 of the configuration space, one byte.
        front_end.send_flagged(25, 9, &[32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, writeback], &[]);
        assert_eq!(front_end.receive(25), [0; 8]);
        log.lock().clear();
        driver.set_content(0, &[7; 4096]);
        assert_eq!(driver.run(OUT, 8, 4096), 0);
        driver.set_content(0, &(8_u128 << 64).to_le_bytes());
        assert_eq!((driver.run(WRITE_ZEROES, 0, 16), driver.run(DISCARD, 0, 16)), (0, 0));
        let mut expected = vec![
            (RequestKind::Write, 4096, durable),
            (RequestKind::WriteZeroes, 4096, durable),
            (RequestKind::Discard, 4096, false),
        ];
        expected.extend(durable.then_some((RequestKind::Flush, 0, false)));
        assert_eq!(*log.lock(), expected);
    }
    local.server.stop().unwrap();
    assert_eq!(log.lock().last(), Some(&(RequestKind::Flush, 0, false)));
}

#[test]
fn a_request_longer_than_a_transfer_is_cut_where_the_disk_is() {
    let log = Log::default();
    let local = Local::start(Arc::new(Recorded { disk: disk(), log: Arc::clone(&log), read_only: false }));
    let mut front_end = FrontEnd::connect(&local.socket, BASIC | INDIRECT);
    let mut driver = front_end.start(0, 0);
    let content: Vec<u8> = (0..5_u32 << 18).flat_map(|word| word.to_le_bytes()).collect();
    driver.set_content(0, &content);
    assert_eq!(driver.run(OUT, 3, content.len() as u32), 0);
    let megabyte = 1 << 20;
    let mut expected = vec![(RequestKind::Write, megabyte - 3 * 512, false)];
    expected.extend([(RequestKind::Write, megabyte, false); 4]);
    // One flush makes all pieces durable.
    expected.extend([(RequestKind::Write, 3 * 512, false), (RequestKind::Flush, 0, false)]);
    assert_eq!(*log.lock(), expected);
    driver.set_content(0, &vec![0; content.len()]);
    assert_eq!(driver.run(IN, 3, content.len() as u32), 0);
    assert!(driver.get_content(0, content.len()) == content);
    local.server.stop().unwrap();
}

#[test]
fn a_read_only_disk_is_only_read() {
    let log = Log::default();
    let local = Local::start(Arc::new(Recorded { disk: disk(), log: Arc::clone(&log), read_only: true }));
    let read_only = 1 << 5;
    let mut front_end = FrontEnd::connect(&local.socket, 1 << 32 | 1 << 30 | read_only);
    let mut driver = front_end.start(0, 0);
    driver.set_content(0, &(8_u128 << 64).to_le_bytes());
    for kind in [OUT, DISCARD, WRITE_ZEROES] {
        assert_eq!(driver.run(kind, 0, 512), 1);
    }
    assert_eq!((driver.run(IN, 0, 512), driver.run(FLUSH_REQUEST, 0, 0)), (0, 0));
    local.server.stop().unwrap();
    let log = log.lock();
    assert!(log.iter().all(|(kind, ..)| matches!(kind, RequestKind::Read | RequestKind::Flush)));
}

#[test]
fn a_front_end_that_comes_back_finds_what_it_wrote_and_goes_on() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    for round in 0..20_u8 {
        let mut driver = front_end.start(0, 0);
        for slot in 0..SLOTS {
            driver.set_content(slot, &[round ^ slot as u8; 8192]);
            driver.submit(slot, OUT, u64::from(slot) * 16, 8192);
        }
        driver.publish();
        // Requests that were taken from the ring are done before the next session begins; the rest
        // is still in the ring.
        let file = front_end.file.try_clone().unwrap();
        drop(front_end);
        front_end = FrontEnd::connect_with(&local.socket, ALL, file);
        let used = u64::from(driver.memory.load_u16(driver.at(0x4002)).unwrap());
        front_end.set_up(0, used, &driver);
        driver.kick();
        for _ in 0..SLOTS {
            assert_eq!(driver.complete().1, 0);
        }
        assert_eq!(front_end.stop(0), u64::from(SLOTS));
        let mut reader = front_end.start(1, 0);
        for slot in 0..SLOTS {
            assert_eq!(reader.run(IN, u64::from(slot) * 16, 8192), 0);
            assert!(reader.get_content(0, 8192).iter().all(|byte| *byte == round ^ slot as u8));
        }
        front_end.stop(1);
        let parts = [(driver, 0), (reader, 1)];
        for (driver, _) in parts {
            driver.memory.store_u16(driver.at(0x4002), 0).unwrap();
            driver.memory.store_u16(driver.at(0x2002), 0).unwrap();
        }
    }
    local.server.stop().unwrap();
}

#[test]
fn a_stopped_ring_has_answered_all_that_it_took_and_goes_on_where_it_was() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    let (mut submitted, mut completed) = (0, 0);
    for _ in 0..30 {
        for slot in 0..SLOTS {
            driver.submit(slot, OUT, u64::from(slot) * 8, 4096);
            submitted += 1;
        }
        driver.publish();
        let base = front_end.stop(0);
        while driver.try_complete().is_some() {
            completed += 1;
        }
        assert_eq!(base, completed);
        front_end.set_up(0, base, &driver);
        while completed < submitted {
            assert_eq!(driver.complete().1, 0);
            completed += 1;
        }
    }
    local.server.stop().unwrap();
}

#[test]
fn memory_and_files_change_while_requests_are_in_flight() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    let more = rustix::fs::memfd_create("more", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&more, 1 << 20).unwrap();
    let region = [0, 1 << 40, 1 << 20, 1 << 40, 0];
    for round in 0..30 {
        for slot in 0..SLOTS {
            driver.submit(slot, OUT, u64::from(slot) * 8, 4096);
        }
        driver.publish();
        match round % 3 {
            0 => {
                front_end.acknowledged(37, &region, &[more.as_fd()]);
                assert_ne!(front_end.result(37, &region, &[more.as_fd()]), 0);
                front_end.acknowledged(38, &region, &[]);
                assert_ne!(front_end.result(38, &region, &[]), 0);
            }
            1 => front_end.acknowledged(2, &[ALL & !FLUSH], &[]),
            _ => front_end.acknowledged(13, &[0], &[driver.call.as_fd()]),
        }
        for _ in 0..SLOTS {
            assert_eq!(driver.complete().1, 0);
        }
    }
    local.server.stop().unwrap();
}

#[test]
fn a_disk_that_grows_under_a_running_driver_is_announced_and_served() {
    let (blocks, highest) = stages();
    let local = Local::start(Arc::clone(&highest) as _);
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(vhost_user_support::DEADLINE)).unwrap();
    front_end.acknowledged(21, &[], &[theirs.as_fd()]);
    let capacity = |front_end: &mut FrontEnd| {
        front_end.send_flagged(24, 1, &[0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        let answer = front_end.receive(24);
        u64::from_le_bytes(answer[12..].try_into().unwrap())
    };
    assert_eq!((capacity(&mut front_end), driver.run(OUT, SECTORS, 512)), (SECTORS, 1));

    blocks.grow(VolumeSize::new(2 * DISK_BYTES).unwrap()).unwrap();
    highest.grow(2 * DISK_BYTES).unwrap();
    local.server.announce_config();
    let mut told = [0; 12];
    std::io::Read::read_exact(&mut &ours, &mut told).unwrap();
    assert_eq!(told, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(capacity(&mut front_end), 2 * SECTORS);
    driver.set_content(0, &[5; 4096]);
    assert_eq!((driver.run(OUT, 2 * SECTORS - 8, 4096), driver.run(IN, 2 * SECTORS - 8, 4096)), (0, 0));
    assert_eq!(driver.get_content(0, 4096), [5; 4096]);
    local.server.stop().unwrap();
}

/// QEMU before 9.1 never reconnects once it was cut off while it set up its connection.
#[test]
fn who_comes_back_to_a_server_that_ends_is_refused_and_not_cut_off() {
    let log = Log::default();
    let local = Local::start(Arc::new(Recorded { disk: disk(), log: Arc::clone(&log), read_only: false }));
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    assert_eq!(driver.run(OUT, 0, 4096), 0);
    // The last flush waits for this, and with it the end.
    let held = log.lock();
    std::thread::scope(|threads| {
        let ending = threads.spawn(|| local.server.retire());
        assert!(front_end.await_cut());
        let refused = UnixStream::connect(&local.socket).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        assert!(!ending.is_finished());
        drop(held);
        ending.join().unwrap().unwrap();
    });
}

#[test]
fn who_is_setting_up_a_connection_may_finish_that_before_the_server_ends() {
    let local = Local::start(disk());
    let socket = &local.socket;
    let mut first = FrontEnd::connect(socket, ALL);
    let mut driver = first.start(0, 0);
    assert_eq!(driver.run(OUT, 0, 4096), 0);
    // It has only got the features, and the server refuses new connections by now.
    let mut late = FrontEnd::connect(socket, ALL);
    std::thread::scope(|threads| {
        let ending = threads.spawn(|| local.server.retire());
        assert!(first.await_cut());
        assert_eq!(UnixStream::connect(socket).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let mut driver = late.start(0, 0);
        assert_eq!(driver.run(OUT, 0, 4096), 0);
        assert!(late.await_cut());
        ending.join().unwrap().unwrap();
    });
}
