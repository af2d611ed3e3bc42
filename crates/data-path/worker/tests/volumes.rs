//! Whole volumes, from the frontend's disk down to the file: the conformance suite, and random
//! histories compared with a vector of bytes, with reopening and growth.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::*;
use strongroom_datastore::file::*;
use strongroom_io::conformance::{Conformance, Driver, Setup};
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Plain, Request, Thread, Waker};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::{Lanes, Ring};
use strongroom_types::{BLOCK_BYTES, Extent, VolumeSize};
use strongroom_worker::Destaging;
use strongroom_worker::condition::Completion;
use strongroom_worker::layers::Ciphers;
use strongroom_worker::stack::{Stack, assemble_destaged};

const SECTOR_BYTES: u64 = 512;
const DEPTH: usize = 8;
const POOL_BYTES: usize = 4 << 20;

/// The most tops of a volume that gets new ones while it is used.
const TOPS_MAX: usize = 12;

/// A ring that was just closed releases its files a moment later.
const LOCK_WAIT: Duration = Duration::from_secs(60);

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// A volume under its own key, or clear.
struct Volume {
    path: PathBuf,
    kek: Option<Kek>,
}

impl Volume {
    fn create(
        path: PathBuf,
        encrypted: bool,
        integrity: bool,
        provisioning: Provisioning,
        bytes: u64,
    ) -> Self {
        let kek = encrypted.then(|| KekSource::KeyFile {}.kek(&SecretBytes::random(32).unwrap()).unwrap());
        let volume = Self { path, kek };
        let size = VolumeSize::new(bytes).unwrap();
        let protection = volume.protection();
        let options = CreateOptions {
            size,
            provisioning,
            protection,
            log_bytes: None,
            integrity: integrity.then_some(Integrity::NEW),
        };
        create(&volume.path, &options).unwrap();
        volume
    }

    fn protection(&self) -> Protection<'_> {
        self.kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted)
    }

    fn open(&self) -> OpenVolume {
        let protection = self.protection();
        let options =
            OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation: 0 };
        open(&self.path, &options).unwrap()
    }

    fn disk(&self) -> Arc<dyn Disk<Plain>> {
        assemble_destaged(self.open()).unwrap()
    }
}

fn passes(place: &str, encrypted: bool, provisioning: Provisioning) {
    let datastore = tempfile::tempdir_in(place).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Plain>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        Volume::create(path, encrypted, false, provisioning, (5 << 20) + 1536).disk()
    });
    if let Err(failure) = suite.event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn an_encrypted_thin_volume_conforms() {
    passes(env!("CARGO_TARGET_TMPDIR"), true, Provisioning::Thin);
}

#[test]
fn an_encrypted_thick_volume_conforms() {
    passes(env!("CARGO_TARGET_TMPDIR"), true, Provisioning::Thick);
}

#[test]
fn a_clear_volume_conforms() {
    passes(env!("CARGO_TARGET_TMPDIR"), false, Provisioning::Thin);
}

#[test]
fn a_volume_on_tmpfs_conforms() {
    passes("/dev/shm", true, Provisioning::Thin);
}

/// A volume that gets one new top after the other while it is used.
struct Topped {
    disk: Arc<dyn Disk<Plain>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Topped {
    fn over(volume: Volume, changes: Arc<AtomicU64>) -> Self {
        let (served, serving) = std::sync::mpsc::channel();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut top = Top::serve(&volume);
            served.send(top.stack.disk()).unwrap();
            for number in 1..TOPS_MAX {
                if ended.load(Ordering::SeqCst) {
                    break;
                }
                // One in three is abandoned.
                top = top.next(&volume, number % 3 == 2, &changes);
            }
            // It empties the log as long as there are clients.
            while !ended.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { disk: serving.recv().unwrap(), ends, thread: Some(thread) }
    }
}

impl Drop for Topped {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Disk<Plain> for Topped {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        self.disk.open(thread, depth)
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

/// A volume as a worker serves it, with its supervisor's side.
struct Top {
    head: VolumeHead,
    stack: Stack,
    lanes: Lanes,
    destaging: Destaging,
}

impl Top {
    fn serve(volume: &Volume) -> Self {
        let protection = volume.protection();
        let access = Access::ReadWrite;
        let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 };
        let (head, layer, deks) = open_apart(&volume.path, &options).unwrap();
        let stack = Stack::new(layer, ciphers(deks)).unwrap();
        let lanes = Lanes::start("destage", 2, 64).unwrap();
        let destaging = stack.destage(&lanes).unwrap();
        Self { head, stack, lanes, destaging }
    }

    /// Prepares a new top, and changes over to it unless that is abandoned, or a request does not
    /// end in time.
    fn next(mut self, volume: &Volume, is_abandoned: bool, changes: &AtomicU64) -> Self {
        self.stack.hold_destaging(true);
        self.head.prepare_layer(volume.protection(), Some(LOG_BYTES_MIN)).unwrap();
        let (top, deks) = self.head.open_prepared(volume.protection()).unwrap();
        let prepared = self.stack.prepare_top(top, ciphers(deks));
        let frozen = prepared.and_then(|top| self.stack.freeze(Duration::from_secs(1)).map(|()| top));
        let top = match frozen {
            Ok(top) if !is_abandoned => top,
            _ => {
                self.stack.abandon_top();
                self.stack.hold_destaging(false);
                self.head.withdraw_layer(volume.protection()).unwrap();
                return self;
            }
        };
        let destaging = top.destage(&self.lanes).unwrap();
        self.stack.change_top(top).unwrap();
        changes.fetch_add(1, Ordering::SeqCst);
        std::mem::replace(&mut self.destaging, destaging).end(End::Now).unwrap();
        let told = Arc::new(Waker::new().unwrap());
        let closing = self.stack.complete_lower(Duration::ZERO, &self.lanes, told).unwrap().unwrap();
        loop {
            match closing.watch().outcome() {
                Completion::Complete => break,
                other => assert_eq!(other, Completion::UnderWay),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stack.end_closing(&closing);
        self.head.settle_layer(None, volume.protection()).unwrap();
        self
    }
}

fn ciphers(deks: Deks) -> Ciphers {
    if deks.is_empty() { Ciphers::Unencrypted } else { Ciphers::of(deks).unwrap() }
}

fn gets_new_tops(encrypted: bool, integrity: bool) {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (count, changes) = (AtomicU64::new(0), Arc::<AtomicU64>::default());
    let made = Arc::clone(&changes);
    let suite = Conformance::<Plain>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let volume = Volume::create(path, encrypted, integrity, Provisioning::Thin, (5 << 20) + 1536);
        Topped::over(volume, Arc::clone(&made))
    });
    if let Err(failure) = suite.event_loops(ring).run() {
        panic!("{failure}");
    }
    let changes = changes.load(Ordering::SeqCst);
    assert!(changes > 20, "only {changes} new tops");
}

#[test]
fn a_volume_conforms_while_it_gets_new_tops() {
    gets_new_tops(true, true);
}

#[test]
fn a_clear_volume_conforms_while_it_gets_new_tops() {
    gets_new_tops(false, false);
}

/// What was answered before each change and after it is found by the next process, in a volume that
/// grows in between.
#[test]
fn a_volume_with_new_tops_keeps_what_was_answered_and_grows() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let volume = Volume::create(datastore.path().join("v"), true, true, Provisioning::Thin, 1 << 20);
    let top = Top::serve(&volume);
    let disk = top.stack.disk();
    let (size_bytes, ends) = (AtomicU64::new(1 << 20), AtomicBool::new(false));
    let (fills, top) = std::thread::scope(|scope| {
        let mut top = top;
        let client = scope.spawn(|| {
            let mut client = Driver::<Plain>::open(&*disk, &Setup::on(ring), DEPTH, POOL_BYTES, 0).unwrap();
            let mut fills = Vec::new();
            for turn in 1_u64.. {
                let blocks = size_bytes.load(Ordering::SeqCst) / BLOCK_BYTES;
                fills.resize(blocks as usize, 0_u8);
                let (number, fill) = (turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks, turn as u8);
                let extent = Extent::between(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES);
                assert!(client.read(extent).unwrap() == [fills[number as usize]; 4096]);
                let from = client.memory.with::<Plain>(&[fill; 4096], &mut client.random).unwrap();
                client.succeed(Request::Write { extent, from, durable: turn.is_multiple_of(7) }).unwrap();
                fills[number as usize] = fill;
                if turn.is_multiple_of(5) {
                    client.succeed(Request::Flush).unwrap();
                }
                if ends.load(Ordering::SeqCst) {
                    break;
                }
            }
            fills
        });
        for round in 2..=6_u64 {
            let changes = AtomicU64::new(0);
            top = top.next(&volume, round == 4, &changes);
            let size = VolumeSize::new(round << 20).unwrap();
            top.head.grow(size, volume.protection()).unwrap();
            top.stack.grow(size).unwrap();
            size_bytes.store(size.bytes(), Ordering::SeqCst);
        }
        ends.store(true, Ordering::SeqCst);
        (client.join().unwrap(), top)
    });
    let Top { head, stack, lanes, destaging } = top;
    destaging.end(End::Now).unwrap();
    drop((disk, stack, lanes, head));
    let mut client = Driver::<Plain>::open(&*volume.disk(), &Setup::on(ring), DEPTH, POOL_BYTES, 0).unwrap();
    for (number, fill) in (0..).zip(fills) {
        let extent = Extent::between(number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES);
        assert!(client.read(extent).unwrap() == [fill; 4096], "block {number}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Read(Extent),
    Write(Extent, u8),
    WriteZeroes(Extent),
    Discard(Extent),
    Flush,
    /// Zeroes that are written like any content.
    WriteOfZeroes(Extent),
    /// Close, grow by this many sectors, and reopen.
    Reopen(u64),
    /// Close, and reopen with a new layer on top.
    AddLayer,
}

fn extent() -> impl Strategy<Value = Extent> {
    let length = prop_oneof![1..600_u64, Just(512), Just(4096), 1..40_000_u64];
    let offset = prop_oneof![0..(300_u64 << 10), (0..75_u64).prop_map(|block| block * BLOCK_BYTES)];
    (offset, length).prop_map(|(offset, length)| Extent::between(offset, offset + length))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => extent().prop_map(Step::Read),
        6 => (extent(), any::<u8>()).prop_map(|(extent, fill)| Step::Write(extent, fill)),
        2 => extent().prop_map(Step::WriteZeroes),
        1 => extent().prop_map(Step::WriteOfZeroes),
        2 => extent().prop_map(Step::Discard),
        1 => Just(Step::Flush),
        1 => prop_oneof![Just(0), 1..100_u64].prop_map(Step::Reopen),
        1 => Just(Step::AddLayer),
    ]
}

/// A volume beside the vector that it must equal.
struct Subject {
    volume: Volume,
    driver: Option<Driver<Plain>>,
    oracle: Vec<u8>,
    /// Discards free whole blocks of a thin volume, and do nothing to a thick one.
    discards: bool,
    _datastore: tempfile::TempDir,
}

impl Subject {
    fn new(sectors: u64, encrypted: bool, integrity: bool, provisioning: Provisioning) -> Self {
        let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = sectors * SECTOR_BYTES;
        let volume = Volume::create(datastore.path().join("vm1"), encrypted, integrity, provisioning, bytes);
        let (oracle, discards) = (vec![0; bytes as usize], provisioning == Provisioning::Thin);
        let mut subject = Self { volume, driver: None, oracle, discards, _datastore: datastore };
        subject.reopen();
        subject
    }

    fn reopen(&mut self) {
        self.driver = None;
        let disk = self.volume.disk();
        assert_eq!(disk.limits().size_bytes, self.oracle.len() as u64);
        self.driver = Some(Driver::open(&*disk, &Setup::on(ring), DEPTH, POOL_BYTES, 0).unwrap());
    }

    fn driver(&mut self) -> &mut Driver<Plain> {
        self.driver.as_mut().unwrap()
    }

    fn fit(&self, extent: Extent) -> Extent {
        let size = self.oracle.len() as u64;
        let offset = extent.offset() % size;
        Extent::between(offset, (offset + extent.length()).min(size))
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Read(extent) => {
                let extent = self.fit(extent);
                let found = self.driver().read(extent).unwrap();
                assert!(found == self.oracle[extent.offset() as usize..extent.end() as usize], "{extent}");
            }
            Step::Write(extent, fill) => {
                let extent = self.fit(extent);
                let content: Vec<u8> =
                    (0..extent.length()).map(|at| fill.wrapping_add((at % 253) as u8)).collect();
                self.driver().write(extent.offset(), &content).unwrap();
                self.oracle[extent.offset() as usize..extent.end() as usize].copy_from_slice(&content);
            }
            Step::WriteZeroes(extent) => {
                let extent = self.fit(extent);
                let may_unmap = extent.length().is_multiple_of(2);
                self.driver().succeed(Request::WriteZeroes { extent, may_unmap, durable: false }).unwrap();
                self.oracle[extent.offset() as usize..extent.end() as usize].fill(0);
            }
            Step::WriteOfZeroes(extent) => {
                let extent = self.fit(extent);
                let content = vec![0; extent.length() as usize];
                self.driver().write(extent.offset(), &content).unwrap();
                self.oracle[extent.offset() as usize..extent.end() as usize].fill(0);
            }
            Step::Discard(extent) => {
                let extent = self.fit(extent);
                self.driver().succeed(Request::Discard { extent }).unwrap();
                let blocks = extent.narrowed_to(BLOCK_BYTES);
                if self.discards && !blocks.is_empty() {
                    self.oracle[blocks.offset() as usize..blocks.end() as usize].fill(0);
                }
            }
            Step::Flush => {
                self.driver().succeed(Request::Flush).unwrap();
            }
            Step::AddLayer => {
                // Flush, so that it is closed in order.
                self.driver().succeed(Request::Flush).unwrap();
                self.driver = None;
                let options = AddLayerOptions {
                    protection: self.volume.protection(),
                    log_bytes: None,
                    lock_wait: LOCK_WAIT,
                    least_generation: 0,
                };
                let layered = add_layer(&self.volume.path, &options).unwrap();
                assert!(layered.layers.len() > 1);
                self.reopen();
            }
            Step::Reopen(more_sectors) => {
                self.driver = None;
                let bytes = self.oracle.len() as u64 + more_sectors * SECTOR_BYTES;
                let mut volume = self.volume.open();
                volume.grow(VolumeSize::new(bytes).unwrap(), self.volume.protection()).unwrap();
                drop(volume);
                self.oracle.resize(bytes as usize, 0);
                self.reopen();
            }
        }
    }

    fn check_everything(mut self) {
        self.reopen();
        let size = self.oracle.len() as u64;
        for start in (0..size).step_by(1 << 20) {
            self.run(Step::Read(Extent::between(start, size.min(start + (1 << 20)))));
        }
        assert!(check(&self.volume.path, self.volume.kek.as_ref()).unwrap().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_volume_is_a_vector_of_bytes_whatever_happens_to_it(
        sectors in 8..64_u64,
        (encrypted, integrity) in prop_oneof![Just((false, false)), Just((true, false)), Just((true, true))],
        thin in any::<bool>(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let provisioning = if thin { Provisioning::Thin } else { Provisioning::Thick };
        let mut subject = Subject::new(sectors, encrypted, integrity, provisioning);
        steps.into_iter().for_each(|step| subject.run(step));
        subject.check_everything();
    }
}
