//! Events that end a sleep, and events that do not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use strongroom_io::{FileOperation, Reactor};
use strongroom_ring::{Interest, Ready, Ring, WatchToken};
use support::{Bench, PATIENCE, TMPFS, new_file};

/// Waits until a socket is ready, and takes the events.
#[track_caller]
fn ready(ring: &Ring) -> Vec<Ready> {
    let deadline = Instant::now() + PATIENCE;
    let mut ready = Vec::new();
    while ready.is_empty() {
        assert!(Instant::now() < deadline, "no socket became ready");
        ring.wait(Some(PATIENCE)).unwrap();
        ring.take_ready(&mut ready);
    }
    ready
}

/// Whether no socket is ready, now that the kernel has seen all requests.
fn nothing_ready(ring: &Ring) -> bool {
    let mut ready = Vec::new();
    ring.wait(Some(Duration::ZERO)).unwrap();
    ring.take_ready(&mut ready);
    ready.is_empty()
}

fn event(token: WatchToken, readable: bool, writable: bool, hangup: bool) -> Vec<Ready> {
    vec![Ready { token, readable, writable, hangup }]
}

#[test]
fn another_thread_ends_the_wait_and_no_wake_up_is_lost() {
    const ROUNDS: u64 = 20_000;
    let ring = Ring::new(8).unwrap();
    let waker = ring.waker();
    let work = Arc::new(AtomicU64::new(0));
    let (seen_by, seen) = mpsc::channel();
    let posted = Arc::clone(&work);
    let poster = std::thread::spawn(move || {
        for round in 1..=ROUNDS {
            posted.store(round, Ordering::SeqCst);
            waker.wake();
            // In every second round it waits for an answer; otherwise wake-ups follow each other at
            // once.
            if round % 2 == 0 {
                while seen.recv().unwrap() < round {}
            }
        }
    });
    // Without a limit: a lost wake-up would hang here.
    let mut heard = 0;
    while heard < ROUNDS {
        ring.wait(None).unwrap();
        let now = work.load(Ordering::SeqCst);
        if now != heard {
            heard = now;
            // The other thread has ended after the last answer.
            let _ = seen_by.send(heard);
        }
    }
    poster.join().unwrap();
}

#[test]
fn a_wake_up_that_a_poll_reaps_still_ends_the_next_wait() {
    let mut bench = Bench::new(8);
    let (_named, file) = new_file(TMPFS);
    let file = bench.register(file);
    // Arms the waker.
    bench.ring.wait(Some(Duration::ZERO)).unwrap();
    bench.ring.waker().wake();
    assert_eq!(bench.run(file, FileOperation::SyncData).result, Ok(()));
    bench.queue.poll(&mut Vec::new());
    bench.ring.waker().wake();
    bench.ring.wait(None).unwrap();
}

#[test]
fn a_deadline_ends_the_wait_once() {
    let ring = Ring::new(8).unwrap();
    let deadline = Instant::now() + Duration::from_millis(5);
    ring.wake_at(Instant::now() + Duration::from_secs(86_400));
    ring.wake_at(deadline);
    ring.wake_at(Instant::now() + Duration::from_secs(86_400));
    while Instant::now() < deadline {
        ring.wait(None).unwrap();
    }
    // The deadline has passed: this sleep lasts the full time.
    let (start, at_most) = (Instant::now(), Duration::from_millis(5));
    while start.elapsed() < at_most {
        ring.wait(Some(at_most)).unwrap();
    }
}

#[test]
fn an_idle_thread_enters_the_kernel_once_and_stays_there() {
    let mut bench = Bench::new(8);
    let (near, _far) = UnixStream::pair().unwrap();
    bench.ring.watch(&near, Interest::READABLE).unwrap();
    // A past wake-up must not keep it awake.
    bench.ring.waker().wake();
    bench.ring.wait(None).unwrap();
    let enters = bench.ring.enters();
    bench.ring.wait(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(bench.ring.enters(), enters + 1);
    // A leftover of a wake-up would cut every sleep short, and this would enter the kernel
    // endlessly.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        bench.ring.wait(Some(Duration::from_millis(100))).unwrap();
    }
    assert!(bench.ring.enters() <= enters + 3, "{} entries", bench.ring.enters() - enters);
    let enters = bench.ring.enters() - 1;
    bench.queue.kick();
    bench.queue.poll(&mut Vec::new());
    assert_eq!(bench.ring.enters(), enters + 1, "nothing was submitted, nothing was said to be held back");
}

#[test]
fn a_batch_is_one_system_call() {
    let mut bench = Bench::new(64);
    let mut other = bench.ring.file_queue().unwrap();
    let (_named, file) = new_file(TMPFS);
    let file = bench.register(file);
    let enters = bench.ring.enters();
    for tag in 0..64 {
        let from = bench.filled(4096, 1);
        bench.submit(tag, file, FileOperation::Write { offset: tag * 4096, from, durable: false });
    }
    other.kick();
    bench.queue.kick();
    assert_eq!(bench.ring.enters(), enters + 1);
    bench.finish(64);
}

#[test]
fn a_thread_that_only_polls_makes_progress() {
    let mut bench = Bench::new(8);
    let (_named, file) = new_file(support::DISK);
    let file = bench.register(file);
    let from = bench.filled(4096, 1);
    bench.submit(1, file, FileOperation::Write { offset: 0, from, durable: true });
    bench.queue.kick();
    let (deadline, mut done) = (Instant::now() + PATIENCE, Vec::new());
    while done.is_empty() {
        assert!(Instant::now() < deadline);
        bench.queue.poll(&mut done);
    }
    assert_eq!(done[0].result, Ok(()));
}

#[test]
fn sockets_tell_each_readiness_once_until_asked_again() {
    let ring = Ring::new(8).unwrap();
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let token = ring.watch(&near, Interest::READABLE).unwrap();
    assert!(nothing_ready(&ring));
    far.write_all(b"ab").unwrap();
    assert_eq!(ready(&ring), event(token, true, false, false));
    assert!(nothing_ready(&ring), "told once");
    // Not everything was read, so it is reported again: the state counts, not the change.
    near.read_exact(&mut [0]).unwrap();
    ring.rearm(token, Interest::READABLE);
    assert_eq!(ready(&ring), event(token, true, false, false));
    near.read_exact(&mut [0]).unwrap();
    ring.rearm(token, Interest::READABLE);
    assert!(nothing_ready(&ring));
    // A further request keeps the earlier one.
    ring.rearm(token, Interest::BOTH);
    assert_eq!(ready(&ring), event(token, false, true, false));
    far.write_all(b"c").unwrap();
    assert_eq!(ready(&ring), event(token, true, false, false));
}

#[test]
fn a_full_socket_is_writable_once_there_is_room() {
    let ring = Ring::new(8).unwrap();
    let (mut near, mut far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let mut written = 0;
    while let Ok(count) = near.write(&[0; 4096]) {
        written += count;
    }
    let token = ring.watch(&near, Interest::WRITABLE).unwrap();
    assert!(nothing_ready(&ring));
    far.read_exact(&mut vec![0; written]).unwrap();
    assert_eq!(ready(&ring), event(token, false, true, false));
}

#[test]
fn a_peer_that_goes_is_a_hangup() {
    let ring = Ring::new(8).unwrap();
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let token = ring.watch(&near, Interest::READABLE).unwrap();
    far.write_all(b"last").unwrap();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(ready(&ring), event(token, true, false, true));
    let mut rest = String::new();
    near.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "last", "what was sent before can be read after");
    drop(far);
    ring.rearm(token, Interest::WRITABLE);
    let told = ready(&ring);
    assert!(told[0].hangup && told[0].writable, "{told:?}");
}

#[test]
fn an_ended_watch_tells_nothing_and_lets_go_of_its_socket() {
    let ring = Ring::new(8).unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let token = ring.watch(&near, Interest::BOTH).unwrap();
    far.write_all(b"x").unwrap();
    // Ready, but not taken yet.
    ring.wait(Some(PATIENCE)).unwrap();
    ring.unwatch(token);
    assert!(nothing_ready(&ring));
    // Its place is reused, under another name.
    let (other_near, _other_far) = UnixStream::pair().unwrap();
    let other = ring.watch(&other_near, Interest::WRITABLE).unwrap();
    assert_ne!(token, other);
    ring.rearm(token, Interest::BOTH);
    ring.unwatch(token);
    assert_eq!(ready(&ring), event(other, false, true, false));

    // A watch that is armed, and ended before any event: once the kernel has released the socket,
    // the peer sees the end.
    let (near, mut far) = UnixStream::pair().unwrap();
    let token = ring.watch(&near, Interest::READABLE).unwrap();
    assert!(nothing_ready(&ring));
    ring.unwatch(token);
    drop(near);
    far.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match far.read(&mut [0]) {
            Ok(0) => break,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            other => panic!("{other:?}"),
        }
        assert!(Instant::now() < deadline, "the ring keeps the socket");
        ring.wait(Some(Duration::from_millis(1))).unwrap();
    }
}

#[test]
fn a_thousand_sockets_come_and_go() {
    let ring = Ring::new(8).unwrap();
    let mut told = Vec::new();
    let pairs: Vec<_> = (0..200).map(|_| UnixStream::pair().unwrap()).collect();
    for _ in 0..5 {
        let tokens: Vec<_> =
            pairs.iter().map(|(near, _)| ring.watch(near, Interest::BOTH).unwrap()).collect();
        let deadline = Instant::now() + PATIENCE;
        told.clear();
        while told.len() < tokens.len() {
            assert!(Instant::now() < deadline, "{} were told", told.len());
            ring.wait(Some(PATIENCE)).unwrap();
            ring.take_ready(&mut told);
        }
        for token in tokens {
            assert!(told.iter().any(|ready| ready.token == token && ready.writable));
            ring.unwatch(token);
        }
    }
}
