//! A volume on a simulated file system, its sealed blocks with their tags, and a queue driven one
//! request at a time.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use strongroom_datastore::file::Integrity;
use strongroom_datastore::file::storage::{Storage, StoredFile};
use strongroom_datastore::file::tags::{TagKeys, TagsDisk, TagsTuning};
use strongroom_datastore::file::*;
use strongroom_io::{Channel, Disk, Done, Io, IoError, Reactor, Request, Sealed, Thread};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::BufferPool;
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, SECTOR_BYTES, VolumeSize};

pub const BLOCK: usize = BLOCK_BYTES as usize;
pub const SECTOR: usize = SECTOR_BYTES as usize;
pub const PATH: &str = "/ds/vm1";
/// The offsets in the tags' file of the marks, the presence of tag pages, and the tags
/// (`docs/ON_DISK.md`).
pub const MARKS: u64 = 4096;
pub const PRESENCE: u64 = 1 << 20;
pub const TAGS: u64 = 16 << 20;

pub fn kek() -> Kek {
    let secret = SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap();
    KekSource::KeyFile {}.kek(&secret).unwrap()
}

pub fn create_volume(
    fs: &SimFs,
    kek: &Kek,
    bytes: u64,
    provisioning: Provisioning,
    integrity: Option<Integrity>,
) {
    let options = CreateOptions {
        size: VolumeSize::new(bytes).unwrap(),
        provisioning,
        protection: Protection::Encrypted(kek),
        // Large enough not to fill, because nothing empties it here.
        log_bytes: Some(8 << 20),
        integrity,
    };
    create_on(fs, Path::new(PATH), &options).unwrap();
}

pub fn open_volume(fs: &SimFs, kek: &Kek, access: Access) -> Result<OpenVolume, DatastoreError> {
    let protection = Protection::Encrypted(kek);
    let options = OpenOptions { protection, access, lock_wait: Duration::ZERO, least_generation: 0 };
    open_on(fs, Path::new(PATH), &options)
}

/// The stage over `blocks`, with minimal memory and no delay.
pub fn tags_over(blocks: Arc<dyn Disk<Sealed>>, volume: &mut OpenVolume) -> TagsDisk {
    let keys = TagKeys::derive(&volume.take_deks()).unwrap().unwrap();
    let (file, facts) = volume.tags.take().unwrap();
    let tuning = TagsTuning { pages_max: 8, quiet: Duration::ZERO };
    TagsDisk::over(blocks, file, facts, keys, tuning).unwrap()
}

/// The volume's file whose name starts with `prefix`.
pub fn file_of(fs: &SimFs, prefix: &str) -> Box<dyn StoredFile> {
    let directory = Storage::open_directory(fs, Path::new(PATH)).unwrap();
    let names = directory.names().unwrap();
    let name = names.iter().find(|name| name.starts_with(prefix)).unwrap();
    directory.open(name, OFlags::RDWR).unwrap()
}

/// A unique pattern for each version, block and sector.
pub fn pattern(version: u64, block: u64, sector: usize) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let word_of = (version << 32 | block << 12 | (sector as u64) << 8 | at as u64) + 1;
        word.copy_from_slice(&word_of.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    }
    bytes
}

pub fn blocks(first: u64, count: u64) -> Extent {
    Extent::between(first * BLOCK_BYTES, (first + count) * BLOCK_BYTES)
}

pub struct Queue {
    pub channel: Box<dyn Channel<Sealed>>,
    pub pool: BufferPool,
}

impl Queue {
    pub fn open(disk: &dyn Disk<Sealed>, reactor: Rc<dyn Reactor>, pool: &BufferPool) -> Self {
        let thread = Thread { pool: pool.clone(), reactor };
        Self { channel: disk.open(&thread, 8).unwrap(), pool: pool.clone() }
    }

    pub fn on(fs: &SimFs, disk: &dyn Disk<Sealed>) -> Self {
        let pool = BufferPool::new(8 << 20).unwrap();
        Self::open(disk, Rc::new(fs.reactor(5).unwrap()), &pool)
    }

    pub fn write_request(&self, version: u64, extent: Extent, durable: bool) -> Request<Sealed> {
        let mut from = self.pool.take(extent.length() as usize).unwrap();
        let (bytes, seals) = from.parts_mut();
        seals.fill(Some(KeyEpoch::FIRST));
        let first = extent.offset() / BLOCK_BYTES;
        for (at, sector) in bytes.chunks_mut(SECTOR).enumerate() {
            sector.copy_from_slice(&pattern(version, first + (at / 8) as u64, at % 8));
        }
        Request::Write { extent, from, durable }
    }

    pub fn read_request(&self, extent: Extent) -> Request<Sealed> {
        Request::Read { extent, into: self.pool.take(extent.length() as usize).unwrap() }
    }

    pub fn run(&mut self, request: Request<Sealed>) -> Done<Sealed> {
        self.channel.submit(Io { tag: 77, request });
        let mut done = Vec::new();
        for _ in 0..100_000 {
            self.channel.kick();
            self.channel.poll(&mut done);
            if let Some(done) = done.pop() {
                return done;
            }
        }
        panic!("a request does not end");
    }

    pub fn write(&mut self, version: u64, extent: Extent) {
        let request = self.write_request(version, extent, false);
        self.run(request).result.unwrap();
    }

    pub fn read(&mut self, extent: Extent) -> Result<Vec<u8>, IoError> {
        let request = self.read_request(extent);
        let done = self.run(request);
        done.result.map(|()| done.memory.unwrap().bytes().to_vec())
    }

    pub fn flush(&mut self) {
        self.run(Request::Flush).result.unwrap();
    }

    /// Whether it reads as this version.
    pub fn shows(&mut self, version: u64, block: u64) -> Result<bool, IoError> {
        let content = self.read(blocks(block, 1))?;
        let sectors = content.chunks(SECTOR).enumerate();
        Ok(sectors.into_iter().all(|(at, sector)| sector == pattern(version, block, at)))
    }
}
