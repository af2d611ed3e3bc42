//! Threads that run one job after another, each on its own ring.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use strongroom_io::{FileIo, FileOperation, FileQueue, IdleReactor, Reactor};
use strongroom_memory::BufferPool;
use strongroom_ring::{Busy, Interest, Job, Lanes, Ring, RingFile};
use support::{DISK, PATIENCE, TMPFS, new_file, poll_until};

#[test]
fn each_job_has_a_lane_of_its_own_while_there_are_any() {
    let lanes = Lanes::start("lane", 3, 8).unwrap();
    let mut jobs: Vec<(Job<(ThreadId, String)>, _)> = Vec::new();
    for _ in 0..3 {
        let (finish, finished) = channel::<()>();
        let job = lanes.run(move |_| {
            let _ = finished.recv();
            let thread = thread::current();
            (thread.id(), thread.name().unwrap().to_owned())
        });
        jobs.push((job.unwrap(), finish));
    }
    assert!(jobs.iter_mut().all(|(job, _)| !job.poll_end()));
    // The fourth job comes back unchanged, and runs once a lane is idle.
    let ran = Arc::new(Mutex::new(false));
    let Err(Busy(job)) = lanes.run({
        let ran = Arc::clone(&ran);
        move |_| *ran.lock() = true
    }) else {
        panic!("there were three lanes")
    };
    let (job_of_the_last, finish) = jobs.pop().unwrap();
    drop(finish);
    let mut threads = vec![job_of_the_last.join().unwrap()];
    assert!(!*ran.lock());
    lanes.run(job).unwrap().join().unwrap();
    assert!(*ran.lock());
    for (job, finish) in jobs {
        drop(finish);
        threads.push(job.join().unwrap());
    }
    threads.sort_by(|(_, name), (_, other)| name.cmp(other));
    let names: Vec<&str> = threads.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(names, ["lane-0", "lane-1", "lane-2"]);
    assert!(threads.iter().all(|(id, _)| *id != thread::current().id()));
}

#[test]
fn a_lane_that_becomes_idle_is_told_of() {
    let lanes = Lanes::start("lane", 1, 8).unwrap();
    let reactor = IdleReactor::new().unwrap();
    lanes.wake_when_idle(&reactor.waker());
    // A lane is idle, so these return at once; otherwise each would hang for a day.
    reactor.sleep(Duration::from_secs(86_400)).unwrap();
    for _ in 0..100 {
        let (finish, finished) = channel::<()>();
        let job = lanes.run(move |_| finished.recv().is_ok()).unwrap();
        lanes.wake_when_idle(&reactor.waker());
        drop(finish);
        reactor.sleep(Duration::from_secs(86_400)).unwrap();
        lanes.run(|_| ()).unwrap().join().unwrap();
        job.join().unwrap();
    }
}

#[test]
fn a_panicking_job_does_not_cost_its_lane() {
    let lanes = Lanes::start("lane", 1, 64).unwrap();
    let (_named, file) = new_file(DISK);
    let file = Arc::new(RingFile::new(file));
    for _ in 0..20 {
        let job_file = file.clone();
        let (near, mut far) = UnixStream::pair().unwrap();
        let job = lanes.run(move |ring| {
            let pool = BufferPool::new(16 << 20).unwrap();
            let mut queue = ring.file_queue().unwrap();
            let file = queue.register(job_file).unwrap();
            for tag in 0..8 {
                let from = pool.take(1 << 20).unwrap();
                let operation = FileOperation::Write { offset: tag << 20, from, durable: false };
                queue.submit(FileIo { tag, file, operation });
            }
            queue.kick();
            ring.watch(&near, Interest::READABLE).unwrap();
            ring.wake_at(Instant::now() + Duration::from_secs(86_400));
            drop(near);
            panic!("as it should in this test");
        });
        let panic = job.unwrap().join().unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"as it should in this test"));
        // The job's leftovers in the ring are gone.
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(lanes.run(|_| 7).unwrap().join().unwrap(), 7);
}

#[test]
fn a_panic_of_a_result_that_nobody_wants_is_not_the_lanes() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as it should in this test");
        }
    }
    let lanes = Lanes::start("lane", 1, 8).unwrap();
    for _ in 0..3 {
        let (finish, finished) = channel::<()>();
        let job = lanes.run(move |_| {
            let _ = finished.recv();
            Bomb
        });
        drop(job.unwrap());
        let reactor = IdleReactor::new().unwrap();
        lanes.wake_when_idle(&reactor.waker());
        drop(finish);
        reactor.sleep(PATIENCE).unwrap();
    }
    assert_eq!(lanes.run(|_| 7).unwrap().join().unwrap(), 7);
}

/// File I/O, a socket with an event and one without.
fn a_turn(ring: &Ring, file: Arc<RingFile>, fill: u8) {
    let pool = BufferPool::new(2 << 20).unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let (silent, _other) = UnixStream::pair().unwrap();
    let token = ring.watch(&near, Interest::READABLE).unwrap();
    let unheard = ring.watch(&silent, Interest::READABLE).unwrap();
    let mut queue: Box<dyn FileQueue> = ring.file_queue().unwrap();
    let file = queue.register(file).unwrap();
    let mut from = pool.take(4096).unwrap();
    from.bytes_mut().fill(fill);
    queue.submit(FileIo {
        tag: 1,
        file,
        operation: FileOperation::Write { offset: 0, from, durable: false },
    });
    queue.kick();
    assert_eq!(poll_until(ring, queue.as_mut(), 1)[0].result, Ok(()));
    let into = pool.take(4096).unwrap();
    queue.submit(FileIo { tag: 2, file, operation: FileOperation::Read { offset: 0, into } });
    queue.kick();
    let done = poll_until(ring, queue.as_mut(), 1).pop().unwrap();
    assert_eq!(done.buffer.unwrap().bytes(), [fill; 4096]);
    far.write_all(b"x").unwrap();
    let mut ready = Vec::new();
    while ready.is_empty() {
        ring.wait(Some(PATIENCE)).unwrap();
        ring.take_ready(&mut ready);
    }
    assert!(ready.len() == 1 && ready[0].token == token && ready[0].readable);
    ring.unwatch(token);
    ring.unwatch(unheard);
}

#[test]
fn a_lane_is_as_good_as_new_after_a_thousand_jobs() {
    let lanes = Lanes::start("lane", 1, 8).unwrap();
    // Each job takes three places of the ring's table: if one were kept, the table would fill up.
    for round in 0..1000_u32 {
        let (named, file) = new_file(TMPFS);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let fill = round as u8;
        let job = lanes.run(move |ring| {
            let enters = ring.enters();
            a_turn(ring, Arc::new(RingFile::new(file)), fill);
            ring.enters() - enters
        });
        assert!(job.unwrap().join().unwrap() < 100);
        // The lock must become free although the lane is idle, so this waits without running the
        // ring.
        let (taken_by, taken) = sync_channel(1);
        let file = named.reopen().unwrap();
        let waiter = thread::spawn(move || taken_by.send(flock(&file, FlockOperation::LockExclusive)));
        assert_eq!(taken.recv_timeout(PATIENCE), Ok(Ok(())), "the lock is still held");
        waiter.join().unwrap().unwrap();
    }
}

#[test]
fn a_file_lock_ends_with_the_job_whoever_of_the_kernel_worked_on_the_file() {
    let lanes = Lanes::start("lane", 1, 16).unwrap();
    for _ in 0..50 {
        let (named, file) = new_file(DISK);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let job = lanes.run(move |ring| {
            let pool = BufferPool::new(16 << 20).unwrap();
            let mut queue = ring.file_queue().unwrap();
            let file = queue.register(Arc::new(RingFile::new(file))).unwrap();
            // Writes that allocate, and syncs, are done by threads of the kernel.
            for tag in 0..8 {
                let from = pool.take(1 << 20).unwrap();
                let operation = FileOperation::Write { offset: tag << 20, from, durable: true };
                queue.submit(FileIo { tag, file, operation });
            }
            queue.kick();
            poll_until(ring, queue.as_mut(), 8);
        });
        job.unwrap().join().unwrap();
        let (taken_by, taken) = sync_channel(1);
        let file = named.reopen().unwrap();
        let waiter = thread::spawn(move || taken_by.send(flock(&file, FlockOperation::LockExclusive)));
        assert_eq!(taken.recv_timeout(PATIENCE), Ok(Ok(())), "the lock is still held");
        waiter.join().unwrap().unwrap();
    }
}

/// Counts the threads whose end it has seen.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

thread_local! {
    static COUNTED: std::cell::RefCell<Option<Counted>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn the_last_drop_ends_the_threads() {
    let ended = Arc::new(AtomicUsize::new(0));
    let lanes = Lanes::start("lane", 4, 8).unwrap();
    let mark = || {
        let ended = Arc::clone(&ended);
        move |_: &Ring| COUNTED.set(Some(Counted(ended)))
    };
    // All four run at once, so that each lane has one; the last one waits.
    let (finish, finished) = channel::<()>();
    let (began_by, began) = sync_channel(4);
    let barrier = Arc::new(std::sync::Barrier::new(4));
    let jobs: Vec<_> = (0..3)
        .map(|_| {
            let (mark, barrier) = (mark(), Arc::clone(&barrier));
            lanes.run(move |ring| {
                barrier.wait();
                mark(ring);
            })
        })
        .collect();
    let last = {
        let (mark, barrier) = (mark(), Arc::clone(&barrier));
        lanes.run(move |ring| {
            barrier.wait();
            mark(ring);
            began_by.send(()).unwrap();
            let _ = finished.recv();
        })
    };
    jobs.into_iter().for_each(|job| job.unwrap().join().unwrap());
    began.recv().unwrap();
    let other = lanes.clone();
    drop(lanes);
    assert_eq!(ended.load(Ordering::SeqCst), 0, "there is another clone");
    drop(other);
    assert_eq!(ended.load(Ordering::SeqCst), 3, "all idle ones have ended, the busy one has not");
    drop(finish);
    last.unwrap().join().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while ended.load(Ordering::SeqCst) < 4 {
        assert!(Instant::now() < deadline, "the lane goes on");
        thread::yield_now();
    }
}

#[test]
fn the_last_clone_can_be_a_jobs() {
    let lanes = Lanes::start("lane", 2, 8).unwrap();
    let inner = lanes.clone();
    let (finish, finished) = channel::<()>();
    let job = lanes.run(move |_| {
        let _ = finished.recv();
        drop(inner);
        9
    });
    drop(lanes);
    drop(finish);
    assert_eq!(job.unwrap().join().unwrap(), 9);
}

#[test]
fn an_idle_lane_does_nothing() {
    let lanes = Lanes::start("lane", 1, 8).unwrap();
    let (_named, file) = new_file(TMPFS);
    let file = Arc::new(RingFile::new(file));
    let pass = |ring: &Ring| (rustix::thread::gettid(), ring.enters());
    let (thread, _) = lanes
        .run(move |ring| {
            a_turn(ring, file, 1);
            // Wake-ups and deadlines of an ended job do not affect the lane.
            ring.waker().wake();
            ring.wake_at(Instant::now() + Duration::from_millis(1));
            pass(ring)
        })
        .unwrap()
        .join()
        .unwrap();
    let asleep = || {
        let status = format!("/proc/self/task/{}/status", thread.as_raw_nonzero());
        std::fs::read_to_string(status).unwrap().contains("State:\tS")
    };
    let deadline = Instant::now() + PATIENCE;
    while !asleep() {
        assert!(Instant::now() < deadline, "the lane does not fall asleep");
        thread::yield_now();
    }
    let (_, before) = lanes.run(pass).unwrap().join().unwrap();
    // Let some time pass.
    IdleReactor::new().unwrap().sleep(Duration::from_millis(300)).unwrap();
    let (_, after) = lanes.run(pass).unwrap().join().unwrap();
    // One entry to fall asleep, and one to check for more after the order.
    assert!(after - before <= 3, "{} entries into the kernel while idle", after - before);
}
