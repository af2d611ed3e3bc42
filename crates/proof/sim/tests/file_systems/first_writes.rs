//! Tests whether a file system makes first writes of 4096 bytes atomic by itself, on a device that
//! tears them at 512.
//!
//! Many direct writes of 4096 bytes to 1 MiB go to unwritten space: holes, and space that was
//! allocated, zeroed or punched. None is flushed, but the file system is made to commit its journal
//! continuously, as activity on other files would. After a cut each block is absent or whole,
//! because an extent becomes readable only after its data is on the device. A file of written
//! zeroes shows the result without that guarantee.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek, syncfs};
use strongroom_memory::BufferPool;

use super::cut::{Fate, Replay};
use super::file_system::{BTRFS, BTRFS_NODATACOW, EXT4, EXT4_WRITEBACK, FileSystem, XFS};
use super::image::Image;
use super::recorder::Recorder;
use super::write_log::Entry;
use super::{cuts, first_seed};

const BLOCK: usize = 4096;
const FILE_BLOCKS: usize = 1536;
const WRITE_BLOCKS_MAX: usize = 256;
const WRITERS: usize = 4;
const CUTS_PER_RECORDING: usize = 50;

/// The state of a file before the first writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    Hole,
    Allocated,
    Zeroed,
    Punched,
    /// No first writes: each block was written before.
    WrittenZeroes,
}

const GROUNDS: [Ground; 5] =
    [Ground::Hole, Ground::Allocated, Ground::Zeroed, Ground::Punched, Ground::WrittenZeroes];

impl Ground {
    fn name(self) -> String {
        format!("{self:?}")
    }

    fn prepare(self, at: &Path) {
        let file = File::create_new(at.join(self.name())).unwrap();
        let length = (FILE_BLOCKS * BLOCK) as u64;
        let everywhere = |flags| fallocate(&file, flags, 0, length).unwrap();
        match self {
            Self::Hole => file.set_len(length).unwrap(),
            Self::Allocated => everywhere(FallocateFlags::empty()),
            Self::Zeroed | Self::Punched => {
                file.write_all_at(&vec![0xAA; length as usize], 0).unwrap();
                file.sync_all().unwrap();
                everywhere(match self {
                    Self::Zeroed => FallocateFlags::ZERO_RANGE,
                    _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                });
            }
            Self::WrittenZeroes => file.write_all_at(&vec![0; length as usize], 0).unwrap(),
        }
        file.sync_all().unwrap();
    }
}

/// The written content of a block's sector; never zeroes.
fn pattern(block: usize, sector: usize) -> [u8; 512] {
    let mut bytes = [0; 512];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let number = ((block << 12 | sector << 6 | at) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        word.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The writes of a file, which cover each of its blocks once, in any order.
fn writes(random: &mut StdRng) -> Vec<(usize, usize)> {
    let mut writes = Vec::new();
    let mut at = 0;
    while at < FILE_BLOCKS {
        let most = [1, 1, 8, 64, WRITE_BLOCKS_MAX][random.random_range(0..5)];
        let count = random.random_range(1..=most).min(FILE_BLOCKS - at);
        writes.push((at, count));
        at += count;
    }
    writes.shuffle(random);
    writes
}

/// Writes everything once; returns the moment before the first write, and the device's requests.
fn record(file_system: &FileSystem, fresh: &Image, random: &mut StdRng) -> (usize, Vec<Entry>) {
    let recorder = Recorder::start(file_system, fresh).unwrap();
    let at = recorder.path();
    GROUNDS.iter().for_each(|ground| ground.prepare(at));
    let directory = File::open(at).unwrap();
    syncfs(&directory).unwrap();
    let begun = recorder.moment();
    let mut queues = vec![Vec::new(); WRITERS];
    for ground in GROUNDS {
        for write in writes(random) {
            queues[random.random_range(0..WRITERS)].push((ground, write));
        }
    }
    queues.iter_mut().for_each(|queue| queue.shuffle(random));
    let done = AtomicBool::new(false);
    let mut pauses = StdRng::seed_from_u64(random.random());
    std::thread::scope(|scope| {
        let writers: Vec<_> = queues.iter().map(|queue| scope.spawn(|| write_all(at, queue))).collect();
        scope.spawn(|| {
            let other = File::create(at.join("other")).unwrap();
            while !done.load(Ordering::Relaxed) {
                other.write_all_at(&[1; 100], pauses.random_range(0..1 << 20)).unwrap();
                match pauses.random_range(0..4) {
                    0 => syncfs(&directory).unwrap(),
                    _ => other.sync_all().unwrap(),
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    drop(directory);
    (begun, recorder.finish())
}

fn write_all(at: &Path, queue: &[(Ground, (usize, usize))]) {
    let memory = BufferPool::new(2 * WRITE_BLOCKS_MAX * BLOCK).unwrap();
    let open = |ground: Ground| {
        let direct = OFlags::DIRECT.bits() as i32;
        OpenOptions::new().write(true).custom_flags(direct).open(at.join(ground.name())).unwrap()
    };
    let files = GROUNDS.map(open);
    for (ground, (first, count)) in queue {
        let mut buffer = memory.take(count * BLOCK).unwrap();
        for (sector, bytes) in buffer.bytes_mut().chunks_exact_mut(512).enumerate() {
            bytes.copy_from_slice(&pattern(first + sector / 8, sector % 8));
        }
        let file = &files[GROUNDS.iter().position(|other| other == ground).unwrap()];
        file.write_all_at(buffer.bytes(), (first * BLOCK) as u64).unwrap();
    }
}

/// Counts of the blocks found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    nothing: usize,
    whole: usize,
    /// Partly each: torn.
    mixed: usize,
    /// Other content, which was never written there.
    foreign: usize,
    /// Whole or torn, where `SEEK_DATA` reports a hole.
    hidden: usize,
    /// Nothing, where `SEEK_DATA` reports data.
    empty_data: usize,
}

impl Found {
    fn look(&mut self, file: &File) {
        let mut is_data = vec![false; FILE_BLOCKS];
        let mut at = 0;
        while let Ok(data) = seek(file, SeekFrom::Data(at)) {
            at = seek(file, SeekFrom::Hole(data)).unwrap();
            is_data[data as usize / BLOCK..(at as usize).div_ceil(BLOCK)].fill(true);
        }
        // Queried before reading: pages in the page cache count as data, even zeroes.
        let mut bytes = vec![0; FILE_BLOCKS * BLOCK];
        file.read_exact_at(&mut bytes, 0).unwrap();
        for (block, (content, is_data)) in bytes.chunks_exact(BLOCK).zip(is_data).enumerate() {
            let sectors = content.chunks_exact(512).enumerate();
            let (mut zero, mut written) = (0, 0);
            for (sector, found) in sectors {
                zero += usize::from(found == [0; 512]);
                written += usize::from(found == pattern(block, sector));
            }
            match (zero, written) {
                (8, _) => self.nothing += 1,
                (_, 8) => self.whole += 1,
                _ if zero + written == 8 => self.mixed += 1,
                _ => self.foreign += 1,
            }
            self.hidden += usize::from(zero < 8 && !is_data);
            self.empty_data += usize::from(zero == 8 && is_data);
        }
    }
}

fn first_writes_are_whole_or_absent(file_system: &FileSystem) {
    let begun = Instant::now();
    let place = tempfile::tempdir().unwrap();
    let (image, at) = (place.path().join("image"), place.path().join("mounted"));
    std::fs::create_dir(&at).unwrap();
    let fresh = file_system.make(place.path());
    let mut random = StdRng::seed_from_u64(first_seed());
    let mut found = [Found::default(); GROUNDS.len()];
    let mut made = 0;
    while made < cuts().div_ceil(3) {
        let (first, entries) = record(file_system, &fresh, &mut random);
        let mut moments: Vec<usize> =
            (0..CUTS_PER_RECORDING).map(|_| random.random_range(first..=entries.len())).collect();
        moments.sort_unstable();
        let mut replay = Replay::new(&fresh, &entries, file_system.stays_whole);
        for moment in moments {
            let fate = Fate::draw(&mut random);
            replay.cut(moment, fate, &mut random).write_to(&image).unwrap();
            let mounted = file_system.mount(&image, &at).unwrap();
            for (ground, found) in GROUNDS.iter().zip(&mut found) {
                found.look(&File::open(mounted.path().join(ground.name())).unwrap());
            }
            made += 1;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{}, seed {}: {made} cuts in {seconds:.1} s", file_system.name, first_seed());
    for (ground, found) in GROUNDS.iter().zip(found) {
        println!("  {ground:?}: {found:?}");
        assert!(found.nothing > 0 && found.whole > 0, "it was cut before and after the writes");
        assert_eq!((found.foreign, found.hidden), (0, 0), "{ground:?}");
        match ground {
            // Shows that the device tears, and that the test would detect it.
            Ground::WrittenZeroes => assert_eq!(found.mixed > 0, file_system.overwrites_in_place),
            _ => assert_eq!((found.mixed, found.empty_data), (0, 0), "{ground:?}"),
        }
    }
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn first_writes_are_whole_or_absent_on_ext4() {
    first_writes_are_whole_or_absent(&EXT4);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn first_writes_are_whole_or_absent_on_ext4_with_writeback() {
    first_writes_are_whole_or_absent(&EXT4_WRITEBACK);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn first_writes_are_whole_or_absent_on_xfs() {
    first_writes_are_whole_or_absent(&XFS);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn first_writes_are_whole_or_absent_on_btrfs() {
    first_writes_are_whole_or_absent(&BTRFS);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn first_writes_are_whole_or_absent_on_btrfs_without_copy_on_write() {
    first_writes_are_whole_or_absent(&BTRFS_NODATACOW);
}
