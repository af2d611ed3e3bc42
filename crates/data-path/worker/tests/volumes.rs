//! Whole volumes, from the frontend's disk down to the file: the conformance suite, and random
//! histories compared with a vector of bytes, with reopening and growth.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use strongroom_datastore::file::*;
use strongroom_io::conformance::{Conformance, Driver, Setup};
use strongroom_io::{Disk, IoError, Plain, Request};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent, VolumeSize};
use strongroom_worker::stack::assemble_destaged;

const SECTOR_BYTES: u64 = 512;
const DEPTH: usize = 8;
const POOL_BYTES: usize = 4 << 20;

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
