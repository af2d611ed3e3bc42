//! A volume of several layers reads the same with standard tools, following `docs/ON_DISK.md`, as
//! through its own stages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IoError, Plain, Request};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{Extent, SnapshotId, VolumeSize};
use strongroom_worker::stack::assemble_destaged;

/// Not a multiple of the block size, and more than one sector of a record of discards covers.
const SIZE_BYTES: u64 = (17 << 20) + 1536;
const GROWN_BYTES: u64 = (18 << 20) + 512;

/// A ring that was just closed releases its files a moment later.
const LOCK_WAIT: Duration = Duration::from_secs(60);

const READER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/read-layer.py");

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
}

fn use_volume(path: &Path, kek: &Kek, size: u64, use_it: impl FnOnce(&mut Driver<Plain>)) {
    let protection = Protection::Encrypted(kek);
    let options =
        OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation: 0 };
    let mut volume = open(path, &options).unwrap();
    volume.grow(VolumeSize::new(size).unwrap(), protection).unwrap();
    let disk: Arc<dyn Disk<Plain>> = assemble_destaged(volume).unwrap();
    let mut driver = Driver::open(&*disk, &Setup::on(ring), 8, 8 << 20, 0).unwrap();
    use_it(&mut driver);
    driver.succeed(Request::Flush).unwrap();
}

/// Fills an extent with one byte.
fn fill(driver: &mut Driver<Plain>, offset: u64, length: usize, byte: u8) {
    driver.write(offset, &vec![byte; length]).unwrap();
}

fn discard(driver: &mut Driver<Plain>, offset: u64, length: u64) {
    driver.succeed(Request::Discard { extent: Extent::between(offset, offset + length) }).unwrap();
}

fn read_all(driver: &mut Driver<Plain>, size: u64) -> Vec<u8> {
    let pieces = (0..size).step_by(1 << 20);
    let mut found = Vec::new();
    for at in pieces {
        found.extend(driver.read(Extent::between(at, size.min(at + (1 << 20)))).unwrap());
    }
    found
}

#[test]
fn a_volume_of_several_layers() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, key_file, kek) = (datastore.path().join("vm1"), datastore.path().join("vm1.key"), kek());
    fs::write(&key_file, [7; 32]).unwrap();
    let protection = Protection::Encrypted(&kek);
    let size = VolumeSize::new(SIZE_BYTES).unwrap();
    let provisioning = Provisioning::Thin;
    create(
        &path,
        &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: Some(Integrity::NEW) },
    )
    .unwrap();
    let add = || {
        let options =
            AddLayerOptions { protection, log_bytes: None, lock_wait: LOCK_WAIT, least_generation: 0 };
        add_layer(&path, &options).unwrap();
    };
    let last_blocks = SIZE_BYTES / 4096 * 4096;
    use_volume(&path, &kek, SIZE_BYTES, |driver| {
        fill(driver, 0, 1 << 20, 1);
        fill(driver, 16 << 20, 1 << 20, 1);
        fill(driver, last_blocks, 1536, 1);
    });
    add();
    use_volume(&path, &kek, SIZE_BYTES, |driver| {
        fill(driver, 5000, 10_000, 2);
        discard(driver, 64 << 10, 64 << 10);
        discard(driver, (16 << 20) + (64 << 10), 64 << 10);
        fill(driver, 256 << 10, 4096, 0);
    });
    add();
    use_volume(&path, &kek, GROWN_BYTES, |driver| {
        fill(driver, 68 << 10, 700, 3);
        discard(driver, 0, 8192);
        fill(driver, GROWN_BYTES - 7, 7, 3);
    });
    let mut content = Vec::new();
    use_volume(&path, &kek, GROWN_BYTES, |driver| content = read_all(driver, GROWN_BYTES));
    let byte = |at: u64| content[at as usize];
    assert_eq!((byte(0), byte(8192), byte(20_000), byte(68 << 10), byte(70 << 10)), (0, 2, 1, 3, 0));
    assert_eq!((byte(256 << 10), byte(16 << 20), byte((16 << 20) + (65 << 10))), (0, 1, 0));
    assert_eq!((byte(last_blocks), byte(GROWN_BYTES - 1)), (1, 3));

    let read_of =
        |path: &Path| Command::new(READER).arg(path).arg("--key-file").arg(&key_file).output().unwrap();
    let read = || read_of(&path);
    let plain = read();
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert!(plain.stdout == content, "another content");

    // A linked clone reads the same, and what was written to it comes first.
    let snapshot = NewSnapshot { id: SnapshotId::random(), name: "of-clone".parse().unwrap() };
    let options = AddLayerOptions { protection, log_bytes: None, lock_wait: LOCK_WAIT, least_generation: 0 };
    create_snapshot(&path, &snapshot, &options).unwrap();
    let clone = datastore.path().join("clone");
    let access = Access::ReadOnly;
    let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 };
    let origin = CloneOrigin { path: &path, volume: None, snapshot: snapshot.id, options };
    link_snapshot(&origin, &clone, protection).unwrap();
    use_volume(&clone, &kek, GROWN_BYTES, |driver| fill(driver, 8192, 4096, 4));
    let of_clone = read_of(&clone);
    assert!(of_clone.status.success(), "{}", String::from_utf8_lossy(&of_clone.stderr));
    assert!(of_clone.stdout[8192..12_288] == [4; 4096] && of_clone.stdout[12_288..] == content[12_288..]);
    assert!(read().stdout == content, "its origin has changed");

    let top = describe(&path).unwrap().descriptor.snapshots[0].layer;
    let record = path.join(format!("discards-{top}"));
    let mut changed = fs::read(&record).unwrap();
    changed[20] ^= 1;
    fs::write(&record, changed).unwrap();
    let refused = read();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("sector 0 was damaged"), "{refused:?}");
}
