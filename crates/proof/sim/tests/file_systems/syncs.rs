//! Tests whether a returned sync has flushed the device, even if several syncs of one file overlap.
//!
//! Threads write blocks of a file and sync each before the next, like a volume's queues with
//! durable writes. When a thread's sync returns, the device's requests so far must contain its
//! block and then a flush. No power is cut: the recording suffices.
//!
//! btrfs breaks this (Linux 6.18): shortly after a transaction commits, some overlapping syncs
//! return at once, while another has only begun to write the log tree. It holds there if no two
//! syncs of a file overlap.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{OFlags, syncfs};
use strongroom_memory::BufferPool;

use super::cuts;
use super::file_system::{BTRFS, EXT4, FileSystem, XFS};
use super::recorder::Recorder;
use super::write_log::Change;

const BLOCK: usize = 4096;
const FILE_BLOCKS: usize = 4096;
const WRITERS: usize = 4;
const WRITES_PER_ROUND: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syncs {
    Together,
    OneAtATime,
    /// The same, while the whole file system is synced repeatedly (`syncfs`), as when a volume
    /// grows.
    OneAtATimeBesideSyncfs,
    /// Overlapping, but each of its own file, like those of a layer and its log.
    OfTheirOwnFiles,
}

/// A block whose sync has returned, with the device's moment at that time.
struct Synced {
    number: u64,
    moment: usize,
}

/// Returns the number of syncs, and how many of them returned without a flush.
fn syncs(file_system: &FileSystem, how: Syncs) -> (usize, usize) {
    let place = tempfile::tempdir().unwrap();
    let recorder = Recorder::start(file_system, &file_system.make(place.path())).unwrap();
    let files = if how == Syncs::OfTheirOwnFiles { WRITERS } else { 1 };
    let directory = recorder.path().to_owned();
    let path = |writer: usize| directory.join(format!("file-{}", writer % files));
    for number in 0..files {
        File::create_new(path(number)).unwrap().set_len((FILE_BLOCKS * BLOCK) as u64).unwrap();
    }
    let file = File::options().write(true).open(path(0)).unwrap();
    let open = |writer: usize| {
        let direct = OFlags::DIRECT.bits() as i32;
        File::options().write(true).custom_flags(direct).open(path(writer)).unwrap()
    };
    let is_alone = matches!(how, Syncs::OneAtATime | Syncs::OneAtATimeBesideSyncfs);
    let mut synced = Vec::new();
    for round in 0..cuts().div_ceil(3) {
        // Each round begins with a new transaction.
        syncfs(&file).unwrap();
        let (begin, one_at_a_time) = (Barrier::new(WRITERS), Mutex::new(()));
        let goes_on = AtomicBool::new(how == Syncs::OneAtATimeBesideSyncfs);
        let clocks: Vec<_> = (0..WRITERS).map(|_| recorder.another_clock()).collect();
        std::thread::scope(|scope| {
            let write = |writer: usize, clock: super::write_log::Clock| {
                let (file, memory) = (open(writer), BufferPool::new(4 << 20).unwrap());
                clock.moment().unwrap();
                begin.wait();
                let write = |write: usize| {
                    let number = ((round * WRITES_PER_ROUND + write) * WRITERS + writer + 1) as u64;
                    let mut block = memory.take(BLOCK).unwrap();
                    block
                        .bytes_mut()
                        .chunks_exact_mut(8)
                        .for_each(|word| word.copy_from_slice(&marked(number)));
                    let at = number as usize % FILE_BLOCKS * BLOCK;
                    file.write_all_at(block.bytes(), at as u64).unwrap();
                    let held = is_alone.then(|| one_at_a_time.lock());
                    file.sync_data().unwrap();
                    drop(held);
                    Synced { number, moment: clock.moment().unwrap() }
                };
                (0..WRITES_PER_ROUND).map(write).collect::<Vec<_>>()
            };
            let writers: Vec<_> = clocks
                .into_iter()
                .enumerate()
                .map(|(writer, clock)| scope.spawn(move || write(writer, clock)))
                .collect();
            scope.spawn(|| {
                while goes_on.load(Ordering::SeqCst) {
                    syncfs(&file).unwrap();
                }
            });
            writers.into_iter().for_each(|writer| synced.extend(writer.join().unwrap()));
            goes_on.store(false, Ordering::SeqCst);
        });
    }
    drop(file);
    let entries = recorder.finish();
    let mut written = HashMap::new();
    for (at, entry) in entries.iter().enumerate() {
        if let Change::Write { bytes, .. } = &entry.change {
            let blocks = bytes.chunks_exact(BLOCK);
            written.extend(blocks.map(|block| (block[..8].to_vec(), at)));
        }
    }
    let is_flushed = |synced: &&Synced| {
        let at = written[&marked(synced.number)[..]];
        at < synced.moment && entries[at..synced.moment].iter().any(|entry| entry.flushes)
    };
    (synced.len(), synced.len() - synced.iter().filter(is_flushed).count())
}

/// The start of a block, unique on the device.
fn marked(number: u64) -> [u8; 8] {
    (number | 0x5EA1_ED00 << 32).to_le_bytes()
}

fn told(file_system: &FileSystem, how: Syncs) -> usize {
    let (all, unflushed) = syncs(file_system, how);
    println!("{}, syncs {how:?}: {unflushed} of {all} returned without a flush", file_system.name);
    unflushed
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn syncs_that_run_together_have_all_flushed_on_ext4_and_xfs() {
    assert_eq!([&EXT4, &XFS].map(|file_system| told(file_system, Syncs::Together)), [0, 0]);
}

/// Overlapping syncs on btrfs are only reported, not required.
#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn syncs_one_at_a_time_have_all_flushed_on_every_file_system() {
    told(&BTRFS, Syncs::Together);
    assert_eq!([&EXT4, &XFS, &BTRFS].map(|file_system| told(file_system, Syncs::OneAtATime)), [0; 3]);
}

/// A volume on btrfs also relies on this: its files are synced concurrently, and another process
/// may grow it.
#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn syncs_beside_those_of_other_files_and_of_all_have_flushed_on_btrfs() {
    assert_eq!([Syncs::OfTheirOwnFiles, Syncs::OneAtATimeBesideSyncfs].map(|how| told(&BTRFS, how)), [0; 2]);
}
