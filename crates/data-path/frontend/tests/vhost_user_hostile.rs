//! Misbehaving front ends and guests: they harm only their own session, and the next one is served.
#![allow(clippy::unwrap_used)]

mod vhost_user_support;

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use strongroom_memory::GuestAddress;

use vhost_user_support::driver::{Driver, IN, OUT, QUEUE_SIZE, await_event};
use vhost_user_support::front_end::{BASIC, EVENT_INDEX, FLUSH, FrontEnd, INDIRECT, MEMORY_BYTES, USER, WCE};
use vhost_user_support::{Local, disk};

const ALL: u64 = BASIC | FLUSH | WCE | EVENT_INDEX | INDIRECT;

/// A well-behaved session, which ends when this returns.
fn check_service(local: &Local) {
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(1, 0);
    driver.set_content(0, &[9; 4096]);
    assert_eq!(driver.run(OUT, 64, 4096), 0);
    assert_eq!(driver.run(IN, 64, 4096), 0);
    assert_eq!(driver.get_content(0, 4096), [9; 4096]);
}

#[test]
fn a_broken_ring_stops_alone_and_tells_the_front_end() {
    let local = Local::start(disk());
    let breaks: [&dyn Fn(&mut Driver); 7] = [
        // More available than the ring holds.
        &|driver| driver.memory.store_u16(driver.at(0x2002), QUEUE_SIZE + 1).unwrap(),
        // A chain that begins outside of the table.
        &|driver| {
            driver.make_available(QUEUE_SIZE);
            driver.publish();
        },
        // A circle.
        &|driver| {
            driver.put_descriptor(driver.at(0), GuestAddress(4096), 16, 1, 0);
            driver.make_available(0);
            driver.publish();
        },
        // Content outside of the guest.
        &|driver| {
            driver.put_descriptor(driver.at(0), GuestAddress(MEMORY_BYTES), 512, 2, 0);
            driver.make_available(0);
            driver.publish();
        },
        // An absurd length.
        &|driver| {
            driver.put_descriptor(driver.at(0), GuestAddress(4096), u32::MAX, 2, 0);
            driver.make_available(0);
            driver.publish();
        },
        // An invalid indirect table.
        &|driver| {
            driver.put_descriptor(driver.at(0), GuestAddress(4096), 17, 4, 0);
            driver.make_available(0);
            driver.publish();
        },
        // No place for a status.
        &|driver| {
            driver.put_descriptor(driver.at(0), GuestAddress(4096), 16, 0, 0);
            driver.make_available(0);
            driver.publish();
        },
    ];
    for breaks in breaks {
        let mut front_end = FrontEnd::connect(&local.socket, ALL);
        let (mut broken, mut whole) = (front_end.start(0, 0), front_end.start(1, 0));
        breaks(&mut broken);
        broken.kick();
        await_event(&broken.error);
        assert_eq!(whole.run(IN, 0, 4096), 0);
        front_end.stop(0);
        assert_eq!(whole.run(IN, 0, 4096), 0);
    }
    check_service(&local);
    local.server.stop().unwrap();
}

#[test]
fn rings_outside_of_the_memory_and_wrong_numbers_are_refused() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let driver = front_end.start(0, 0);
    for start in [USER + MEMORY_BYTES, USER + MEMORY_BYTES - 16, USER - 16, 0, u64::MAX - 15, USER + 8] {
        assert_ne!(front_end.result(9, &[0, start, USER + 0x4000, USER + 0x2000, 0], &[]), 0);
        assert_ne!(front_end.result(9, &[0, USER, USER + 0x4000, start | 1, 0], &[]), 0);
    }
    for size in [0, 3, 2048, 1 << 31] {
        assert_ne!(front_end.result(8, &[size << 32], &[]), 0);
    }
    assert_ne!(front_end.result(8, &[4 | 128 << 32], &[]), 0);
    assert_ne!(front_end.result(18, &[2 << 32], &[]), 0);
    assert_ne!(front_end.result(12, &[0x100], &[]), 0);
    assert_ne!(front_end.result(2, &[u64::MAX], &[]), 0);
    assert_ne!(front_end.result(16, &[u64::MAX], &[]), 0);
    assert_ne!(front_end.result(77, &[], &[]), 0);
    assert_ne!(
        front_end.result(5, &[1, 0, MEMORY_BYTES + 1, USER, 0], &[front_end_file(&front_end).as_fd()]),
        0
    );
    assert_ne!(front_end.result(12, &[0], &[driver.kick.as_fd(), driver.call.as_fd()]), 0);
    drop(front_end);
    check_service(&local);
    local.server.stop().unwrap();
}

fn front_end_file(front_end: &FrontEnd) -> std::os::fd::OwnedFd {
    front_end.file.try_clone().unwrap()
}

#[test]
fn what_is_no_message_ends_the_session() {
    let local = Local::start(disk());
    let file = std::fs::File::open("/dev/null").unwrap();
    let files = vec![file.as_fd(); 9];
    let send: [&dyn Fn(&mut FrontEnd); 5] = [
        &|front_end| front_end.send_flagged(1, 2, &[], &[]),
        &|front_end| front_end.send_flagged(1, 5, &[], &[]),
        &|front_end| front_end.send_flagged(31, 1, &[], &[]),
        &|front_end| front_end.send_flagged(1, 1, &[0; 5000], &[]),
        &|front_end| front_end.send_flagged(5, 1, &[0; 8], &files),
    ];
    for send in send {
        let mut front_end = FrontEnd::connect(&local.socket, ALL);
        send(&mut front_end);
        assert!(front_end.await_cut());
    }
    check_service(&local);
    local.server.stop().unwrap();
}

#[test]
fn half_a_message_holds_nobody_up_for_longer_than_its_front_end_lives() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let mut driver = front_end.start(0, 0);
    front_end.socket.write_all(&[1, 0, 0, 0, 1]).unwrap();
    // The queues do not wait for the rest.
    for _ in 0..100 {
        assert_eq!(driver.run(IN, 0, 4096), 0);
    }
    drop(front_end);
    check_service(&local);
    local.server.stop().unwrap();
}

#[test]
fn a_file_for_kicks_that_ends_stops_the_queue_instead_of_burning_a_processor() {
    let local = Local::start(disk());
    let mut front_end = FrontEnd::connect(&local.socket, ALL);
    let driver = front_end.start(0, 0);
    let null = std::fs::File::open("/dev/null").unwrap();
    front_end.acknowledged(12, &[0], &[null.as_fd()]);
    await_event(&driver.error);
    drop(front_end);
    check_service(&local);
    local.server.stop().unwrap();
}

#[test]
fn noise_from_a_front_end_ends_its_session_at_most() {
    let local = Local::start(disk());
    let mut random = StdRng::seed_from_u64(11);
    for _ in 0..150 {
        let mut stream = UnixStream::connect(&local.socket).unwrap();
        for _ in 0..random.random_range(1..20) {
            let mut body = vec![0; random.random_range(0..80)];
            random.fill_bytes(&mut body);
            if random.random() {
                body.iter_mut().skip(1).for_each(|byte| *byte = 0);
            }
            let request = random.random_range(0..45_u32);
            let flags =
                if random.random_bool(0.9) { 1 | random.random_range(0..2) << 3 } else { random.random() };
            let length = if random.random_bool(0.9) { body.len() as u32 } else { random.random() };
            let words = [request, flags, length].map(u32::to_le_bytes);
            if stream.write_all(&[words.as_flattened(), &body].concat()).is_err() {
                break;
            }
        }
    }
    check_service(&local);
    local.server.stop().unwrap();
}

#[test]
fn noise_in_a_guests_rings_stops_its_queue_at_most() {
    let local = Local::start(disk());
    let mut random = StdRng::seed_from_u64(13);
    let mut hit = 0;
    for round in 0..60 {
        let features = if round % 2 == 0 { ALL } else { ALL & !EVENT_INDEX };
        let mut front_end = FrontEnd::connect(&local.socket, features);
        let mut driver = front_end.start(0, 0);
        let mut whole = front_end.start(1, 0);
        for slot in 0..32 {
            driver.submit(slot, [IN, OUT][usize::from(slot % 2)], u64::from(slot) * 8, 4096);
        }
        driver.publish();
        for _ in 0..200 {
            // Descriptors, rings, headers and indirect tables, while the queue reads them.
            let at = driver.at(random.random_range(0..0xC000) & !1);
            let word = if random.random() { random.random() } else { random.random_range(0..64) };
            driver.memory.store_u16(at, word).unwrap();
            driver.kick();
        }
        // A request whose address was changed to the other queue's may corrupt that one too: that
        // is the guest's own doing.
        let during = whole.run_unless_hit(IN, 0, 4096);
        front_end.stop(0);
        let after = during.and_then(|_| whole.run_unless_hit(IN, 0, 4096));
        assert!(during.is_none_or(|status| status == 0) && after.is_none_or(|status| status == 0));
        hit += u32::from(after.is_none());
    }
    assert!(hit < 30, "{hit}");
    check_service(&local);
    local.server.stop().unwrap();
}
