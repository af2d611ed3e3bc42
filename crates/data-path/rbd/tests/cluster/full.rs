//! Pools that are full, by a quota and by their devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Storage, StoredFile};
use strongroom_datastore::file::*;
use strongroom_filters::cleartext::CleartextDisk;
use strongroom_filters::park::{ParkDisk, Patience, Trouble, TroubleBook};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, EventLoop, FileIo, FileOperation, IdleReactor, IoError, Plain, Request};
use strongroom_rbd::{RbdOptions, RbdStorage};
use strongroom_test_peers::CephCluster;
use strongroom_types::{Extent, VolumeSize};

use crate::support::{FileLane, Pools, datastore_on};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
const DELETED: &str = "layer-00000000-0000-4000-8000-000000000002";
const MIB: u64 = 1 << 20;
/// How long the cluster may take to notice what a pool has, and to tell everybody.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
const QUOTA_BYTES: u64 = 48 * MIB;
/// The number of a guest's writes of 256 KiB that are more than its quota.
const BEYOND_QUOTA: u64 = 40;
/// In a file that is deleted when the pool is full.
const DELETED_BYTES: u64 = 24 * MIB;

/// Writes to a layer.
struct Writer(FileLane);

impl Writer {
    fn new(directory: &dyn Directory) -> Self {
        let file: Arc<dyn StoredFile> = directory.open(LAYER, OFlags::RDWR | OFlags::CREATE).unwrap().into();
        file.try_lock(FlockOperation::NonBlockingLockExclusive).unwrap();
        file.set_length(4096 * MIB).unwrap();
        Self(FileLane::to(file, 32 << 20))
    }

    /// Does operations at once. Returns their results.
    fn run(&mut self, operations: Vec<FileOperation>) -> Vec<Result<(), IoError>> {
        let mut results: Vec<Option<Result<(), IoError>>> = vec![None; operations.len()];
        for (tag, operation) in operations.into_iter().enumerate() {
            self.0.queue.submit(FileIo { tag: tag as u64, file: self.0.token, operation });
        }
        self.0.queue.kick();
        let (mut done, until) = (Vec::new(), Instant::now() + NOTICED_WITHIN);
        while results.contains(&None) {
            assert!(Instant::now() < until, "an operation has no end: {results:?}");
            self.0.event_loop.sleep(Duration::from_secs(1)).unwrap();
            self.0.queue.poll(&mut done);
            done.drain(..).for_each(|done| results[done.tag as usize] = Some(done.result));
        }
        results.into_iter().flatten().collect()
    }

    /// Writes mebibytes, each full of its number and this stamp.
    fn write(&mut self, mebibytes: impl Iterator<Item = u64>, stamp: u8) -> Vec<Result<(), IoError>> {
        let write = |number: u64| {
            let mut from = self.0.pool.take(MIB as usize).unwrap();
            from.bytes_mut().fill(number as u8 ^ stamp);
            FileOperation::Write { offset: number * MIB, from, durable: true }
        };
        let writes = mebibytes.map(write).collect();
        self.run(writes)
    }

    /// Repeats writes that are refused for want of room, as the data path does, until there is
    /// some: the monitors need a while to see that.
    fn write_until_there_is_room(&mut self, mebibytes: &[u64], stamp: u8) {
        let (mut left, until) = (mebibytes.to_vec(), Instant::now() + NOTICED_WITHIN);
        while !left.is_empty() {
            assert!(Instant::now() < until, "there is no room for {left:?}");
            let results = self.write(left.iter().copied(), stamp);
            assert!(
                results.iter().all(|result| matches!(result, Ok(()) | Err(IoError::NoSpace))),
                "{results:?}"
            );
            let refused = left.into_iter().zip(results).filter(|(_, result)| result.is_err());
            left = refused.map(|(number, _)| number).collect();
        }
    }

    fn verify(&self, acknowledged: &BTreeMap<u64, u8>) {
        for (number, stamp) in acknowledged {
            let mut found = [0; 4096];
            assert_eq!(self.0.file.read_at(number * MIB + 8192, &mut found), Ok(4096));
            assert_eq!(found, [*number as u8 ^ stamp; 4096], "mebibyte {number}");
        }
    }
}

fn set_quota(cluster: &mut CephCluster, pool: &str, bytes: u64) {
    let command =
        format!(r#"{{"prefix":"osd pool set-quota","pool":"{pool}","field":"max_bytes","val":"{bytes}"}}"#);
    cluster.tell(&command);
}

fn space(directory: &dyn Directory) -> FileSystem {
    directory.file_system(Path::new("vm1")).unwrap()
}

/// Waits until the datastore's space is as it must be.
fn wait_for_space(directory: &dyn Directory, is_reached: impl Fn(&FileSystem) -> bool) {
    let until = Instant::now() + NOTICED_WITHIN;
    loop {
        let space = space(directory);
        if is_reached(&space) {
            return;
        }
        assert!(Instant::now() < until, "{space:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A writer beyond the quota gets "no space" for what does not fit, at once, and everything else
/// goes on: reads, flushes, discards, and the deletion of files by which there is room again.
fn fills(cluster: &mut CephCluster, options: &RbdOptions, pool: &str) {
    let storage = RbdStorage::connect(options).unwrap();
    let directory = storage.open_directory(Path::new("")).unwrap();
    let unlimited = space(&*directory);
    let deleted = directory.open(DELETED, OFlags::RDWR | OFlags::CREATE).unwrap();
    deleted.set_length(64 * MIB).unwrap();
    deleted.write_at(0, &[7; DELETED_BYTES as usize]).unwrap();
    drop(deleted);
    set_quota(cluster, pool, QUOTA_BYTES);
    let holds = |bytes: u64| move |space: &FileSystem| space.total_bytes - space.available_bytes >= bytes;
    // The total is what is there and what may be added.
    wait_for_space(&*directory, |space| space.total_bytes == QUOTA_BYTES && holds(DELETED_BYTES)(space));
    assert!(unlimited.available_bytes > 2 * QUOTA_BYTES, "{unlimited:?}");

    // Some at a time, as a guest does, and not more than the cluster has noticed: a quota is seen
    // to in its own time.
    let mut writer = Writer::new(&*directory);
    let mut acknowledged = BTreeMap::new();
    let refused: Vec<u64> = loop {
        let first = acknowledged.len() as u64;
        assert!(first * MIB < 2 * QUOTA_BYTES, "the pool has no end");
        let batch = first..first + 4;
        let results = writer.write(batch.clone(), 0x55);
        assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(IoError::NoSpace))), "{results:?}");
        let of =
            |wanted: bool| batch.clone().zip(&results).filter(move |(_, result)| result.is_ok() == wanted);
        acknowledged.extend(of(true).map(|(number, _)| (number, 0x55)));
        let refused: Vec<u64> = of(false).map(|(number, _)| number).collect();
        if !refused.is_empty() {
            break refused;
        }
        wait_for_space(&*directory, holds(DELETED_BYTES + acknowledged.len() as u64 * MIB));
    };
    wait_for_space(&*directory, |space| space.available_bytes == 0);
    assert!(DELETED_BYTES + acknowledged.len() as u64 * MIB >= QUOTA_BYTES, "{} fit", acknowledged.len());

    // It stays so, for another client as well, and for small files in the same pool.
    assert_eq!(writer.write(refused.iter().copied(), 0x55), vec![Err(IoError::NoSpace); refused.len()]);
    let pool_of_names = options.data_pool.is_none();
    let made = directory.open("descriptor", OFlags::RDWR | OFlags::CREATE).map(drop);
    assert_eq!(made, if pool_of_names { Err(Errno::DQUOT) } else { Ok(()) });
    let other = RbdStorage::connect(options).unwrap();
    let seen = other.open_directory(Path::new("")).unwrap();
    assert_eq!(space(&*seen).available_bytes, 0);
    writer.verify(&acknowledged);
    assert_eq!(writer.run(vec![FileOperation::SyncData, FileOperation::Sync]), [Ok(()), Ok(())]);

    // A file that is deleted makes room, and so does a discard.
    seen.remove(DELETED).unwrap();
    assert!(!seen.names().unwrap().contains(&DELETED.to_owned()));
    wait_for_space(&*directory, |space| space.available_bytes >= 4 * MIB);
    let freed = Extent::between(0, 4 * MIB);
    assert_eq!(writer.run(vec![FileOperation::Punch { extent: freed }]), [Ok(())]);
    acknowledged.retain(|number, _| *number >= 4);
    let stored = acknowledged.len() as u64 * MIB;
    wait_for_space(&*directory, |space| space.available_bytes >= QUOTA_BYTES - stored - MIB);
    writer.write_until_there_is_room(&refused, 0xAA);
    acknowledged.extend(refused.iter().map(|number| (*number, 0xAA)));

    // The quota is raised.
    set_quota(cluster, pool, 0);
    wait_for_space(&*directory, |space| space.available_bytes > 2 * QUOTA_BYTES);
    let rest: Vec<u64> = (0..4).chain(100..108).collect();
    writer.write_until_there_is_room(&rest, 0xAA);
    acknowledged.extend(rest.iter().map(|number| (*number, 0xAA)));
    writer.verify(&acknowledged);
    drop(writer);
    directory.remove(LAYER).unwrap();
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_full_pool_refuses_what_does_not_fit_and_goes_on() {
    let mut cluster = CephCluster::start(3);
    for (pools, pool) in [(Pools::Replicated, "rep2"), (Pools::ErasureCoded, "ec21")] {
        let options = datastore_on(cluster.conf.clone(), pools);
        fills(&mut cluster, &options, pool);
    }
}

/// What a guest sees of a full pool: its writes wait, as those to a full file system do, and go on.
#[test]
#[ignore = "long: make test-ceph"]
fn a_guests_writes_to_a_full_pool_wait_until_there_is_room() {
    let mut cluster = CephCluster::start(2);
    let options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let storage = RbdStorage::connect(&options).unwrap();
    let path = Path::new("vm1");
    let (provisioning, protection) = (Provisioning::Thin, Protection::Unencrypted);
    let size = VolumeSize::new(256 * MIB).unwrap();
    let create = CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None };
    create_on(&storage, path, &create).unwrap();
    let (access, lock_wait, least_generation) = (Access::ReadWrite, Duration::ZERO, 0);
    let to_open = OpenOptions { protection, access, lock_wait, least_generation };
    let opened = open_on(&storage, path, &to_open).unwrap();
    let book = Arc::new(TroubleBook::new());
    let clear = Arc::new(CleartextDisk::new(Arc::clone(&opened.disk) as _));
    let disk = ParkDisk::new(clear, Patience::UntilThereIsRoom, Arc::clone(&book));

    set_quota(&mut cluster, "rep2", 8 * MIB);
    let (directory, waits) = (storage.open_directory(Path::new("")).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let setup = Setup::on(|| IdleReactor::new().map(Rc::new));
            let disk: &dyn Disk<Plain> = &disk;
            let mut driver = Driver::<Plain>::open(disk, &setup, 4, 32 << 20, 0).unwrap();
            for number in 0..200 {
                if number == BEYOND_QUOTA {
                    // A fast guest would be done before the monitors notice.
                    let noticed = |space: &FileSystem| space.available_bytes == 0;
                    wait_for_space(&*directory, |space| noticed(space) || waits.load(Ordering::Relaxed));
                }
                driver.write(number * MIB, &[number as u8; 256 << 10]).unwrap();
            }
            driver.succeed(Request::Flush).unwrap();
            for number in 0..200 {
                let read = driver.read(Extent::new(number * MIB, 4096).unwrap()).unwrap();
                assert_eq!(read, [number as u8; 4096], "{number}");
            }
        });
        let until = Instant::now() + NOTICED_WITHIN;
        while book.read().waiting.requests == 0 {
            assert!(!guest.is_finished() && Instant::now() < until, "{:?}", book.read());
            std::thread::sleep(Duration::from_millis(50));
        }
        waits.store(true, Ordering::Relaxed);
        set_quota(&mut cluster, "rep2", 0);
        guest.join().unwrap();
    });
    assert_eq!(book.read(), Trouble::default(), "nothing has failed, and nothing waits");
}

/// Devices that are full make their pools so, and a volume can be deleted in spite of it.
#[test]
#[ignore = "long: make test-ceph"]
fn full_devices_refuse_what_does_not_fit_and_volumes_are_deleted() {
    let mut cluster = CephCluster::start(2);
    let options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let storage = RbdStorage::connect(&options).unwrap();
    let directory = storage.open_directory(Path::new("")).unwrap();
    let size = VolumeSize::new(64 * MIB).unwrap();
    let (provisioning, protection) = (Provisioning::Thin, Protection::Unencrypted);
    let create = CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None };
    create_on(&storage, Path::new("vm1"), &create).unwrap();
    let mut writer = Writer::new(&*directory);
    assert_eq!(writer.write(0..8, 0x55), vec![Ok(()); 8]);
    let before = space(&*directory);

    let ratios = |cluster: &mut CephCluster, full: &str, backfill: &str, near: &str| {
        for (name, ratio) in [("full", full), ("backfillfull", backfill), ("nearfull", near)] {
            cluster.tell(&format!(r#"{{"prefix":"osd set-{name}-ratio","ratio":{ratio}}}"#));
        }
    };
    ratios(&mut cluster, "0.0003", "0.0002", "0.0001");
    wait_for_space(&*directory, |space| space.available_bytes == 0);
    let until = Instant::now() + NOTICED_WITHIN;
    let mut next = 8;
    while writer.write(next..next + 1, 0x55) == [Ok(())] {
        assert!(Instant::now() < until, "the devices have no end");
        next += 1;
    }
    assert_eq!(writer.write(next..next + 4, 0x55), vec![Err(IoError::NoSpace); 4]);
    let refused = create_on(&storage, Path::new("vm2"), &create).unwrap_err();
    assert!(matches!(refused, DatastoreError::Full { .. }), "{refused}");
    let stored = |found: FileSystem| found.total_bytes - found.available_bytes;
    assert!(stored(space(&*directory)) >= stored(before), "{before:?}");
    delete_on(&storage, Path::new("vm1"), Duration::ZERO).unwrap();
    assert_eq!(directory.names().unwrap(), [LAYER]);

    ratios(&mut cluster, "0.95", "0.9", "0.85");
    wait_for_space(&*directory, |space| space.available_bytes > 0);
    writer.write_until_there_is_room(&(next..next + 4).collect::<Vec<_>>(), 0x55);
    writer.verify(&(0..next + 4).map(|number| (number, 0x55)).collect());
}
