//! A killed process's writes land after it is gone. A process that takes the volume's lock must not
//! meet them; one that relied on a separate lock file would.
//!
//! The test runs itself as the process that is killed: it floods the volume with writes of one
//! pattern, deep in the kernel's queues, and dies by SIGKILL. The successor takes a lock and
//! examines the volume.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use strongroom_datastore::file::*;
use strongroom_io::{Disk, Io, Request, Thread};
use strongroom_memory::BufferPool;
use strongroom_ring::Ring;
use strongroom_types::{Extent, KeyEpoch, VolumeSize};

/// Names the volume to flood, in the environment of the process that is killed.
const FLOOD: &str = "STRONGROOM_TEST_FLOOD";
const VOLUME_BYTES: u64 = 512 << 20;
const TRANSFER_BYTES: u64 = 1 << 20;
const DEPTH: usize = 256;

fn to_write(lock_wait: Duration) -> OpenOptions<'static> {
    OpenOptions {
        protection: Protection::Unencrypted,
        access: Access::ReadWrite,
        lock_wait,
        least_generation: 0,
    }
}

fn separate_lock(volume: &Path) -> PathBuf {
    volume.with_extension("lock")
}

/// The process that is killed: holds both locks and writes forever, every round with another
/// pattern.
#[test]
fn flood_until_killed() {
    let Some(volume) = std::env::var_os(FLOOD).map(PathBuf::from) else { return };
    let beside =
        File::options().write(true).create(true).truncate(false).open(separate_lock(&volume)).unwrap();
    flock(&beside, FlockOperation::LockExclusive).unwrap();
    let opened = open(&volume, &to_write(Duration::from_secs(60))).unwrap();
    let ring = Rc::new(Ring::new(DEPTH).unwrap());
    let thread =
        Thread { pool: BufferPool::new(DEPTH * TRANSFER_BYTES as usize).unwrap(), reactor: ring.clone() };
    let mut channel = opened.disk.open(&thread, DEPTH).unwrap();
    let mut done = Vec::new();
    for count in 0.. {
        let place = count % (VOLUME_BYTES / TRANSFER_BYTES) * TRANSFER_BYTES;
        let mut from = loop {
            match thread.pool.take(TRANSFER_BYTES as usize) {
                Some(buffer) => break buffer,
                None => {
                    channel.kick();
                    ring.wait(None).unwrap();
                    channel.poll(&mut done);
                    assert!(done.drain(..).all(|done| done.result.is_ok()));
                }
            }
        };
        from.bytes_mut().fill(b'a' + (count / (VOLUME_BYTES / TRANSFER_BYTES) % 26) as u8);
        from.seals_mut().fill(Some(KeyEpoch::FIRST));
        let extent = Extent::new(place, TRANSFER_BYTES).unwrap();
        channel.submit(Io { tag: count, request: Request::Write { extent, from, durable: false } });
        if count == DEPTH as u64 {
            println!("flooding");
        }
    }
}

/// A process that floods the volume. It is ended on drop.
struct Flood(Child);

impl Flood {
    fn start(volume: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "flood_until_killed", "--nocapture", "--test-threads=1"])
            .env(FLOOD, volume)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let flooding = output.lines().any(|line| line.unwrap().contains("flooding"));
        assert!(flooding, "the flood ended before it began");
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn layer(volume: &Path) -> File {
    let mut names = fs::read_dir(volume).unwrap().map(|entry| entry.unwrap().path());
    let path = names.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("layer-")).unwrap();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    File::options().read(true).write(true).custom_flags(direct).open(path).unwrap()
}

/// The block that the successor writes in each transfer's place: the last, where a late transfer
/// lands last.
fn successors_block(transfer: u64) -> u64 {
    (transfer + 1) * TRANSFER_BYTES - 4096
}

/// Does `work` for each transfer's place, on enough threads to keep a disk busy, with a block's
/// worth of aligned memory.
fn for_each_transfer(work: impl Fn(u64, &mut [u8]) + Sync) {
    const THREADS: u64 = 32;
    std::thread::scope(|scope| {
        for first in 0..THREADS {
            let work = &work;
            scope.spawn(move || {
                let mut memory = vec![0; 2 * 4096];
                let start = memory.as_ptr().align_offset(4096);
                // The flood's last transfers may be anywhere, so all places are written to.
                for transfer in (first..VOLUME_BYTES / TRANSFER_BYTES).step_by(THREADS as usize) {
                    work(transfer, &mut memory[start..start + 4096]);
                }
            });
        }
    });
}

/// Counts the blocks that a successor wrote, under the lock that `take` takes right after the kill,
/// and that were lost when all writes had landed.
fn blocks_lost_under_a_lock(volume: &Path, take: impl FnOnce() -> Box<dyn std::any::Any>) -> usize {
    let layer = layer(volume);
    let mut flood = Flood::start(volume);
    flood.kill();
    let held = take();
    for_each_transfer(|transfer, block| {
        block.fill(b'Z');
        layer.write_all_at(block, successors_block(transfer)).unwrap();
    });
    drop(held);
    drop(flood);
    // The volume's own lock is free when everything has landed.
    drop(open(volume, &to_write(Duration::from_secs(60))).unwrap());
    let lost = AtomicUsize::new(0);
    for_each_transfer(|transfer, block| {
        layer.read_exact_at(block, successors_block(transfer)).unwrap();
        lost.fetch_add(usize::from(block[0] != b'Z'), Ordering::Relaxed);
    });
    lost.into_inner()
}

/// A datastore on a disk: a file system in memory has no late writes.
fn volume() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("vm1");
    let options = CreateOptions {
        size: VolumeSize::new(VOLUME_BYTES).unwrap(),
        provisioning: Provisioning::Thick,
        protection: Protection::Unencrypted,
        log_bytes: None,
        integrity: None,
    };
    create(&path, &options).unwrap();
    (directory, path)
}

/// How often the race is tried.
const ROUNDS: u32 = 5;
/// The most attempts until a write has outlived its process: on a busy machine the test may look
/// too late.
const ROUNDS_MAX: u32 = 50;

#[test]
fn a_successor_never_meets_late_writes_and_would_with_a_separate_lock_file() {
    let (_directory, volume) = volume();
    let mut windows = Vec::new();
    for round in 1..=ROUNDS_MAX {
        if round > ROUNDS && !windows.is_empty() {
            break;
        }
        let lost = blocks_lost_under_a_lock(&volume, || {
            Box::new(open(&volume, &to_write(Duration::from_secs(60))).unwrap())
        });
        assert_eq!(lost, 0, "round {round}: late writes landed under their successor's lock");

        // The race that a separate lock file would lose: it is free and its holder is dead, but the
        // kernel still works on the dead process's writes. (The device decides whether they
        // overtake the successor's; one that serves its queue in order, as this machine's does,
        // hides the loss.)
        let mut flood = Flood::start(&volume);
        flood.kill();
        let beside = File::open(separate_lock(&volume)).unwrap();
        flock(&beside, FlockOperation::LockExclusive).unwrap();
        let since = Instant::now();
        if let Err(DatastoreError::InUse { .. }) = open(&volume, &to_write(Duration::ZERO)) {
            drop(open(&volume, &to_write(Duration::from_secs(60))).unwrap());
            windows.push(since.elapsed());
        }
    }
    println!(
        "a separate lock was free this long before the dead process's last write had ended: {windows:?}"
    );
    if windows.is_empty() {
        println!(
            "in {ROUNDS_MAX} rounds no write outlived its process: on this disk the test shows nothing of that"
        );
    }
}
