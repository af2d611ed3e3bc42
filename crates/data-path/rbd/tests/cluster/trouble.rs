//! What becomes of writes while parts of the cluster are gone: none that was acknowledged is lost,
//! and no thread waits for the cluster.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::OFlags;
use strongroom_datastore::file::storage::{Storage, StoredFile};
use strongroom_io::{EventLoop, FileDone, FileIo, FileOperation, FileQueue, FileToken, IdleReactor};
use strongroom_memory::BufferPool;
use strongroom_rbd::RbdStorage;
use strongroom_test_peers::CephCluster;
use strongroom_types::Extent;

use crate::support::{Pools, datastore_on};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
const BLOCK: u64 = 4096;
/// They lie in several objects of the cluster, and so on several of its devices.
const BLOCKS: u64 = 64;
const APART: u64 = 1 << 20;
const DEPTH: usize = 16;
/// More than the cluster's library takes at once.
const MANY: u64 = 2000;
const SYNC: u64 = u64::MAX;

/// A guest that knows what each block must have.
struct Guest {
    event_loop: Rc<IdleReactor>,
    queue: Box<dyn FileQueue>,
    file: FileToken,
    pool: BufferPool,
    random: StdRng,
    /// The number of the last write that was acknowledged, by block.
    acknowledged: HashMap<u64, u64>,
    under_way: HashMap<u64, u64>,
    writes: u64,
}

impl Guest {
    fn new(storage: &RbdStorage) -> Self {
        let directory = storage.open_directory(Path::new("")).unwrap();
        let file = directory.open(LAYER, OFlags::RDWR | OFlags::CREATE).unwrap();
        file.set_length(BLOCKS * APART).unwrap();
        let file: Arc<dyn StoredFile> = file.into();
        let event_loop = Rc::new(IdleReactor::new().unwrap());
        let mut queue = file.queue(&event_loop.reactor()).unwrap();
        let file = queue.register(file as _).unwrap();
        Self {
            event_loop,
            queue,
            file,
            pool: BufferPool::new(32 << 20).unwrap(),
            random: StdRng::seed_from_u64(1),
            acknowledged: HashMap::new(),
            under_way: HashMap::new(),
            writes: 0,
        }
    }

    fn submit(&mut self, tag: u64, operation: FileOperation) {
        self.queue.submit(FileIo { tag, file: self.file, operation });
    }

    /// Writes blocks that nothing is being written to.
    fn write_some(&mut self) {
        while self.under_way.len() < DEPTH {
            let block = self.random.random_range(0..BLOCKS);
            if self.under_way.contains_key(&block) {
                continue;
            }
            self.writes += 1;
            self.under_way.insert(block, self.writes);
            let mut from = self.pool.take(BLOCK as usize).unwrap();
            let words = from.bytes_mut().chunks_exact_mut(8);
            words.for_each(|word| word.copy_from_slice(&self.writes.to_le_bytes()));
            self.submit(block, FileOperation::Write { offset: block * APART, from, durable: false });
        }
    }

    fn poll(&mut self) -> Vec<FileDone> {
        self.queue.kick();
        self.event_loop.sleep(Duration::from_millis(20)).unwrap();
        let mut done = Vec::new();
        self.queue.poll(&mut done);
        done
    }

    fn turn(&mut self) {
        self.write_some();
        self.take_ends();
    }

    fn take_ends(&mut self) {
        for FileDone { tag, result, .. } in self.poll() {
            result.unwrap();
            let write = self.under_way.remove(&tag).unwrap();
            self.acknowledged.insert(tag, write);
        }
    }

    /// Goes on until so many more writes were acknowledged.
    fn write(&mut self, count: u64) {
        let until = self.writes + count;
        while self.writes < until {
            self.turn();
        }
    }

    /// Waits for all that is under way, and returns the number of blocks that were looked at.
    fn look(&mut self, storage: &RbdStorage) -> usize {
        while !self.under_way.is_empty() {
            self.take_ends();
        }
        let directory = storage.open_directory(Path::new("")).unwrap();
        let file = directory.open(LAYER, OFlags::RDONLY).unwrap();
        for (block, write) in &self.acknowledged {
            let mut found = [0; BLOCK as usize];
            assert_eq!(file.read_at(block * APART, &mut found), Ok(BLOCK as usize));
            let whole = found.chunks_exact(8).all(|word| word == write.to_le_bytes());
            assert!(whole, "block {block} has {:02x?} and not write {write}", &found[..16]);
        }
        self.acknowledged.len()
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn no_acknowledged_write_is_lost_with_a_device_or_the_monitor() {
    let mut cluster = CephCluster::start(3);
    let options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let storage = RbdStorage::connect(&options).unwrap();
    let mut guest = Guest::new(&storage);
    guest.write(200);
    for daemon in ["osd.0", "osd.1", "osd.2", "mon"] {
        cluster.kill(daemon);
        // With the monitor gone the devices go on; writes to a device that is gone wait until the
        // monitor has noticed.
        guest.write(200);
        cluster.start_again(daemon);
        guest.write(200);
        cluster.wait_until_clean();
        // As a successor sees it, which asks the cluster and no cache.
        let other = RbdStorage::connect(&options).unwrap();
        assert_eq!(guest.look(&other), BLOCKS as usize, "{daemon}");
    }
}

/// The thread that submits is the one that wakes the devices: if it waited for them, it would wait
/// for ever.
#[test]
#[ignore = "long: make test-ceph"]
fn a_thread_that_submits_does_not_wait_for_devices_that_stand_still() {
    let mut cluster = CephCluster::start(3);
    let options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let storage = RbdStorage::connect(&options).unwrap();
    let mut guest = Guest::new(&storage);
    guest.write(100);
    for daemon in ["osd.0", "osd.1", "osd.2"] {
        cluster.pause(daemon);
    }
    guest.write_some();
    for number in 0..MANY {
        // Behind the block that the guest writes.
        let offset = number % BLOCKS * APART + (1 + number / BLOCKS) * BLOCK;
        let extent = Extent::between(offset, offset + BLOCK);
        guest.submit(BLOCKS + number, FileOperation::Punch { extent });
    }
    guest.submit(SYNC, FileOperation::SyncData);
    guest.queue.kick();
    for daemon in ["osd.0", "osd.1", "osd.2"] {
        cluster.resume(daemon);
    }
    let mut others = MANY + 1;
    while others > 0 {
        for FileDone { tag, result, .. } in guest.poll() {
            result.unwrap();
            match guest.under_way.remove(&tag) {
                Some(write) => drop(guest.acknowledged.insert(tag, write)),
                None => others -= 1,
            }
        }
    }
    assert_eq!(guest.look(&storage), guest.acknowledged.len());
}
