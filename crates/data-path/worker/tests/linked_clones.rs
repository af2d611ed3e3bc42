//! Linked clones read what their origin was, whatever becomes of the origin and of its files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IoError, Plain, Request};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{Extent, SnapshotId, VolumeSize};
use strongroom_worker::stack::assemble_destaged;
use strongroom_worker::{Progress, merge_next};

const SIZE_BYTES: u64 = 4 << 20;
/// Stands for a block of noise.
const MIXED: u8 = 255;
/// A ring that was just closed releases its files a moment later.
const LOCK_WAIT: Duration = Duration::from_secs(60);

struct Site {
    datastore: tempfile::TempDir,
    integrity: bool,
}

/// A volume, and the byte that fills its key.
#[derive(Clone, Copy)]
struct Volume<'a> {
    site: &'a Site,
    name: &'static str,
    key: u8,
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

impl Site {
    fn new(integrity: bool) -> Self {
        Self { datastore: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), integrity }
    }

    fn volume(&self, name: &'static str, key: u8) -> Volume<'_> {
        let volume = Volume { site: self, name, key };
        let options = CreateOptions {
            size: VolumeSize::new(SIZE_BYTES).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Encrypted(&kek(key)),
            log_bytes: None,
            integrity: self.integrity.then_some(Integrity::NEW),
        };
        create(&volume.path(), &options).unwrap();
        volume
    }
}

impl<'a> Volume<'a> {
    fn path(&self) -> PathBuf {
        self.site.datastore.path().join(self.name)
    }

    fn opened<T>(&self, access: Access, act: impl FnOnce(&OpenOptions<'_>) -> T) -> T {
        let kek = kek(self.key);
        let protection = Protection::Encrypted(&kek);
        act(&OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 })
    }

    fn disk(&self) -> Arc<dyn Disk<Plain>> {
        let volume = self.opened(Access::ReadWrite, |options| open(&self.path(), options)).unwrap();
        assemble_destaged(volume).unwrap()
    }

    fn write(&self, offset: u64, byte: u8) {
        write(&*self.disk(), offset, byte);
    }

    /// The byte that each MiB begins with, or an error.
    fn read(&self) -> Result<Vec<u8>, String> {
        read(&*self.disk())
    }

    fn snapshot(&self, name: &str) -> SnapshotId {
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: name.parse().unwrap() };
        let kek = kek(self.key);
        let protection = Protection::Encrypted(&kek);
        let options =
            AddLayerOptions { protection, log_bytes: None, lock_wait: LOCK_WAIT, least_generation: 0 };
        create_snapshot(&self.path(), &snapshot, &options).unwrap();
        snapshot.id
    }

    fn link(&self, snapshot: SnapshotId, name: &'static str, key: u8) -> Volume<'a> {
        let clone = Volume { site: self.site, name, key };
        self.opened(Access::ReadOnly, |options| {
            let origin = CloneOrigin { path: &self.path(), volume: None, snapshot, options: *options };
            link_snapshot(&origin, &clone.path(), Protection::Encrypted(&kek(key))).unwrap();
        });
        clone
    }

    /// Merges what can be merged. Returns the number of layers.
    fn merge(&self) -> usize {
        let stop = AtomicBool::new(false);
        self.opened(Access::ReadWrite, |options| {
            let mut progress = Progress { stop: &stop, report: &mut |_| {} };
            while merge_next(&self.path(), options, &mut progress).unwrap().is_some() {}
        });
        describe(&self.path()).unwrap().descriptor.layers.len()
    }
}

fn write(disk: &dyn Disk<Plain>, offset: u64, byte: u8) {
    let mut driver = Driver::open(disk, &Setup::on(ring), 8, 8 << 20, 0).unwrap();
    driver.write(offset, &vec![byte; 64 << 10]).unwrap();
    driver.succeed(Request::Flush).unwrap();
}

/// The byte that fills the first block of each MiB; 255 for one that is mixed.
fn read(disk: &dyn Disk<Plain>) -> Result<Vec<u8>, String> {
    let mut driver = Driver::open(disk, &Setup::on(ring), 8, 8 << 20, 0).unwrap();
    let mut found = Vec::new();
    for at in (0..SIZE_BYTES).step_by(1 << 20) {
        let block = driver.read(Extent::between(at, at + 4096)).map_err(|wrong| format!("{wrong:?}"))?;
        found.push(if block.iter().all(|byte| *byte == block[0]) { block[0] } else { MIXED });
    }
    Ok(found)
}

fn stays_what_it_was(integrity: bool) {
    let site = Site::new(integrity);
    let origin = site.volume("origin", 1);
    origin.write(0, 1);
    origin.snapshot("before");
    origin.write(1 << 20, 2);
    let snapshot = origin.snapshot("for-clones");
    let (off, on) = (origin.link(snapshot, "off", 2), origin.link(snapshot, "on", 3));
    let served = on.disk();
    write(&*served, 2 << 20, 30);

    // Its origin goes on, deletes both snapshots, merges what it can, and goes.
    origin.write(0, 99);
    for name in ["before", "for-clones"] {
        let descriptor = describe(&origin.path()).unwrap().descriptor;
        let snapshot = descriptor.snapshot_named(&name.parse().unwrap()).unwrap().id;
        origin
            .opened(Access::ReadWrite, |options| delete_snapshot(&origin.path(), snapshot, options))
            .unwrap();
        assert_eq!(origin.merge(), 3, "what clones have is not merged into");
        assert_eq!(origin.read().unwrap(), [99, 2, 0, 0]);
        assert_eq!(read(&*served).unwrap(), [1, 2, 30, 0]);
    }
    delete(&origin.path(), LOCK_WAIT).unwrap();
    assert_eq!(read(&*served).unwrap(), [1, 2, 30, 0]);
    assert_eq!(off.read().unwrap(), [1, 2, 0, 0]);
    write(&*served, 0, 31);
    drop(served);
    assert_eq!((on.read().unwrap(), off.read().unwrap()), (vec![31, 2, 30, 0], vec![1, 2, 0, 0]));

    // The last one that has the layers merges them.
    assert_eq!(on.merge(), 3);
    delete(&on.path(), LOCK_WAIT).unwrap();
    assert_eq!(off.merge(), 1);
    assert_eq!(off.read().unwrap(), [1, 2, 0, 0]);
    off.write(0, 32);
    assert_eq!(off.read().unwrap(), [32, 2, 0, 0]);
}

#[test]
fn a_clone_stays_what_it_was_whatever_its_origin_does() {
    stays_what_it_was(true);
    stays_what_it_was(false);
}

/// Replaces a file of the clone's by another one.
fn replace(file: &Path, by: &Path, links: bool) {
    fs::remove_file(file).unwrap();
    match links {
        true => fs::hard_link(by, file).unwrap(),
        false => drop(fs::copy(by, file).unwrap()),
    }
}

/// With tags, a read fails. Without, it is noise, and never another volume's plain text.
#[test]
fn a_shared_layer_that_is_replaced_is_noticed() {
    for integrity in [true, false] {
        for links in [true, false] {
            let site = Site::new(integrity);
            let (origin, third) = (site.volume("origin", 1), site.volume("third", 4));
            origin.write(0, 1);
            third.write(0, 7);
            let (snapshot, of_third) = (origin.snapshot("kept"), third.snapshot("kept"));
            let clone = origin.link(snapshot, "clone", 2);
            let other = third.link(of_third, "other", 5);
            let lowest = |volume: &Volume<'_>| describe(&volume.path()).unwrap().descriptor.layers[0].id;
            let name = |prefix: &str, volume: &Volume<'_>| format!("{prefix}-{}", lowest(volume));
            for prefix in if integrity { &["layer", "tags2"][..] } else { &["layer"] } {
                replace(
                    &clone.path().join(name(prefix, &clone)),
                    &other.path().join(name(prefix, &other)),
                    links,
                );
                match clone.read() {
                    Ok(found) => assert!(!integrity && found[0] == MIXED, "{found:?}"),
                    Err(error) => assert!(integrity, "{error}"),
                }
            }
            for (volume, byte) in [(origin, 1), (third, 7), (other, 7)] {
                assert_eq!(volume.read().unwrap()[0], byte, "{}", volume.name);
            }
        }
    }
}
