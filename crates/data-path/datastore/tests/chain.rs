//! A chain of layers: the suite that every disk must pass, and reads through the layers, compared
//! with an oracle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::chain::{ChainDisk, LowerLayer};
use strongroom_datastore::file::discards::{DiscardKeys, Discards, DiscardsFacts, file_bytes};
use strongroom_datastore::file::*;
use strongroom_datastore::memory::MemoryDisk;
use strongroom_io::conformance::Conformance;
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Request, Sealed, Thread};
use strongroom_memory::BufferPool;
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, LayerId, VolumeId, VolumeSize};

use support::{Destaged, Destaging};

const BLOCK: usize = BLOCK_BYTES as usize;

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

fn epoch(number: u32) -> KeyEpoch {
    KeyEpoch::new(number).unwrap()
}

/// Opens a sidecar, and creates an empty one if there is none.
fn discards(path: &Path, layer_bytes: u64) -> Arc<Discards> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(file_bytes(layer_bytes)).unwrap();
    let (volume, layer) = (VolumeId::from_bytes([1; 16]), LayerId::from_bytes([2; 16]));
    let facts = DiscardsFacts { volume, layer, is_durable: false };
    let keys = DiscardKeys::derive(&Vec::new()).unwrap();
    Arc::new(Discards::open(file.into(), facts, keys, layer_bytes).unwrap())
}

/// The channel of one queue, with its thread's event loop.
struct Queue {
    channel: Box<dyn Channel<Sealed>>,
    ring: Ring,
    pool: BufferPool,
}

impl Queue {
    fn new(disk: &dyn Disk<Sealed>) -> Self {
        let ring = ring().unwrap();
        let pool = BufferPool::new(32 << 20).unwrap();
        let thread = Thread { pool: pool.clone(), reactor: Rc::new(ring.clone()) };
        Self { channel: disk.open(&thread, 8).unwrap(), ring, pool }
    }

    fn run(&mut self, request: Request<Sealed>) -> Done<Sealed> {
        self.channel.submit(Io { tag: 1, request });
        self.channel.kick();
        let mut done = Vec::new();
        loop {
            self.channel.poll(&mut done);
            match done.pop() {
                Some(done) => return done,
                None => self.ring.wait(None).unwrap(),
            };
        }
    }

    fn write(&mut self, first: u64, blocks: &[u8], seal: KeyEpoch) {
        let mut from = self.pool.take(blocks.len() * BLOCK).unwrap();
        let (bytes, seals) = from.parts_mut();
        bytes.chunks_mut(BLOCK).zip(blocks).for_each(|(block, fill)| block.fill(*fill));
        seals.fill(Some(seal));
        let extent = Extent::between(first * BLOCK_BYTES, (first + blocks.len() as u64) * BLOCK_BYTES);
        self.run(Request::Write { extent, from, durable: false }).result.unwrap();
    }

    /// The first byte of each block, and its seal.
    fn read(&mut self, first: u64, blocks: u64) -> Result<Vec<(u8, Option<KeyEpoch>)>, IoError> {
        let into = self.pool.take(blocks as usize * BLOCK).unwrap();
        let extent = Extent::between(first * BLOCK_BYTES, (first + blocks) * BLOCK_BYTES);
        let Done { result, memory, .. } = self.run(Request::Read { extent, into });
        result?;
        let memory = memory.unwrap();
        let blocks = memory.bytes().chunks(BLOCK).zip(memory.seals());
        Ok(blocks
            .map(|(block, seal)| {
                assert!(block.iter().all(|byte| *byte == block[0]));
                (if seal.is_some() { block[0] } else { 0 }, *seal)
            })
            .collect())
    }
}

fn extent(blocks: std::ops::Range<u64>) -> Extent {
    Extent::between(blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES)
}

/// Volumes whose lower layer is full of blocks that the guest has discarded: they read as zeroes,
/// as the suite expects of a new disk.
fn passes(provisioning: Provisioning) {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let protection = Protection::Unencrypted;
        create(&path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None })
            .unwrap();
        let options = OpenOptions {
            protection,
            access: Access::ReadWrite,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let top = open(&path, &options).unwrap().disk;
        let bytes = top.limits().size_bytes;
        let lower = MemoryDisk::new(size, epoch(9));
        let mut queue = Queue::new(&lower);
        (0..bytes / BLOCK_BYTES).for_each(|block| queue.write(block, &[0xaa], epoch(9)));
        let lower = LowerLayer { blocks: Arc::new(lower), discards: None, is_merged_into: false };
        let disk =
            ChainDisk::new(Arc::clone(&top) as _, discards(&path.join("discards"), bytes), vec![lower]);
        let request =
            Request::WriteZeroes { extent: Extent::between(0, bytes), may_unmap: true, durable: false };
        Queue::new(&disk).run(request).result.unwrap();
        Destaged { disk, destaging: Destaging::of(&top, ring) }
    });
    if let Err(failure) = suite.epoch(KeyEpoch::CLEAR).event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn a_chain_with_a_thin_top_passes() {
    passes(Provisioning::Thin);
}

#[test]
fn a_chain_with_a_thick_top_passes() {
    passes(Provisioning::Thick);
}

/// A generator of small numbers, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Four layers, the lower ones shorter, each with its own blocks, zeroings and discards. The
/// sidecars are reread.
#[test]
fn what_is_read_is_what_was_last_written_in_any_layer() {
    const BLOCKS: u64 = 700;
    for seed in 0..4 {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut random = Random(seed);
        let mut oracle = vec![(0, None); BLOCKS as usize];
        let mut layers: Vec<(Arc<MemoryDisk>, u64)> = Vec::new();
        let sidecar = |level: usize, bytes| discards(&place.path().join(level.to_string()), bytes);
        let chain = |layers: &[(Arc<MemoryDisk>, u64)]| {
            let (top, lower) = layers.split_last().unwrap();
            let lower = lower.iter().enumerate().rev().map(|(level, (disk, bytes))| LowerLayer {
                blocks: Arc::clone(disk) as _,
                discards: (level > 0).then(|| sidecar(level, *bytes)),
                // Such a layer is read in another way, to the same result.
                is_merged_into: level as u64 % 2 == seed % 2,
            });
            ChainDisk::new(Arc::clone(&top.0) as _, sidecar(lower.len(), top.1), lower.collect())
        };
        for level in 0..4 {
            let blocks = BLOCKS - 3 * 50 + level * 50;
            let bytes = blocks * BLOCK_BYTES;
            let own = epoch(level as u32 + 1);
            layers.push((Arc::new(MemoryDisk::new(VolumeSize::new(bytes).unwrap(), own)), bytes));
            let disk = chain(&layers);
            let mut queue = Queue::new(&disk);
            for _ in 0..60 {
                let first = random.below(blocks);
                let end = (first + 1 + random.below(40)).min(blocks);
                let place = first as usize..end as usize;
                match random.below(4) {
                    0 => {
                        queue.run(Request::Discard { extent: extent(first..end) }).result.unwrap();
                        oracle[place].fill((0, None));
                    }
                    1 => {
                        let extent = extent(first..end);
                        let request = Request::WriteZeroes { extent, may_unmap: true, durable: true };
                        queue.run(request).result.unwrap();
                        oracle[place].fill((0, None));
                    }
                    // A clear volume's blocks may be zeroes.
                    _ => {
                        let fills: Vec<u8> = place.clone().map(|_| random.below(4) as u8).collect();
                        queue.write(first, &fills, own);
                        for (block, fill) in place.zip(fills) {
                            oracle[block] = (fill, (fill != 0).then_some(own));
                        }
                    }
                }
                let (first, count) = (random.below(blocks), 1 + random.below(258));
                let count = count.min(blocks - first);
                let expected = &oracle[first as usize..(first + count) as usize];
                // The second time from where the blocks were found.
                for _ in 0..2 {
                    assert_eq!(queue.read(first, count).unwrap(), expected, "seed {seed}, layer {level}");
                }
            }
            drop(queue);
            // The map may report a hole as data, but never data as a hole.
            let anew = chain(&layers);
            let mut covered = 0;
            anew.allocation(extent(0..blocks), &mut |run, found| {
                assert_eq!(run.offset(), covered);
                covered = run.end();
                let run = (run.offset() / BLOCK_BYTES) as usize..(run.end() / BLOCK_BYTES) as usize;
                assert!(found == Allocation::Data || oracle[run].iter().all(|(fill, _)| *fill == 0));
                true
            })
            .unwrap();
            assert_eq!(covered, bytes);
            let mut queue = Queue::new(&anew);
            for first in (0..blocks).step_by(100) {
                let count = 100.min(blocks - first);
                let expected = &oracle[first as usize..(first + count) as usize];
                assert_eq!(queue.read(first, count).unwrap(), expected, "seed {seed}, layer {level}, anew");
            }
            for _ in 0..40 {
                let (first, count) = (random.below(blocks), 1 + random.below(40));
                let count = count.min(blocks - first);
                let expected = &oracle[first as usize..(first + count) as usize];
                assert_eq!(queue.read(first, count).unwrap(), expected, "seed {seed}, layer {level}, again");
            }
        }
    }
}

/// A disk that counts reads, and holds requests back until they are released.
struct Watched {
    disk: MemoryDisk,
    watch: Watch,
}

#[derive(Clone, Default)]
struct Watch {
    reads: Arc<AtomicU64>,
    holds_reads: Arc<AtomicBool>,
    holds_writes: Arc<AtomicBool>,
}

impl Watch {
    fn holds(&self, request: &Request<Sealed>) -> bool {
        match request {
            Request::Read { .. } => self.holds_reads.load(Ordering::Relaxed),
            Request::Write { .. }
            | Request::Discard { .. }
            | Request::WriteZeroes { .. }
            | Request::Flush => self.holds_writes.load(Ordering::Relaxed),
        }
    }

    fn reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }
}

struct WatchedChannel {
    channel: Box<dyn Channel<Sealed>>,
    watch: Watch,
    held: Vec<Io<Sealed>>,
}

impl Disk<Sealed> for Watched {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let (channel, watch) = (self.disk.open(thread, depth)?, self.watch.clone());
        Ok(Box::new(WatchedChannel { channel, watch, held: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

impl Channel<Sealed> for WatchedChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        if matches!(io.request, Request::Read { .. }) {
            self.watch.reads.fetch_add(1, Ordering::Relaxed);
        }
        self.held.push(io);
    }

    fn kick(&mut self) {
        for io in self.held.extract_if(.., |io| !self.watch.holds(&io.request)) {
            self.channel.submit(io);
        }
        self.channel.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        self.channel.poll(done);
    }
}

/// A chain of watched layers, all of the same size, the top last. The block of each lower layer's
/// number is in it, and so is block 0 in the lowest one.
fn watched(directory: &Path, layers: usize) -> (ChainDisk, Vec<Watch>) {
    const BLOCKS: u64 = 64;
    let size = VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap();
    let watches: Vec<Watch> = (0..layers).map(|_| Watch::default()).collect();
    let mut disks: Vec<Arc<Watched>> = Vec::new();
    for (number, watch) in watches.iter().enumerate() {
        let seal = epoch(number as u32 + 1);
        let disk = MemoryDisk::new(size, seal);
        if number + 1 < layers {
            Queue::new(&disk).write(number as u64, &[number as u8 + 1], seal);
        }
        disks.push(Arc::new(Watched { disk, watch: watch.clone() }));
    }
    let own = |number: usize| discards(&directory.join(number.to_string()), size.bytes());
    let top = disks.pop().unwrap();
    let lower = disks.into_iter().enumerate().rev().map(|(number, disk)| LowerLayer {
        blocks: disk,
        discards: (number > 0).then(|| own(number)),
        is_merged_into: false,
    });
    (ChainDisk::new(top, own(layers - 1), lower.collect()), watches)
}

#[test]
fn a_block_that_was_found_is_read_where_it_is() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (disk, watches) = watched(place.path(), 4);
    let mut queue = Queue::new(&disk);
    let reads = || watches.iter().map(Watch::reads).collect::<Vec<_>>();
    let found = |number: u8| [(number + 1, Some(epoch(u32::from(number) + 1)))];
    reads();
    assert_eq!(queue.read(0, 1).unwrap(), found(0));
    assert_eq!(reads(), [1, 1, 1, 1], "it is looked for in all layers");
    assert_eq!(queue.read(0, 1).unwrap(), found(0));
    assert_eq!(reads(), [1, 0, 0, 0]);
    assert_eq!(Queue::new(&disk).read(0, 1).unwrap(), found(0));
    assert_eq!(reads(), [1, 0, 0, 0], "another queue knows it too");
    // Several layers have blocks of one read, and nobody has the last one.
    let all = [found(0), found(1), found(2), [(0, None)]].concat();
    assert_eq!(queue.read(0, 4).unwrap(), all);
    reads();
    assert_eq!(queue.read(0, 4).unwrap(), all);
    assert_eq!(reads(), [1, 1, 1, 0]);
    assert_eq!(queue.read(3, 1).unwrap(), [(0, None)]);
    assert_eq!(reads(), [0, 0, 0, 0]);
    // What the top gets is read there.
    queue.write(1, &[9], epoch(4));
    assert_eq!(queue.read(1, 1).unwrap(), [(9, Some(epoch(4)))]);
    queue.run(Request::Discard { extent: extent(2..3) }).result.unwrap();
    assert_eq!(queue.read(2, 1).unwrap(), [(0, None)]);
    queue.run(Request::WriteZeroes { extent: extent(0..1), may_unmap: true, durable: false }).result.unwrap();
    assert_eq!(queue.read(0, 3).unwrap(), [(0, None), (9, Some(epoch(4))), (0, None)]);
}

/// A layer is asked for the span from its first block to its last one, and another layer has newer
/// blocks in between, whichever of them answers first.
#[test]
fn blocks_between_those_of_a_layer_are_taken_from_the_layer_that_has_them() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let size = VolumeSize::new(64 * BLOCK_BYTES).unwrap();
    for (newer, is_upper_late) in [([0, 3], false), ([0, 3], true), ([2, 4], false), ([2, 4], true)] {
        let [top, upper, lower] = [3, 2, 1].map(|number| MemoryDisk::new(size, epoch(number)));
        Queue::new(&lower).write(0, &[1; 6], epoch(1));
        let mut queue = Queue::new(&upper);
        newer.into_iter().for_each(|block| queue.write(block, &[2], epoch(2)));
        let watches = [Watch::default(), Watch::default()];
        let [upper, lower] =
            [(upper, &watches[0]), (lower, &watches[1])].map(|(disk, watch)| -> Arc<dyn Disk<Sealed>> {
                Arc::new(Watched { disk, watch: watch.clone() })
            });
        let own = |name: &str| {
            discards(&place.path().join(format!("{name}-{}-{is_upper_late}", newer[0])), size.bytes())
        };
        let layer = |blocks, discards| LowerLayer { blocks, discards, is_merged_into: false };
        let lower = vec![layer(upper, Some(own("upper"))), layer(lower, None)];
        let disk = ChainDisk::new(Arc::new(top), own("top"), lower);
        let mut expected = vec![(1, Some(epoch(1))); 6];
        newer.into_iter().for_each(|block| expected[block as usize] = (2, Some(epoch(2))));
        let mut queue = Queue::new(&disk);
        assert_eq!(queue.read(0, 6).unwrap(), expected, "they are looked for");
        watches.iter().for_each(|watch| assert_eq!(watch.reads(), 1));
        let late = &watches[usize::from(!is_upper_late)];
        late.holds_reads.store(true, Ordering::Relaxed);
        let into = queue.pool.take(6 * BLOCK).unwrap();
        queue.channel.submit(Io { tag: 1, request: Request::Read { extent: extent(0..6), into } });
        let mut ended = Vec::new();
        while ended.is_empty() {
            // Memory answers at once: several turns take a request through all layers.
            for _ in 0..20 {
                queue.channel.kick();
                queue.channel.poll(&mut ended);
                queue.ring.wait(Some(Duration::from_millis(1))).unwrap();
            }
            assert!(ended.is_empty() || !late.holds_reads.load(Ordering::Relaxed));
            late.holds_reads.store(false, Ordering::Relaxed);
        }
        let memory = ended.pop().unwrap().memory.unwrap();
        let blocks = memory.bytes().chunks(BLOCK).map(|block| block[0]);
        let read: Vec<_> = blocks.zip(memory.seals().iter().copied()).collect();
        assert_eq!(read, expected, "newer {newer:?}, the upper layer answers last: {is_upper_late}");
        watches.iter().for_each(|watch| assert_eq!(watch.reads(), 1, "each was asked for its part"));
    }
}

/// Reads that meet a write of the same block: what they find out is of before.
#[test]
fn what_a_read_finds_out_beside_a_write_is_not_believed_afterwards() {
    let is_old = |read: &[(u8, Option<KeyEpoch>)]| read == [(1, Some(epoch(1)))];
    let new = [(9, Some(epoch(3)))];
    for (holds_write, holds_read) in [(false, true), (true, false)] {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (disk, watches) = watched(place.path(), 3);
        let [lowest, _, top] = &watches[..] else { panic!("three layers") };
        let (mut reader, mut writer) = (Queue::new(&disk), Queue::new(&disk));
        // The read is held below the top, which it found empty; or the write, above it.
        lowest.holds_reads.store(holds_read, Ordering::Relaxed);
        top.holds_writes.store(holds_write, Ordering::Relaxed);
        let into = reader.pool.take(BLOCK).unwrap();
        let mut from = writer.pool.take(BLOCK).unwrap();
        let (bytes, seals) = from.parts_mut();
        bytes.fill(9);
        seals.fill(Some(epoch(3)));
        let (read, write) = (
            Request::Read { extent: extent(0..1), into },
            Request::Write { extent: extent(0..1), from, durable: false },
        );
        let (mut read_ended, mut write_ended) = (Vec::new(), Vec::new());
        let turn = |queue: &mut Queue, ended: &mut Vec<Done<Sealed>>| {
            // Memory answers at once: several turns take a request through all layers.
            for _ in 0..20 {
                queue.channel.kick();
                queue.channel.poll(ended);
                queue.ring.wait(Some(Duration::from_millis(1))).unwrap();
            }
        };
        writer.channel.submit(Io { tag: 2, request: write });
        match holds_read {
            true => {
                reader.channel.submit(Io { tag: 1, request: read });
                turn(&mut reader, &mut read_ended);
                turn(&mut writer, &mut write_ended);
                assert_eq!((read_ended.len(), write_ended.len()), (0, 1));
            }
            false => {
                turn(&mut writer, &mut write_ended);
                reader.channel.submit(Io { tag: 1, request: read });
                turn(&mut reader, &mut read_ended);
                assert_eq!((read_ended.len(), write_ended.len()), (1, 0));
            }
        }
        lowest.holds_reads.store(false, Ordering::Relaxed);
        top.holds_writes.store(false, Ordering::Relaxed);
        turn(&mut reader, &mut read_ended);
        turn(&mut writer, &mut write_ended);
        write_ended.pop().unwrap().result.unwrap();
        let read = read_ended.pop().unwrap();
        read.result.unwrap();
        let memory = read.memory.unwrap();
        assert!(is_old(&[(memory.bytes()[0], memory.seals()[0])]));
        for queue in [&mut reader, &mut writer] {
            assert_eq!(queue.read(0, 1).unwrap(), new, "held write {holds_write}");
        }
    }
}

/// Several queues record blocks of the same page at once.
#[test]
fn nothing_that_was_recorded_is_lost_to_another_record() {
    const BLOCKS: u64 = 4000;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = BLOCKS * BLOCK_BYTES;
    let size = VolumeSize::new(bytes).unwrap();
    let (top, lower) = (Arc::new(MemoryDisk::new(size, epoch(2))), Arc::new(MemoryDisk::new(size, epoch(1))));
    let mut queue = Queue::new(&lower);
    (0..BLOCKS / 100).for_each(|run| queue.write(run * 100, &[7; 100], epoch(1)));
    let chain = || {
        let lower = LowerLayer { blocks: Arc::clone(&lower) as _, discards: None, is_merged_into: false };
        ChainDisk::new(Arc::clone(&top) as _, discards(&place.path().join("discards"), bytes), vec![lower])
    };
    let disk = chain();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let disk = &disk;
            scope.spawn(move || {
                let mut queue = Queue::new(disk);
                for block in (number..BLOCKS).step_by(4).filter(|block| block % 5 != 0).take(100) {
                    queue.run(Request::Discard { extent: extent(block..block + 1) }).result.unwrap();
                    assert_eq!(queue.read(block, 1).unwrap(), [(0, None)]);
                    if block % 7 == 0 {
                        // It is dropped with an operation under way, perhaps for others.
                        let request = Request::Discard { extent: extent(block..block + 1) };
                        queue.channel.submit(Io { tag: 2, request });
                        let request = Request::Discard { extent: extent(block / 5 * 5..block / 5 * 5 + 1) };
                        queue.channel.submit(Io { tag: 3, request });
                        queue.channel.kick();
                        queue = Queue::new(disk);
                    }
                }
            });
        }
    });
    let mut anew = Queue::new(&chain());
    for number in 0..4 {
        for (at, block) in (number..BLOCKS).step_by(4).filter(|block| block % 5 != 0).enumerate() {
            let expected = if at < 100 { (0, None) } else { (7, Some(epoch(1))) };
            assert_eq!(anew.read(block, 1).unwrap(), [expected], "block {block}");
        }
    }
}

/// A sector that fails verification: requests that depend on it fail, and no others do.
#[test]
fn a_damaged_record_is_an_error_where_it_matters() {
    const BLOCKS: u64 = 9000;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = BLOCKS * BLOCK_BYTES;
    let size = VolumeSize::new(bytes).unwrap();
    let (top, lower) = (Arc::new(MemoryDisk::new(size, epoch(2))), Arc::new(MemoryDisk::new(size, epoch(1))));
    let path = place.path().join("discards");
    let chain = || {
        let lower = LowerLayer { blocks: Arc::clone(&lower) as _, discards: None, is_merged_into: false };
        ChainDisk::new(Arc::clone(&top) as _, discards(&path, bytes), vec![lower])
    };
    let disk = chain();
    let mut queue = Queue::new(&disk);
    queue.write(10, &[3], epoch(2));
    queue.run(Request::Discard { extent: extent(20..30) }).result.unwrap();
    queue.run(Request::Discard { extent: extent(5000..5001) }).result.unwrap();
    drop((queue, disk));
    let mut content = std::fs::read(&path).unwrap();
    content[100] ^= 1;
    std::fs::write(&path, content).unwrap();
    let disk = chain();
    let mut queue = Queue::new(&disk);
    assert_eq!(queue.read(10, 1).unwrap(), [(3, Some(epoch(2)))], "what the top has needs no record");
    assert_eq!(queue.read(20, 1), Err(IoError::Integrity { block: 20 }));
    assert_eq!(queue.read(5000, 1).unwrap(), [(0, None)], "another sector");
    let refused = queue.run(Request::Discard { extent: extent(40..41) });
    assert_eq!(refused.result, Err(IoError::Integrity { block: 0 }));
}

/// A disk with a block that cannot be read.
struct Torn {
    disk: MemoryDisk,
    block: u64,
}

struct TornChannel {
    channel: Box<dyn Channel<Sealed>>,
    torn: Extent,
    failed: Vec<Done<Sealed>>,
}

impl Disk<Sealed> for Torn {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let channel = self.disk.open(thread, depth)?;
        Ok(Box::new(TornChannel { channel, torn: extent(self.block..self.block + 1), failed: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

impl Channel<Sealed> for TornChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        match &io.request {
            Request::Read { extent, .. } if !extent.intersection(self.torn).is_empty() => {
                let block = self.torn.offset() / BLOCK_BYTES;
                self.failed.push(io.end(Err(IoError::Integrity { block })));
            }
            _ => self.channel.submit(io),
        }
    }

    fn kick(&mut self) {
        self.channel.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        done.append(&mut self.failed);
        self.channel.poll(done);
    }
}

/// A merge that was interrupted leaves blocks in the lower layer that do not match their tags. The
/// upper layer has all of these.
#[test]
fn a_layer_that_is_merged_into_is_not_read_where_the_one_above_has_the_block() {
    const BLOCKS: u64 = 64;
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let size = VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap();
    let read = |is_merged_into| {
        let [top, upper, lower] = [3, 2, 1].map(|number| MemoryDisk::new(size, epoch(number)));
        Queue::new(&lower).write(0, &[1; 40], epoch(1));
        let mut queue = Queue::new(&upper);
        [5, 9].into_iter().for_each(|block| queue.write(block, &[2], epoch(2)));
        Queue::new(&top).write(20, &[3; 4], epoch(3));
        let layer = |blocks, discards, is_merged_into| LowerLayer { blocks, discards, is_merged_into };
        let own = |name: &str| discards(&place.path().join(name), size.bytes());
        let lower = Torn { disk: lower, block: 9 };
        let lower = vec![
            layer(Arc::new(upper), Some(own("upper")), false),
            layer(Arc::new(lower), None, is_merged_into),
        ];
        Queue::new(&ChainDisk::new(Arc::new(top), own("top"), lower)).read(0, BLOCKS)
    };
    let mut expected = [vec![(1, Some(epoch(1))); 40], vec![(0, None); 24]].concat();
    [5, 9].into_iter().for_each(|block| expected[block] = (2, Some(epoch(2))));
    expected[20..24].fill((3, Some(epoch(3))));
    assert_eq!(read(true).unwrap(), expected);
    assert_eq!(read(false), Err(IoError::Integrity { block: 9 }), "the block between is read in vain");
}
