//! A device that fails, is full, hangs or vanishes: always correct data or a typed error, even with
//! a power cut on top.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use strongroom_datastore::file::*;
use strongroom_io::{Channel, Disk, Done, Io, IoError, Plain, Request, Thread};
use strongroom_memory::GuestSlice;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{BLOCK_BYTES, Extent, VolumeSize};
use strongroom_worker::stack::assemble;

use super::history::{History, Trouble, options};
use super::image::{check_image, read_all};
use super::knowledge::{Account, Allowed, Bench, Knowledge, NAMES, Sort};
use super::oracle::Oracle;
use super::{Count, cut};

const EIO: IoError = IoError::Device(strongroom_io::Errno(5));
const STEPS: usize = 500;
const SEEDS: std::ops::RangeInclusive<u64> = if cfg!(feature = "full") { 1..=2000 } else { 1..=12 };
const CUTS: usize = 20;

/// Lives with faults and cuts. All errors must be among the expected ones.
fn lives(trouble: Trouble, expected: &[IoError]) {
    let bench = Bench::new();
    let mut count = Count::default();
    let mut seen = Vec::new();
    for seed in SEEDS {
        let history = History::with(&bench, seed, STEPS, None, trouble);
        if let Some(wrong) = history.wrong.first() {
            panic!("{trouble:?}, seed {seed}: {wrong}");
        }
        if let Some(error) = history.errors.iter().find(|error| !expected.contains(error)) {
            panic!("{trouble:?}, seed {seed}: {error}");
        }
        seen.extend(history.errors.iter().copied());
        if let Err(what) = cut(&bench, &history, seed, CUTS, false, &mut count) {
            panic!("{trouble:?}, seed {seed}, {what}");
        }
    }
    println!("{trouble:?}: {} errors, {count:?}", seen.len());
    for error in expected {
        assert!(seen.contains(error), "{error} was never seen");
    }
}

#[test]
fn reads_and_writes_that_fail() {
    let faults = Faults { read_error_one_in: 15, write_error_one_in: 15, ..Faults::default() };
    // A failed durable write may have been a failed fsync.
    lives(Trouble { faults, room_percent: None }, &[EIO, IoError::FlushFailed]);
}

#[test]
fn flushes_that_fail() {
    let faults = Faults { sync_error_one_in: 20, ..Faults::default() };
    lives(Trouble { faults, room_percent: None }, &[EIO, IoError::FlushFailed]);
}

#[test]
fn a_full_datastore_fails_no_flush() {
    lives(Trouble { room_percent: Some(30), faults: Faults::default() }, &[IoError::NoSpace]);
}

#[test]
fn everything_at_once() {
    let faults =
        Faults { read_error_one_in: 30, write_error_one_in: 30, sync_error_one_in: 30, ..Faults::default() };
    let expected = [EIO, IoError::FlushFailed, IoError::NoSpace];
    lives(Trouble { faults, room_percent: Some(40) }, &expected);
}

/// A volume of 16 blocks in use, without a guest's randomness.
struct Used {
    bench: Bench,
    fs: SimFs,
    channel: Box<dyn Channel<Plain>>,
}

const ENCRYPTED: Sort = Sort { encrypted: true, provisioning: Provisioning::Thin, integrity: false };
const SIZE_BYTES: u64 = 16 * BLOCK_BYTES;

fn path() -> &'static Path {
    Path::new("/ds/vm1")
}

impl Used {
    fn new(seed: u64) -> Self {
        Self::on(SimFs::new(seed))
    }

    fn on(fs: SimFs) -> Self {
        let bench = Bench::new();
        // A log large enough not to fill, because nothing empties it here.
        let created = CreateOptions { log_bytes: None, ..bench.create_options(ENCRYPTED, SIZE_BYTES) };
        create_on(&fs, path(), &created).unwrap();
        let channel = Self::open(&bench, &fs).unwrap();
        Self { bench, fs, channel }
    }

    fn open(bench: &Bench, fs: &SimFs) -> Result<Box<dyn Channel<Plain>>, DatastoreError> {
        let volume = open_on(fs, path(), &options(ENCRYPTED.protection(&bench.kek)))?;
        let thread = Thread { pool: bench.pool.clone(), reactor: Rc::new(fs.reactor(1).unwrap()) };
        Ok(assemble(volume).unwrap().open(&thread, 8).unwrap())
    }

    fn send(&mut self, tag: u64, request: Request<Plain>) {
        self.channel.submit(Io { tag, request });
        self.channel.kick();
    }

    fn write(&self, block: u64, fill: u8, durable: bool) -> Request<Plain> {
        self.write_blocks(block, 1, fill, durable)
    }

    fn write_blocks(&self, block: u64, count: u64, fill: u8, durable: bool) -> Request<Plain> {
        let mut from = self.bench.memory.take((count * BLOCK_BYTES) as usize).unwrap();
        from.bytes_mut().fill(fill);
        let extent = Extent::between(block * BLOCK_BYTES, (block + count) * BLOCK_BYTES);
        Request::Write { extent, from: GuestSlice::from_buffer(from), durable }
    }

    fn poll(&mut self) -> Vec<Done<Plain>> {
        let mut done = Vec::new();
        self.channel.kick();
        self.channel.poll(&mut done);
        done
    }

    fn run(&mut self, request: Request<Plain>) -> Result<(), IoError> {
        self.send(99, request);
        loop {
            if let Some(done) = self.poll().pop() {
                return done.result;
            }
        }
    }
}

#[test]
fn a_durable_write_without_room_does_not_end_all_flushes() {
    // There, writes of two blocks allocate their space at once, and bypass the log.
    let mut used = Used::on({
        let fs = SimFs::new(1);
        fs.set_fills_whole(true);
        fs
    });
    // Room for two blocks beside the volume's present size.
    let taken = describe_on(&used.fs, path()).unwrap().space.committed_bytes;
    used.fs.set_capacity(Some(taken + 2 * BLOCK_BYTES));
    let first = used.write_blocks(0, 2, 1, true);
    assert_eq!(used.run(first), Ok(()));
    let second = used.write_blocks(2, 2, 2, true);
    assert_eq!(used.run(second), Err(IoError::NoSpace));
    assert_eq!(used.run(Request::Flush), Ok(()));
    used.fs.set_capacity(None);
    let second = used.write_blocks(2, 2, 2, true);
    assert_eq!(used.run(second), Ok(()), "there is room again");
}

/// A channel is dropped with a flush in flight: nobody learns its result, and another flush does
/// not rely on it.
#[test]
fn a_flush_does_not_rely_on_one_that_was_abandoned() {
    for seed in 0..40 {
        let Used { bench, fs, channel } = Used::new(seed);
        drop(channel);
        let disk =
            assemble(open_on(&fs, path(), &options(ENCRYPTED.protection(&bench.kek))).unwrap()).unwrap();
        let open = |number| {
            let reactor = fs.reactor(seed * 2 + number).unwrap();
            let thread = Thread { pool: bench.pool.clone(), reactor: Rc::new(reactor) };
            (disk.open(&thread, 8).unwrap(), thread)
        };
        // The event loop outlives its channel, and no longer runs.
        let (mut first, _loop) = open(0);
        let (mut second, _) = open(1);
        let mut from = bench.memory.take(BLOCK_BYTES as usize).unwrap();
        from.bytes_mut().fill(7);
        let extent = Extent::between(0, BLOCK_BYTES);
        let write = Request::Write { extent, from: GuestSlice::from_buffer(from), durable: false };
        let poll = |channel: &mut dyn Channel<Plain>| {
            let mut done = Vec::new();
            channel.kick();
            channel.poll(&mut done);
            done.pop().map(|done: Done<Plain>| done.result)
        };
        first.submit(Io { tag: 1, request: write });
        while poll(&mut *first).is_none() {}
        first.submit(Io { tag: 2, request: Request::Flush });
        first.kick();
        let mut first = Some(first);
        // It is dropped before the other one flushes, or while that one waits for it.
        if seed % 2 == 0 {
            first = None;
        }
        second.submit(Io { tag: 3, request: Request::Flush });
        let early = poll(&mut *second);
        assert!(first.is_none() || early.is_none(), "it waits for the one that has the file");
        drop(first);
        let result = early.or_else(|| {
            loop {
                if let Some(result) = poll(&mut *second) {
                    break Some(result);
                }
            }
        });
        assert_eq!(result, Some(Ok(())));
        let image = fs.cut(seed);
        let volume = open_on(&image, path(), &options(ENCRYPTED.protection(&bench.kek))).unwrap();
        let content = read_all(&bench, &image, seed, &*assemble(volume).unwrap()).unwrap();
        assert!(content[..BLOCK_BYTES as usize].iter().all(|byte| *byte == 7), "seed {seed}");
    }
}

/// The kernel reports a failure once. The other flush's success must not be trusted.
#[test]
fn of_two_flushes_at_a_time_none_succeeds_if_one_fails() {
    let mut failed = 0;
    for seed in 0..100 {
        let mut used = Used::new(seed);
        let write = used.write(0, 1, false);
        used.run(write).unwrap();
        used.fs.set_faults(Faults { sync_error_one_in: 2, ..Faults::default() });
        used.channel.submit(Io { tag: 1, request: Request::Flush });
        used.channel.submit(Io { tag: 2, request: Request::Flush });
        let mut ended = Vec::new();
        while ended.len() < 2 {
            ended.extend(used.poll().into_iter().map(|done| done.result));
        }
        failed += usize::from(ended != [Ok(()); 2]);
        assert!(ended == [Ok(()); 2] || ended.iter().all(Result::is_err), "seed {seed}: {ended:?}");
    }
    assert!((1..100).contains(&failed), "{failed}");
}

#[test]
fn a_device_that_hangs_ends_everything_once_it_goes_on() {
    let (mut used, mut other) = (Used::new(1), Used::new(2));
    let before = used.write(3, 1, true);
    used.run(before).unwrap();
    used.fs.set_hung(true);
    for block in 0..4 {
        let write = used.write(block, 9, false);
        used.send(block, write);
    }
    used.send(4, Request::Flush);
    for _ in 0..100 {
        assert!(used.poll().is_empty());
        let write = other.write(1, 1, true);
        other.run(write).unwrap();
    }
    // Power is cut while it hangs: durable data is there, and any part of the rest.
    for seed in 0..200 {
        let fs = used.fs.cut(seed);
        let volume = open_on(&fs, path(), &options(ENCRYPTED.protection(&used.bench.kek))).unwrap();
        let content = read_all(&used.bench, &fs, seed, &*assemble(volume).unwrap()).unwrap();
        let block = &content[3 * BLOCK_BYTES as usize..4 * BLOCK_BYTES as usize];
        assert!(block.chunks(512).all(|sector| [[1; 512], [9; 512]].iter().any(|fill| fill == sector)));
    }
    used.fs.set_hung(false);
    let mut ended: Vec<u64> = Vec::new();
    while ended.len() < 5 {
        ended.extend(used.poll().into_iter().map(|done| {
            assert_eq!(done.result, Ok(()));
            done.tag
        }));
    }
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4]);
}

#[test]
fn a_device_that_vanishes_and_comes_back_has_what_was_flushed() {
    for seed in 0..50 {
        let mut used = Used::new(seed);
        for (block, durable) in [(0, true), (1, false)] {
            let write = used.write(block, 7, durable);
            used.run(write).unwrap();
        }
        let write = used.write(2, 8, false);
        used.send(2, write);
        used.fs.vanish();
        let end = loop {
            if let Some(done) = used.poll().pop() {
                break done.result;
            }
        };
        assert!([Ok(()), Err(EIO)].contains(&end), "{end:?}");
        // The record of a write that has failed could not be erased either.
        let failed = if end.is_err() { IoError::FlushFailed } else { EIO };
        assert_eq!(used.run(Request::Flush), Err(failed));
        assert!(Used::open(&used.bench, &used.fs).is_err());
        used.fs.come_back(seed);
        assert_eq!(used.run(Request::Flush), Err(IoError::FlushFailed), "until it is opened anew");
        used.channel = Used::open(&used.bench, &used.fs).unwrap();
        let read = used.bench.memory.take(BLOCK_BYTES as usize).unwrap();
        let extent = Extent::between(0, BLOCK_BYTES);
        used.send(3, Request::Read { extent, into: GuestSlice::from_buffer(read) });
        let done = loop {
            if let Some(done) = used.poll().pop() {
                break done;
            }
        };
        let buffer = done.memory.and_then(GuestSlice::into_buffer).unwrap();
        assert!(done.result.is_ok() && buffer.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(used.run(Request::Flush), Ok(()));
    }
}

/// Silent errors of a device go undetected without tags, because XTS detects nothing.
#[test]
fn silent_corruption_and_misdirected_writes_go_unnoticed_without_tags() {
    let corrupt = Faults { corrupt_one_in: 1, ..Faults::default() };
    let misdirect = Faults { misdirect_one_in: 1, ..Faults::default() };
    for faults in [corrupt, misdirect] {
        let mut used = Used::new(1);
        let write = used.write(5, 1, true);
        used.run(write).unwrap();
        used.fs.set_faults(faults);
        let write = used.write(5, 2, true);
        assert_eq!(used.run(write), Ok(()));
        used.fs.set_faults(Faults::default());
        drop(used.channel);
        let volume = open_on(&used.fs, path(), &options(ENCRYPTED.protection(&used.bench.kek))).unwrap();
        let content = read_all(&used.bench, &used.fs, 1, &*assemble(volume).unwrap()).unwrap();
        let block = &content[5 * BLOCK_BYTES as usize..6 * BLOCK_BYTES as usize];
        assert!(block.iter().any(|byte| *byte != 2), "{faults:?}");
    }
}

/// Changes of names: after any failure the volume is in its old or new state, and leftovers can be
/// deleted.
#[test]
fn creating_growing_and_deleting_on_a_failing_device() {
    let bench = Bench::new();
    let protection = ENCRYPTED.protection(&bench.kek);
    let (size, larger) = (VolumeSize::new(SIZE_BYTES).unwrap(), VolumeSize::new(2 * SIZE_BYTES).unwrap());
    let faults =
        Faults { name_error_one_in: 30, write_error_one_in: 30, sync_error_one_in: 30, ..Faults::default() };
    let typed = |error: &DatastoreError| {
        assert!(matches!(error, DatastoreError::System { errno: Errno::IO, .. }), "{error}");
    };
    let account = Account::new(Oracle::new(SIZE_BYTES), Allowed::absent());
    let (mut failures, known) = (0, Knowledge::new(&account));
    for seed in 0..300 {
        let fs = SimFs::new(seed);
        let look = |absent: bool, sizes: &[VolumeSize], what: &str| {
            fs.set_faults(Faults::default());
            for cut_seed in 0..3 {
                let allowed = Allowed {
                    names: vec![NAMES[0]],
                    absent,
                    remains: what == "delete",
                    sizes: sizes.iter().map(|size| size.bytes()).collect(),
                };
                let fs = fs.cut(cut_seed);
                if let Err(wrong) = check_image(&bench, &fs, cut_seed, ENCRYPTED, &allowed, &known) {
                    panic!("{what}, seed {seed}, cut {cut_seed}: {wrong}");
                }
            }
            fs.set_faults(faults);
        };
        fs.set_faults(faults);
        let created = create_on(&fs, path(), &bench.create_options(ENCRYPTED, SIZE_BYTES));
        failures += usize::from(created.is_err());
        created.as_ref().err().iter().for_each(|error| typed(error));
        look(created.is_err(), &[size], "create");
        let Ok(mut volume) = open_on(&fs, path(), &options(protection)) else { continue };
        let grown = volume.grow(larger, protection);
        failures += usize::from(grown.is_err());
        grown.as_ref().err().iter().for_each(|error| typed(error));
        drop(volume);
        let sizes = if grown.is_ok() { vec![larger] } else { vec![size, larger] };
        look(created.is_err(), &sizes, "grow");
        let deleted = delete_on(&fs, path(), Duration::ZERO);
        failures += usize::from(deleted.is_err());
        deleted.as_ref().err().iter().for_each(|error| typed(error));
        if deleted.is_err() {
            look(true, &sizes, "delete");
        } else {
            look(true, &[], "delete");
        }
    }
    println!("{failures} of some 900 operations failed");
}
