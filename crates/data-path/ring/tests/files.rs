//! File operations on real files, on a disk with O_DIRECT and on tmpfs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use strongroom_io::{FileDone, FileIo, FileOperation, FileToken, IoError, Reactor};
use strongroom_ring::{ENDS_POLLED_BYTES_MAX, ENDS_POLLED_MAX, Interest, Ring, RingFile};
use strongroom_types::Extent;
use support::{Bench, DISK, PATIENCE, TMPFS, new_file, poll_until};

fn extent(offset: u64, length: u64) -> Extent {
    Extent::new(offset, length).unwrap()
}

#[track_caller]
fn assert_holds(done: &FileDone, fill: u8) {
    assert_eq!(done.result, Ok(()));
    let bytes = done.buffer.as_ref().unwrap().bytes();
    let wrong = bytes.iter().position(|byte| *byte != fill);
    assert_eq!(wrong.map(|at| (at, bytes[at])), None, "expected {fill:#x} everywhere");
}

#[test]
fn what_was_written_at_depth_128_is_read_back() {
    for directory in [DISK, TMPFS] {
        let mut bench = Bench::new(128);
        let (_named, file) = new_file(directory);
        let file = bench.register(file);
        let size = |tag: u64| [4096, 65_536, 512, 12_288][tag as usize % 4];
        for tag in 0..128 {
            let from = bench.filled(size(tag), tag as u8);
            let offset = tag * 65_536;
            bench.submit(tag, file, FileOperation::Write { offset, from, durable: tag % 3 == 0 });
        }
        let mut tags: Vec<u64> = bench
            .finish(128)
            .into_iter()
            .map(|done| {
                assert_holds(&done, done.tag as u8);
                done.tag
            })
            .collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..128).collect::<Vec<u64>>());
        assert_eq!(bench.pool.used_bytes(), 0);

        for tag in 0..128 {
            let into = bench.filled(size(tag), 0xEE);
            bench.submit(tag, file, FileOperation::Read { offset: tag * 65_536, into });
        }
        for done in bench.finish(128) {
            assert_eq!(done.buffer.as_ref().unwrap().len(), size(done.tag));
            assert_holds(&done, done.tag as u8);
        }
    }
}

#[test]
fn durable_writes_and_syncs_are_done() {
    for directory in [DISK, TMPFS] {
        let mut bench = Bench::new(8);
        let (named, file) = new_file(directory);
        let file = bench.register(file);
        let from = bench.filled(8192, 7);
        let durable = FileOperation::Write { offset: 4096, from, durable: true };
        assert_holds(&bench.run(file, durable), 7);
        assert_eq!(bench.run(file, FileOperation::SyncData).result, Ok(()));
        let content = std::fs::read(named.path()).unwrap();
        assert_eq!((&content[..4096], &content[4096..]), (&[0; 4096][..], &[7; 8192][..]));
    }
}

#[test]
fn punching_frees_space_and_zeroing_keeps_it() {
    const MIB: u64 = 1 << 20;
    for directory in [DISK, TMPFS] {
        let mut bench = Bench::new(8);
        let (named, file) = new_file(directory);
        let file = bench.register(file);
        let space_bytes = || named.as_file().metadata().unwrap().blocks() * 512;
        assert_holds(&bench.write(file, 0, MIB as usize, 0x55), 0x55);
        let full = space_bytes();
        assert!(full >= MIB, "{full}");

        let zero = FileOperation::Zero { extent: extent(0, MIB / 4) };
        assert_eq!(bench.run(file, zero).result, Ok(()));
        assert_eq!(space_bytes(), full, "zeroing keeps space in {directory}");
        assert_holds(&bench.read(file, 0, (MIB / 4) as usize), 0);

        let punch = FileOperation::Punch { extent: extent(MIB / 2, MIB / 4) };
        assert_eq!(bench.run(file, punch).result, Ok(()));
        assert!(space_bytes() <= full - MIB / 4, "punching frees space in {directory}");
        assert_holds(&bench.read(file, MIB / 2, (MIB / 4) as usize), 0);

        // Zeroing a punched extent allocates it again, before the file system is full.
        let zero = FileOperation::Zero { extent: extent(MIB / 2, MIB / 4) };
        assert_eq!(bench.run(file, zero).result, Ok(()));
        assert!(space_bytes() >= full, "zeroing takes space in {directory}");

        // Neither operation changes its neighbours or the file's length.
        assert_holds(&bench.read(file, MIB / 4, (MIB / 4) as usize), 0x55);
        assert_holds(&bench.read(file, MIB * 3 / 4, (MIB / 4) as usize), 0x55);
        let beyond = FileOperation::Zero { extent: extent(MIB, MIB) };
        assert_eq!(bench.run(file, beyond).result, Ok(()));
        assert_eq!(named.as_file().metadata().unwrap().len(), MIB);
    }
}

#[test]
fn a_read_beyond_the_end_says_how_much_there_was() {
    for directory in [DISK, TMPFS] {
        let mut bench = Bench::new(8);
        let (named, file) = new_file(directory);
        std::fs::write(named.path(), [9; 6000]).unwrap();
        let file = bench.register(file);
        let done = bench.read(file, 0, 8192);
        let short = |done_bytes, wanted_bytes| Err(IoError::Short { done_bytes, wanted_bytes });
        assert_eq!(done.result, short(6000, 8192));
        assert_eq!(done.buffer.unwrap().bytes()[..6000], [9; 6000]);
        assert_eq!(bench.read(file, 8192, 4096).result, short(0, 4096));
    }
}

#[test]
fn failures_are_typed_and_give_the_buffer_back() {
    let mut bench = Bench::new(8);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let full = bench.register(full);
    let done = bench.write(full, 0, 4096, 1);
    assert_eq!((done.result, done.buffer.unwrap().len()), (Err(IoError::NoSpace), 4096));

    let (named, _) = new_file(DISK);
    let read_only = bench.register(File::open(named.path()).unwrap());
    let done = bench.write(read_only, 0, 4096, 1);
    assert_eq!((done.result, done.buffer.is_some()), (Err(Errno::BADF.into()), true));

    let unknown = FileToken(99);
    let done = bench.read(unknown, 0, 4096);
    assert_eq!((done.result, done.buffer.is_some()), (Err(Errno::BADF.into()), true));
    let done = bench.read(read_only, u64::MAX, 4096);
    assert_eq!((done.result, done.buffer.is_some()), (Err(Errno::INVAL.into()), true));
}

#[test]
fn more_operations_than_the_ring_has_entries_all_end() {
    const COUNT: u64 = 512;
    let (_named, file) = new_file(DISK);
    let mut bench = Bench::new(4);
    let file = bench.register(file);
    for tag in 0..COUNT {
        let from = bench.filled(4096, tag as u8);
        bench.submit(tag, file, FileOperation::Write { offset: tag * 4096, from, durable: false });
    }
    assert_eq!(bench.finish(COUNT as usize).len(), COUNT as usize);
    // Kicked many times and never polled: the completion queue overflows, and nothing is lost.
    for tag in 0..COUNT {
        let into = bench.filled(4096, 0xEE);
        bench.submit(tag, file, FileOperation::Read { offset: tag * 4096, into });
        bench.queue.kick();
    }
    // Overflowed completions can be reached without a sleep.
    let (deadline, mut done) = (Instant::now() + PATIENCE, Vec::new());
    while done.len() < COUNT as usize {
        assert!(Instant::now() < deadline, "{} of {COUNT} ended", done.len());
        bench.queue.kick();
        bench.queue.poll(&mut done);
    }
    for done in done {
        assert_holds(&done, done.tag as u8);
    }
}

/// The client of the first completion does not wait until the last one is decrypted.
#[test]
fn ends_are_handed_over_in_pieces_of_so_many_and_so_many_bytes() {
    let mut bench = Bench::new(32);
    let (named, _direct) = new_file(DISK);
    std::fs::write(named.path(), vec![7; 1 << 20]).unwrap();
    // Read from the page cache, so that all of them end as soon as they are submitted.
    let file = bench.register(File::open(named.path()).unwrap());
    for length in [4096, 48 << 10, 512 << 10] {
        for tag in 0..20 {
            let into = bench.filled(length, 0xEE);
            bench.submit(tag, file, FileOperation::Read { offset: 4096 * tag, into });
        }
        bench.queue.kick();
        let (mut left, mut piece) = (20, Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while left > 0 {
            assert!(Instant::now() < deadline, "{left} operations did not end");
            bench.queue.poll(&mut piece);
            let before_the_last = length * piece.len().saturating_sub(1);
            assert!(
                piece.len() <= ENDS_POLLED_MAX && before_the_last < ENDS_POLLED_BYTES_MAX,
                "{}",
                piece.len()
            );
            left -= piece.len();
            piece.drain(..).for_each(|done| assert_holds(&done, 7));
            // It does not sleep while there are more completions.
            bench.ring.wait(Some(Duration::from_millis(10))).unwrap();
        }
    }
}

#[test]
fn each_queue_gets_its_own() {
    let mut bench = Bench::new(32);
    let mut other = bench.ring.file_queue().unwrap();
    let (_named, first_file) = new_file(DISK);
    let (_other_named, second_file) = new_file(TMPFS);
    let first = bench.register(first_file);
    let second = other.register(Arc::new(RingFile::new(second_file))).unwrap();
    for tag in 0..16 {
        let from = bench.filled(4096, 1);
        bench.submit(tag, first, FileOperation::Write { offset: tag * 4096, from, durable: false });
        let from = bench.filled(8192, 2);
        let operation = FileOperation::Write { offset: tag * 8192, from, durable: false };
        other.submit(FileIo { tag, file: second, operation });
    }
    // The first queue's polls reap for both; the loop must not sleep while the other queue's
    // completions wait.
    assert!(bench.finish(16).iter().all(|done| done.buffer.as_ref().unwrap().len() == 4096));
    let done = poll_until(&bench.ring, other.as_mut(), 16);
    assert!(done.iter().all(|done| done.buffer.as_ref().unwrap().len() == 8192));
}

#[test]
fn the_loop_does_not_sleep_over_what_another_queue_reaped() {
    let mut bench = Bench::new(8);
    let mut other = bench.ring.file_queue().unwrap();
    let (_named, file) = new_file(TMPFS);
    let file = other.register(Arc::new(RingFile::new(file))).unwrap();
    other.submit(FileIo { tag: 5, file, operation: FileOperation::SyncData });
    other.kick();
    // This ends at the completion, which a poll of the wrong queue then reaps.
    bench.ring.wait(None).unwrap();
    let mut done = Vec::new();
    bench.queue.poll(&mut done);
    assert!(done.is_empty());
    let enters = bench.ring.enters();
    bench.ring.wait(None).unwrap();
    bench.ring.wait(None).unwrap();
    assert!(bench.ring.enters() <= enters + 1, "the ring slept");
    other.poll(&mut done);
    assert_eq!(done[0].tag, 5);
}

#[test]
fn many_files() {
    let mut bench = Bench::new(8);
    let files: Vec<_> = (0..80).map(|_| new_file(TMPFS)).collect();
    let mut named = Vec::new();
    for (index, (name, file)) in files.into_iter().enumerate() {
        let file = bench.register(file);
        assert_holds(&bench.write(file, 0, 4096, index as u8), index as u8);
        named.push(name);
    }
    for (index, name) in named.iter().enumerate() {
        assert_eq!(std::fs::read(name.path()).unwrap(), [index as u8; 4096]);
    }
}

#[test]
fn a_ring_full_of_files_says_so_and_goes_on() {
    let mut bench = Bench::new(8);
    let (_named, file) = new_file(TMPFS);
    let file = Arc::new(RingFile::new(file));
    let first = bench.queue.register(file.clone()).unwrap();
    let mut other = bench.ring.file_queue().unwrap();
    let mut count = 1;
    let full = loop {
        match other.register(file.clone()) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, IoError::FilesFull { files_max: count });
    assert!(count >= 256, "a ring takes a volume's longest chain of layers, and took {count} files");
    assert_eq!(bench.ring.watch(&*file, Interest::READABLE).unwrap_err(), full);
    assert_holds(&bench.write(first, 0, 4096, 1), 1);
    drop(other);
    assert!(bench.queue.register(file).is_ok());
}

#[test]
fn a_dropped_queue_lets_go_of_its_files_and_their_locks() {
    let mut bench = Bench::new(8);
    for round in 0..100 {
        let (named, file) = new_file(TMPFS);
        let file = Arc::new(RingFile::new(file));
        flock(&*file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let mut queue = bench.ring.file_queue().unwrap();
        let token = queue.register(file).unwrap();
        queue.submit(FileIo { tag: 1, file: token, operation: FileOperation::SyncData });
        queue.kick();
        assert_eq!(poll_until(&bench.ring, queue.as_mut(), 1)[0].result, Ok(()));
        let held = flock(named.as_file(), FlockOperation::NonBlockingLockExclusive);
        assert_eq!(held, Err(Errno::WOULDBLOCK));
        drop(queue);
        wait_for_lock(named.reopen().unwrap(), Some(&bench.ring));
        // The place is reused.
        let file = bench.register(named.reopen().unwrap());
        assert_holds(&bench.write(file, 0, 4096, round), round);
    }
}

#[test]
fn dropping_with_operations_in_flight_frees_no_memory_under_the_kernel() {
    const COUNT: u64 = 64;
    const LENGTH: usize = 1 << 20;
    let (named, file) = new_file(DISK);
    file.set_len(COUNT * LENGTH as u64).unwrap();
    drop(file);
    for (drops_ring, writes) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut bench = Bench::new(COUNT as usize);
        let file = bench.register(support::open_direct(named.path()));
        for tag in 0..COUNT {
            let buffer = bench.filled(LENGTH, 0xD0);
            let offset = tag * LENGTH as u64;
            let operation = if writes {
                FileOperation::Write { offset, from: buffer, durable: false }
            } else {
                FileOperation::Read { offset, into: buffer }
            };
            bench.submit(tag, file, operation);
        }
        bench.queue.kick();
        let Bench { ring, queue, pool } = bench;
        drop(queue);
        let ring = (!drops_ring).then_some(ring);
        if drops_ring {
            assert_eq!(pool.used_bytes(), 0, "the ring waited for the kernel");
        }
        // Free memory must keep its content, whatever operations still run.
        let held: Vec<_> = std::iter::from_fn(|| pool.take(LENGTH))
            .map(|mut buffer| {
                buffer.bytes_mut().fill(0xA5);
                buffer
            })
            .collect();
        drop(ring);
        for buffer in &held {
            assert!(buffer.bytes().iter().all(|byte| *byte == 0xA5));
        }
        drop(held);
        assert_eq!(pool.used_bytes(), 0);
    }
    drop(named);
}

#[test]
fn a_dropped_ring_lets_go_of_its_files_and_their_locks() {
    for _ in 0..20 {
        let mut bench = Bench::new(16);
        let (named, file) = new_file(DISK);
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let file = bench.register(file);
        for tag in 0..16 {
            let from = bench.filled(1 << 20, 1);
            bench.submit(tag, file, FileOperation::Write { offset: tag << 20, from, durable: false });
        }
        bench.queue.kick();
        drop(bench);
        wait_for_lock(named.reopen().unwrap(), None);
    }
}

/// Waits until the file's lock is free, which can be some milliseconds after the last answer about
/// the file (12 seen). The ring that used the file, if it still exists, keeps running meanwhile.
#[track_caller]
fn wait_for_lock(file: File, ring: Option<&Ring>) {
    let (taken_by, taken) = mpsc::channel();
    let waiter = std::thread::spawn(move || taken_by.send(flock(&file, FlockOperation::LockExclusive)));
    let deadline = Instant::now() + PATIENCE;
    let turn = Duration::from_millis(10);
    let outcome = loop {
        match taken.recv_timeout(turn) {
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                ring.into_iter().for_each(|ring| ring.wait(Some(turn)).unwrap());
            }
            outcome => break outcome,
        }
    };
    assert_eq!(outcome, Ok(Ok(())), "the lock is still held");
    waiter.join().unwrap().unwrap();
}
