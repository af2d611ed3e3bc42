//! What becomes of writes while parts of the cluster are gone: none that was acknowledged is lost,
//! and no thread waits for the cluster.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Storage, StoredFile};
use strongroom_io::{EventLoop, FileDone, FileIo, FileOperation, FileQueue, FileToken, IdleReactor};
use strongroom_memory::BufferPool;
use strongroom_rbd::RbdStorage;
use strongroom_test_peers::CephCluster;
use strongroom_types::Extent;

use crate::support::{Pools, connect, datastore_on};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
const OTHER_LAYER: &str = "layer-00000000-0000-4000-8000-000000000002";
const BLOCK: u64 = 4096;
/// They lie in several objects of the cluster, and so on several of its devices.
pub const BLOCKS: u64 = 64;
const APART: u64 = 1 << 20;
const DEPTH: usize = 16;
/// More than librados takes at once by default, and than a queue has under way.
const MANY: u64 = 4000;
const OSDS: [&str; 3] = ["osd.0", "osd.1", "osd.2"];
const SYNC: u64 = u64::MAX;

/// A guest that knows what each block must have.
pub struct Guest {
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
    pub fn new(storage: &RbdStorage) -> Self {
        Self::on(storage, LAYER)
    }

    fn on(storage: &RbdStorage, layer: &str) -> Self {
        let directory = storage.open_directory(Path::new("")).unwrap();
        let file = directory.open(layer, OFlags::RDWR | OFlags::CREATE).unwrap();
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

    fn poll_until_one_ends(&mut self, within: Duration) -> FileDone {
        let until = Instant::now() + within;
        loop {
            if let Some(done) = self.poll().pop() {
                return done;
            }
            assert!(Instant::now() < until, "nothing has ended within {within:?}");
        }
    }

    fn turn(&mut self) {
        self.write_some();
        self.take_ends();
    }

    fn take_ends(&mut self) -> usize {
        let ended = self.poll();
        let count = ended.len();
        for FileDone { tag, result, .. } in ended {
            result.unwrap();
            let write = self.under_way.remove(&tag).unwrap();
            self.acknowledged.insert(tag, write);
        }
        count
    }

    /// Goes on until so many more writes were acknowledged.
    pub fn write(&mut self, count: u64) {
        let until = self.writes + count;
        while self.writes < until {
            self.turn();
        }
    }

    /// Writes, and sees that nothing is acknowledged, once what was before has ended or hangs.
    pub fn wait_for_nothing(&mut self) {
        self.write_some();
        while self.take_ends() > 0 {}
        self.write_some();
        assert!((0..50).all(|_| self.take_ends() == 0), "a write was acknowledged");
    }

    fn wait(&mut self) {
        while !self.under_way.is_empty() {
            self.take_ends();
        }
    }

    /// Waits for all that is under way, and returns the number of blocks that were looked at.
    pub fn look(&mut self, storage: &RbdStorage) -> usize {
        self.wait();
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

/// The devices stand still until it is dropped: a test that fails waits for its requests, too.
struct Stopped<'a>(&'a mut CephCluster);

impl<'a> Stopped<'a> {
    fn all(cluster: &'a mut CephCluster) -> Self {
        OSDS.iter().for_each(|osd| cluster.pause(osd));
        Self(cluster)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        OSDS.iter().for_each(|osd| self.0.resume(osd));
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn no_acknowledged_write_is_lost_with_a_device_or_the_monitor() {
    let mut cluster = CephCluster::start(OSDS.len());
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
/// for ever. Nor do librbd's threads wait: what needs no device is done.
#[test]
#[ignore = "long: make test-ceph"]
fn devices_that_stand_still_hold_up_no_thread() {
    let mut cluster = CephCluster::start(OSDS.len());
    let options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let storage = RbdStorage::connect(&options).unwrap();
    let mut guest = Guest::new(&storage);
    guest.write(100);
    let mut other = Guest::on(&storage, OTHER_LAYER);
    let from = other.pool.take(BLOCK as usize).unwrap();
    other.submit(0, FileOperation::Write { offset: 0, from, durable: true });
    assert_eq!(other.poll_until_one_ends(Duration::from_secs(60)).result, Ok(()));
    guest.wait();
    let stopped = Stopped::all(&mut cluster);
    guest.write_some();
    for number in 0..MANY {
        // Behind the block that the guest writes.
        let offset = number % BLOCKS * APART + (1 + number / BLOCKS % (APART / BLOCK - 1)) * BLOCK;
        let extent = Extent::between(offset, offset + BLOCK);
        guest.submit(BLOCKS + number, FileOperation::Punch { extent });
    }
    guest.submit(SYNC, FileOperation::SyncData);
    guest.queue.kick();
    assert!(guest.poll().is_empty(), "a device has answered");
    // Nothing was ever written there, as librbd knows.
    let into = other.pool.take(BLOCK as usize).unwrap();
    other.submit(SYNC, FileOperation::Read { offset: (BLOCKS - 1) * APART, into });
    let read = other.poll_until_one_ends(Duration::from_secs(60));
    assert_eq!((read.result, read.buffer.unwrap().bytes()), (Ok(()), &[0; BLOCK as usize][..]));
    assert!(guest.poll().is_empty(), "a device has answered");
    drop(stopped);
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

/// An extent that reaches more objects than a queue has under way is done, beside short operations.
#[test]
#[ignore = "long: make test-ceph"]
fn long_extents_are_freed_and_zeroed_in_parts() {
    const OBJECTS: u64 = 2000;
    const OBJECT: u64 = 4 << 20;
    let storage = connect(Pools::Replicated);
    let mut guest = Guest::new(&storage);
    let directory = storage.open_directory(Path::new("")).unwrap();
    let file = directory.open(LAYER, OFlags::RDWR).unwrap();
    file.set_length(OBJECTS * OBJECT).unwrap();
    let written = [BLOCK, OBJECT - BLOCK, 63 * OBJECT, 700 * OBJECT, (OBJECTS - 1) * OBJECT];
    for offset in written {
        file.write_at(offset, &[7; BLOCK as usize]).unwrap();
    }
    let extent = Extent::between(2 * BLOCK, OBJECTS * OBJECT);
    for tag in 0..3 {
        guest.submit(tag, FileOperation::Punch { extent });
    }
    let beyond = Extent::between(OBJECTS * OBJECT, 2 * OBJECTS * OBJECT);
    guest.submit(3, FileOperation::Punch { extent: beyond });
    let mut ended = HashMap::new();
    while ended.len() < 4 {
        ended.extend(guest.poll().into_iter().map(|done| (done.tag, done.result)));
    }
    assert!((0..3).all(|tag| ended[&tag] == Ok(())) && ended[&3].is_err(), "{ended:?}");
    // Zeroes that keep their space are stored.
    let zeroed = Extent::between(0, 70 * OBJECT);
    guest.submit(4, FileOperation::Zero { extent: zeroed });
    assert_eq!(guest.poll_until_one_ends(Duration::from_secs(60)).result, Ok(()));
    for offset in written {
        let mut found = [1; BLOCK as usize];
        file.read_at(offset, &mut found).unwrap();
        assert_eq!(found, [0; BLOCK as usize], "{offset}");
    }
    assert_eq!((file.next_data(0), file.next_hole(0)), (Ok(0), Ok(70 * OBJECT)));
    assert_eq!(file.next_data(70 * OBJECT), Err(Errno::NXIO));
}
