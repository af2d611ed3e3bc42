//! A ring, a queue and files for tests.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use strongroom_io::{FileDone, FileIo, FileOperation, FileQueue, FileToken, Reactor};
use strongroom_memory::{Buffer, BufferPool};
use strongroom_ring::{Ring, RingFile};
use tempfile::NamedTempFile;

/// How long a test waits for an event. It is far beyond any expected time, so that no test fails on
/// a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Test directories: one on a disk, one on tmpfs.
pub const DISK: &str = env!("CARGO_TARGET_TMPDIR");
pub const TMPFS: &str = "/dev/shm";

/// A thread's ring with one queue.
pub struct Bench {
    pub ring: Ring,
    pub queue: Box<dyn FileQueue>,
    pub pool: BufferPool,
}

impl Bench {
    pub fn new(depth: usize) -> Self {
        let ring = Ring::new(depth).unwrap();
        let queue = ring.file_queue().unwrap();
        let pool = BufferPool::new(96 << 20).unwrap();
        Self { ring, queue, pool }
    }

    pub fn register(&mut self, file: File) -> FileToken {
        self.queue.register(Arc::new(RingFile::new(file))).unwrap()
    }

    pub fn submit(&mut self, tag: u64, file: FileToken, operation: FileOperation) {
        self.queue.submit(FileIo { tag, file, operation });
    }

    /// Kicks, and waits until `count` operations have ended.
    pub fn finish(&mut self, count: usize) -> Vec<FileDone> {
        self.queue.kick();
        poll_until(&self.ring, self.queue.as_mut(), count)
    }

    /// Runs one operation.
    pub fn run(&mut self, file: FileToken, operation: FileOperation) -> FileDone {
        self.submit(1, file, operation);
        self.finish(1).pop().unwrap()
    }

    pub fn filled(&self, length: usize, fill: u8) -> Buffer {
        let mut buffer = self.pool.take(length).unwrap();
        buffer.bytes_mut().fill(fill);
        buffer
    }

    pub fn write(&mut self, file: FileToken, offset: u64, length: usize, fill: u8) -> FileDone {
        let from = self.filled(length, fill);
        self.run(file, FileOperation::Write { offset, from, durable: false })
    }

    pub fn read(&mut self, file: FileToken, offset: u64, length: usize) -> FileDone {
        // Bytes that no read overwrites show up.
        let into = self.filled(length, 0xEE);
        self.run(file, FileOperation::Read { offset, into })
    }
}

pub fn poll_until(ring: &Ring, queue: &mut dyn FileQueue, count: usize) -> Vec<FileDone> {
    let deadline = Instant::now() + PATIENCE;
    let mut done = Vec::new();
    queue.poll(&mut done);
    while done.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} ended", done.len());
        ring.wait(Some(PATIENCE)).unwrap();
        queue.poll(&mut done);
    }
    assert_eq!(done.len(), count);
    done
}

/// A new file, and a second handle on it that bypasses the page cache if the file system allows.
pub fn new_file(directory: &str) -> (NamedTempFile, File) {
    let named = NamedTempFile::new_in(directory).unwrap();
    let direct = open_direct(named.path());
    (named, direct)
}

pub fn open_direct(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let direct = options.clone().custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    // tmpfs supports O_DIRECT since Linux 6.6.
    direct.or_else(|_| options.open(path)).unwrap()
}
