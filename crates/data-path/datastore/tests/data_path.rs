//! A file volume's blocks: writes, zeroings and discards, the resulting file, and failures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

#[path = "support/interposed.rs"]
mod interposed;
mod support;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use strongroom_datastore::file::*;
use strongroom_io::*;
use strongroom_memory::{Buffer, BufferPool};
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, VolumeSize};

use interposed::{Between, Fate, Interposed};
use support::Destaging;

const SIZE_BYTES: u64 = 16 << 20;

fn block(number: u64, count: u64) -> Extent {
    Extent::new(number * BLOCK_BYTES, count * BLOCK_BYTES).unwrap()
}

/// The kernel releases a dropped ring's files, and their locks, some milliseconds later.
const LOCK_WAIT: Duration = Duration::from_secs(60);

fn options(access: Access) -> OpenOptions<'static> {
    OpenOptions { protection: Protection::Unencrypted, access, lock_wait: LOCK_WAIT, least_generation: 0 }
}

fn volume_in(datastore: &Path, provisioning: Provisioning) -> PathBuf {
    let path = datastore.join("vm1");
    let size = VolumeSize::new(SIZE_BYTES).unwrap();
    create(
        &path,
        &CreateOptions {
            size,
            provisioning,
            protection: Protection::Unencrypted,
            log_bytes: None,
            integrity: None,
        },
    )
    .unwrap();
    path
}

/// The two file systems that every machine has, that of the build directory and tmpfs, and those
/// that `scripts/test-file-systems` mounts: the environment has their paths, separated by colons.
fn datastores() -> Vec<tempfile::TempDir> {
    let more = std::env::var("STRONGROOM_TEST_DATASTORES").unwrap_or_default();
    let places = [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"].into_iter().chain(more.split(':'));
    places.filter(|place| !place.is_empty()).map(|place| tempfile::tempdir_in(place).unwrap()).collect()
}

fn allocated_bytes(volume: &Path) -> u64 {
    let files = std::fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.filter(|file| file.len() >= SIZE_BYTES).map(|file| file.blocks() * 512).sum()
}

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// One queue, for single requests or many at once.
struct Queue {
    ring: Ring,
    thread: Thread,
    channel: Box<dyn Channel<Sealed>>,
    next: u64,
}

impl Queue {
    fn new(disk: &FileDisk) -> Self {
        Self::with_reactor(disk, |ring| Rc::new(ring.clone()))
    }

    fn with_reactor(disk: &FileDisk, reactor: impl FnOnce(&Ring) -> Rc<dyn Reactor>) -> Self {
        let ring = ring().unwrap();
        let thread = Thread { pool: BufferPool::new(32 << 20).unwrap(), reactor: reactor(&ring) };
        let channel = disk.open(&thread, 64).unwrap();
        Self { ring, thread, channel, next: 0 }
    }

    fn submit(&mut self, request: Request<Sealed>) -> u64 {
        self.next += 1;
        self.channel.submit(Io { tag: self.next, request });
        self.next
    }

    fn finish(&mut self, count: usize) -> HashMap<u64, Done<Sealed>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let (mut ended, mut done) = (HashMap::new(), Vec::new());
        self.channel.kick();
        while ended.len() < count {
            self.channel.poll(&mut done);
            if done.is_empty() {
                assert!(Instant::now() < deadline, "requests are lost");
                self.ring.wait(Some(Duration::from_secs(1))).unwrap();
            }
            for done in done.drain(..) {
                assert!(ended.insert(done.tag, done).is_none(), "a request ended twice");
            }
        }
        ended
    }

    fn one(&mut self, request: Request<Sealed>) -> Done<Sealed> {
        let tag = self.submit(request);
        self.finish(1).remove(&tag).unwrap()
    }

    fn filled(&self, bytes: u64, fill: u8) -> Buffer {
        let mut buffer = self.thread.pool.take(bytes as usize).unwrap();
        buffer.bytes_mut().fill(fill);
        buffer.seals_mut().fill(Some(KeyEpoch::FIRST));
        buffer
    }

    fn write(&mut self, extent: Extent, fill: u8, durable: bool) -> Result<(), IoError> {
        let from = self.filled(extent.length(), fill);
        self.one(Request::Write { extent, from, durable }).result
    }

    fn read(&mut self, extent: Extent) -> Buffer {
        let into = self.filled(extent.length(), 0xEE);
        let done = self.one(Request::Read { extent, into });
        done.result.unwrap();
        done.memory.unwrap()
    }

    /// The content of each block of the extent: its fill, or `None`.
    fn fills(&mut self, extent: Extent) -> Vec<Option<u8>> {
        let buffer = self.read(extent);
        let fill = |(block, seal): (&[u8], &Option<KeyEpoch>)| {
            assert!(block.iter().all(|byte| *byte == block[0]));
            assert_eq!(seal.is_none(), block[0] == 0);
            seal.map(|_| block[0])
        };
        buffer.bytes().chunks(BLOCK_BYTES as usize).zip(buffer.seals()).map(fill).collect()
    }
}

#[test]
fn blocks_are_there_after_reopening_and_holes_are_nothing() {
    for datastore in datastores() {
        let path = volume_in(datastore.path(), Provisioning::Thin);
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        let mut queue = Queue::new(&opened.disk);
        queue.write(block(3, 2), 7, false).unwrap();
        queue.write(block(9, 1), 8, true).unwrap();
        queue.one(Request::Flush).result.unwrap();
        drop((queue, opened));
        let opened = open(&path, &options(Access::ReadOnly)).unwrap();
        let mut queue = Queue::new(&opened.disk);
        let (none, seven, eight) = (None, Some(7), Some(8));
        assert_eq!(queue.fills(block(2, 8)), [none, seven, seven, none, none, none, none, eight]);
        assert_eq!(queue.write(block(0, 1), 1, false), Err(IoError::ReadOnly));
        assert_eq!(queue.one(Request::Discard { extent: block(3, 1) }).result, Err(IoError::ReadOnly));
    }
}

#[test]
fn a_thin_volume_gives_space_back_and_a_thick_one_keeps_it() {
    for datastore in datastores() {
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let path = volume_in(datastore.path(), provisioning);
            let thin = provisioning == Provisioning::Thin;
            let opened = open(&path, &options(Access::ReadWrite)).unwrap();
            assert_eq!(opened.disk.limits().discards, thin);
            let mut queue = Queue::new(&opened.disk);
            queue.write(block(0, 256), 5, false).unwrap();
            queue.one(Request::Flush).result.unwrap();
            let full = allocated_bytes(&path);
            assert!(full >= if thin { 1 << 20 } else { SIZE_BYTES });

            queue.one(Request::Discard { extent: block(0, 64) }).result.unwrap();
            let discarded = queue.fills(block(0, 65));
            assert!(discarded[..64].iter().all(|fill| *fill == if thin { None } else { Some(5) }));
            assert_eq!(discarded[64], Some(5));

            let zero = |extent, may_unmap, durable| Request::WriteZeroes { extent, may_unmap, durable };
            queue.one(zero(block(100, 10), false, false)).result.unwrap();
            queue.one(zero(block(128, 128), true, true)).result.unwrap();
            assert!(queue.fills(block(100, 10)).iter().all(Option::is_none));
            assert!(queue.fills(block(128, 128)).iter().all(Option::is_none));
            assert_eq!(queue.fills(block(99, 1)), [Some(5)]);
            queue.one(Request::Flush).result.unwrap();
            let after = allocated_bytes(&path);
            if thin {
                assert!(after <= full - (64 + 128) * BLOCK_BYTES, "{after} of {full}");
            } else {
                assert!(after >= SIZE_BYTES);
            }
            drop((queue, opened));
            delete(&path, LOCK_WAIT).unwrap();
        }
    }
}

#[test]
fn the_file_systems_map_is_exact() {
    for datastore in datastores() {
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let path = volume_in(datastore.path(), provisioning);
            let opened = open(&path, &options(Access::ReadWrite)).unwrap();
            let destaging = Destaging::of(&opened.disk, ring);
            let mut queue = Queue::new(&opened.disk);
            // Every third run of blocks, in an order that is hard on an allocator.
            let mut written = vec![false; (SIZE_BYTES / BLOCK_BYTES) as usize];
            for step in 0..300_u64 {
                let number = step * 7919 % (SIZE_BYTES / BLOCK_BYTES - 3);
                queue.write(block(number, 1 + step % 3), 1, false).unwrap();
                written[number as usize..][..1 + (step % 3) as usize].fill(true);
            }
            let hole = if provisioning == Provisioning::Thin { Allocation::Hole } else { Allocation::Zero };
            let mut found = Vec::new();
            let mut end = 0;
            let whole = Extent::between(0, SIZE_BYTES);
            opened
                .disk
                .allocation(whole, &mut |extent, allocation| {
                    assert_eq!(extent.offset(), end, "runs follow each other");
                    assert!(allocation == Allocation::Data || allocation == hole);
                    end = extent.end();
                    let blocks = (extent.length() / BLOCK_BYTES) as usize;
                    found.extend(std::iter::repeat_n(allocation == Allocation::Data, blocks));
                    true
                })
                .unwrap();
            assert_eq!(end, SIZE_BYTES);
            assert!(found == written, "{provisioning:?} in {:?}", datastore.path());
            drop((queue, destaging, opened));
            delete(&path, LOCK_WAIT).unwrap();
        }
    }
}

/// The log of a new volume is written once ahead of the records, so that they change no metadata of
/// the file system.
#[test]
fn a_new_log_is_written_ahead_of_the_records() {
    const SEGMENT_BLOCKS: u64 = 16;
    for datastore in datastores() {
        let path = volume_in(datastore.path(), Provisioning::Thin);
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        let log = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let log = log.into_iter().find(|file| file.to_string_lossy().contains("/log-")).unwrap();
        let written_segments = || {
            let hole = rustix::fs::seek(File::open(&log).unwrap(), rustix::fs::SeekFrom::Hole(0)).unwrap();
            (hole / BLOCK_BYTES - 2) / SEGMENT_BLOCKS
        };
        assert_eq!(written_segments(), 1);
        let destaging = Destaging::of(&opened.disk, ring);
        let mut queue = Queue::new(&opened.disk);
        // Records of one block each take two: eight fill a segment.
        for number in 0..20 {
            queue.write(block(3 * number, 1), 1 + number as u8, false).unwrap();
            let expected = 3 + number / 8;
            let begun = Instant::now();
            while written_segments() < expected {
                assert!(begun.elapsed() < LOCK_WAIT, "{} of {expected} segments", written_segments());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        for number in 0..20 {
            assert_eq!(queue.fills(block(3 * number, 2)), [Some(1 + number as u8), None]);
        }
        drop((queue, destaging, opened));
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        let mut queue = Queue::new(&opened.disk);
        for number in 0..20 {
            assert_eq!(queue.fills(block(3 * number, 2)), [Some(1 + number as u8), None]);
        }
        drop((queue, opened));
        delete(&path, LOCK_WAIT).unwrap();
    }
}

#[test]
fn requests_beyond_the_limits_come_back_typed_and_change_nothing() {
    let datastore = tempfile::tempdir().unwrap();
    let path = volume_in(datastore.path(), Provisioning::Thin);
    let opened = open(&path, &options(Access::ReadWrite)).unwrap();
    let mut queue = Queue::new(&opened.disk);
    let end = SIZE_BYTES / BLOCK_BYTES;
    assert!(matches!(queue.write(block(end, 1), 1, false), Err(IoError::OutOfRange { .. })));
    assert!(matches!(
        queue.write(Extent::new(512, 4096).unwrap(), 1, false),
        Err(IoError::Misaligned { .. })
    ));
    let from = queue.filled(4096, 1);
    let wrong = queue.one(Request::Write { extent: block(0, 2), from, durable: false });
    assert!(matches!(wrong.result, Err(IoError::Misaligned { .. })) && wrong.memory.is_some());
    let into = queue.filled(2 << 20, 1);
    let long = queue.one(Request::Read { extent: block(0, 512), into });
    assert!(matches!(long.result, Err(IoError::TooLong { .. })) && long.memory.is_some());
    let zeroes = Request::WriteZeroes { extent: block(end - 1, 2), may_unmap: true, durable: false };
    assert!(matches!(queue.one(zeroes).result, Err(IoError::OutOfRange { .. })));
    assert_eq!(queue.one(Request::Discard { extent: Extent::new(1, 4000).unwrap() }).result, Ok(()));
    assert!(allocated_bytes(&path) == 0);
}

#[test]
fn a_layer_that_was_cut_short_meanwhile_is_a_short_transfer() {
    let datastore = tempfile::tempdir().unwrap();
    let path = volume_in(datastore.path(), Provisioning::Thin);
    let opened = open(&path, &options(Access::ReadWrite)).unwrap();
    let mut queue = Queue::new(&opened.disk);
    let layer = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let layer = layer.into_iter().find(|path| path.to_str().unwrap().contains("layer-")).unwrap();
    std::fs::File::options().write(true).open(layer).unwrap().set_len(SIZE_BYTES / 2 + 4096).unwrap();
    let into = queue.filled(8192, 0);
    let done = queue.one(Request::Read { extent: block(SIZE_BYTES / 2 / BLOCK_BYTES, 2), into });
    assert_eq!(done.result, Err(IoError::Short { done_bytes: 4096, wanted_bytes: 8192 }));
}

/// Fails a sync when it is told to.
struct FailsSync {
    fail_next: Rc<Cell<bool>>,
    error: IoError,
}

impl Between for FailsSync {
    fn submits(&mut self, io: FileIo) -> Fate {
        let syncs = matches!(
            io.operation,
            FileOperation::SyncData | FileOperation::Sync | FileOperation::Write { durable: true, .. }
        );
        match syncs && self.fail_next.replace(false) {
            true => Fate::Ends(io, Err(self.error)),
            false => Fate::Done(io),
        }
    }
}

/// A reactor whose next sync fails with `error`, when it is told to.
fn faulty(ring: &Ring, fail_next: &Rc<Cell<bool>>, error: IoError) -> Rc<dyn Reactor> {
    let fail_next = Rc::clone(fail_next);
    let make = move || FailsSync { fail_next: Rc::clone(&fail_next), error };
    Rc::new(Interposed { below: ring.clone(), make })
}

#[test]
fn after_a_failed_flush_none_succeeds_on_any_queue_until_reopening() {
    let datastore = tempfile::tempdir().unwrap();
    let path = volume_in(datastore.path(), Provisioning::Thin);
    for durable_write in [false, true] {
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        let fail_next_sync = Rc::new(Cell::new(false));
        let mut faulty = Queue::with_reactor(&opened.disk, |ring| {
            faulty(ring, &fail_next_sync, IoError::Device(Errno(5)))
        });
        let mut healthy = Queue::new(&opened.disk);
        faulty.write(block(0, 1), 1, false).unwrap();
        faulty.one(Request::Flush).result.unwrap();
        // A flush with nothing to sync cannot fail.
        faulty.write(block(0, 1), 1, false).unwrap();
        fail_next_sync.set(true);
        let failed = if durable_write {
            faulty.write(block(1, 1), 1, true)
        } else {
            faulty.one(Request::Flush).result
        };
        assert_eq!(failed, Err(IoError::Device(Errno(5))));
        for queue in [&mut faulty, &mut healthy] {
            assert_eq!(queue.one(Request::Flush).result, Err(IoError::FlushFailed));
            assert_eq!(queue.write(block(2, 1), 1, true), Err(IoError::FlushFailed));
            let zeroes = Request::WriteZeroes { extent: block(2, 1), may_unmap: true, durable: true };
            assert_eq!(queue.one(zeroes).result, Err(IoError::FlushFailed));
            queue.write(block(2, 1), 1, false).unwrap();
            queue.fills(block(0, 4));
        }
        drop((faulty, healthy, opened));
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        Queue::new(&opened.disk).one(Request::Flush).result.unwrap();
    }
}

/// An fsync that finds no room has lost the data that it should have made durable, whether a
/// channel or the destager sent it. (A durable write that finds none has lost nothing.)
#[test]
fn a_destagers_fsync_that_fails_for_want_of_room_ends_all_flushes() {
    let datastore = tempfile::tempdir().unwrap();
    let path = volume_in(datastore.path(), Provisioning::Thin);
    let opened = open(&path, &options(Access::ReadWrite)).unwrap();
    let mut queue = Queue::new(&opened.disk);
    queue.write(block(0, 1), 1, false).unwrap();
    let ring = ring().unwrap();
    let reactor = faulty(&ring, &Rc::new(Cell::new(true)), IoError::NoSpace);
    let thread = Thread { pool: BufferPool::new(32 << 20).unwrap(), reactor };
    let mut destager = opened.disk.destager(&thread).unwrap().unwrap();
    opened.disk.end_destaging(End::Empty);
    destager.poll();
    while destager.ended().is_none() {
        ring.wait(None).unwrap();
        destager.poll();
    }
    assert_eq!(destager.ended(), Some(Err(IoError::NoSpace)));
    assert_eq!(queue.one(Request::Flush).result, Err(IoError::FlushFailed));
}

#[test]
fn many_requests_on_two_queues_all_come_back() {
    for datastore in datastores() {
        let path = volume_in(datastore.path(), Provisioning::Thin);
        let opened = open(&path, &options(Access::ReadWrite)).unwrap();
        let _destaging = Destaging::of(&opened.disk, ring);
        std::thread::scope(|scope| {
            for half in 0..2_u64 {
                let disk = &opened.disk;
                scope.spawn(move || {
                    let mut queue = Queue::new(disk);
                    let first = half * SIZE_BYTES / BLOCK_BYTES / 2;
                    for round in 1..20_u8 {
                        for number in 0..64 {
                            let from = queue.filled(BLOCK_BYTES, round);
                            let extent = block(first + number * 5, 1);
                            queue.submit(Request::Write { extent, from, durable: false });
                        }
                        assert!(
                            queue
                                .finish(64)
                                .values()
                                .all(|done| done.result.is_ok() && done.memory.is_some())
                        );
                    }
                    for number in 0..64 {
                        assert_eq!(queue.fills(block(first + number * 5, 2)), [Some(19), None]);
                    }
                });
            }
        });
    }
}

/// The headers of the log's records are gone, so only the index says what the log holds.
#[test]
fn a_successor_with_the_index_of_the_log_does_not_read_the_log() {
    for datastore in datastores() {
        let path = volume_in(datastore.path(), Provisioning::Thin);
        let (_head, layer, _) = open_apart(&path, &options(Access::ReadWrite)).unwrap();
        let mut handed_over = layer.try_clone().unwrap();
        let disk = FileDisk::new(layer).unwrap();
        let mut queue = Queue::new(&disk);
        queue.write(block(3, 2), 7, false).unwrap();
        queue.write(block(9, 1), 8, false).unwrap();
        queue.write(block(4, 1), 9, false).unwrap();
        queue.one(Request::Discard { extent: block(9, 1) }).result.unwrap();
        drop(queue);
        handed_over.set_log_index(disk.log_index());
        let facts = handed_over.facts.log.as_mut().unwrap();
        facts.handed_over = true;
        assert!(facts.indexed);
        let log = std::fs::File::from(handed_over.log.as_ref().unwrap().share().unwrap());
        let mut erased = 0;
        for at in (2 * BLOCK_BYTES..log.metadata().unwrap().len()).step_by(BLOCK_BYTES as usize) {
            let mut first = AlignedBlock([0; BLOCK_BYTES as usize]);
            log.read_exact_at(&mut first.0, at).unwrap();
            if first.0.starts_with(b"STRLOGRE") {
                log.write_all_at(&AlignedBlock([0; BLOCK_BYTES as usize]).0, at).unwrap();
                erased += 1;
            }
        }
        assert!(erased >= 3, "{erased} records");
        let (none, seven, nine) = (None, Some(7), Some(9));
        for (index, fills) in [(true, [none, seven, nine, none]), (false, [none; 4])] {
            let mut layer = handed_over.try_clone().unwrap();
            if !index {
                layer.drop_log_indexes();
            }
            let mut queue = Queue::new(&FileDisk::new(layer).unwrap());
            assert_eq!([queue.fills(block(2, 3)), queue.fills(block(9, 1))].concat(), fills, "{index}");
        }
    }
}

#[repr(align(4096))]
struct AlignedBlock([u8; BLOCK_BYTES as usize]);

#[test]
fn a_grown_volume_is_used_by_open_channels() {
    let datastore = tempfile::tempdir().unwrap();
    let path = volume_in(datastore.path(), Provisioning::Thin);
    let mut opened = open(&path, &options(Access::ReadWrite)).unwrap();
    let mut queue = Queue::new(&opened.disk);
    let beyond = block(SIZE_BYTES / BLOCK_BYTES, 1);
    assert!(queue.write(beyond, 1, false).is_err());
    opened.grow(VolumeSize::new(2 * SIZE_BYTES).unwrap(), Protection::Unencrypted).unwrap();
    queue.write(beyond, 1, false).unwrap();
    assert_eq!(queue.fills(beyond), [Some(1)]);
}
