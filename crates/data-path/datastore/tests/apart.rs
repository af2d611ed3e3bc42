//! A volume that two processes share: one owns it and may replace its descriptor, the other has the
//! open layer and does the I/O. Here this process plays both.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::Disk;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeSize;

const MIB: u64 = 1 << 20;

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn size(bytes: u64) -> VolumeSize {
    VolumeSize::new(bytes).unwrap()
}

fn volume(datastore: &tempfile::TempDir, name: &str, kek: &Kek) -> PathBuf {
    let path = datastore.path().join(name);
    let protection = Protection::Encrypted(kek);
    create(
        &path,
        &CreateOptions {
            size: size(MIB),
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: None,
        },
    )
    .unwrap();
    path
}

fn to_write(kek: &Kek) -> OpenOptions<'_> {
    let protection = Protection::Encrypted(kek);
    OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation: 0 }
}

fn is_in_use(path: &Path, kek: &Kek) -> bool {
    matches!(open(path, &to_write(kek)), Err(DatastoreError::InUse { .. }))
}

#[test]
fn a_volume_is_free_when_both_have_let_go_of_it() {
    let (datastore, kek) = (tempfile::tempdir().unwrap(), kek(1));
    let path = volume(&datastore, "vm1", &kek);
    let (head, layer, _) = open_apart(&path, &to_write(&kek)).unwrap();
    // Handed over, as to a successor process: the lock goes along.
    let successor = layer.try_clone().unwrap();
    let disk = FileDisk::new(layer).unwrap();
    assert_eq!(successor.files().unwrap().len(), 2, "the layer, and its log");
    drop(disk);
    assert!(is_in_use(&path, &kek));
    drop(head);
    assert!(is_in_use(&path, &kek), "whoever does the I/O keeps others out");
    drop(successor);
    assert!(!is_in_use(&path, &kek));

    let (head, layer, _) = open_apart(&path, &to_write(&kek)).unwrap();
    drop(layer);
    assert!(is_in_use(&path, &kek), "whoever answers for it keeps others out");
    assert!(matches!(delete(&path, Duration::ZERO), Err(DatastoreError::InUse { .. })));
    drop(head);
    delete(&path, Duration::ZERO).unwrap();
}

#[test]
fn a_volume_grows_under_whoever_does_its_io() {
    let (datastore, kek) = (tempfile::tempdir().unwrap(), kek(1));
    let path = volume(&datastore, "vm1", &kek);
    let (mut head, layer, _) = open_apart(&path, &to_write(&kek)).unwrap();
    let disk = FileDisk::new(layer).unwrap();
    head.grow(size(4 * MIB + 512), Protection::Encrypted(&kek)).unwrap();
    assert_eq!(disk.limits().size_bytes, MIB, "it was not told yet");
    disk.set_size(head.descriptor().size_bytes);
    assert_eq!(disk.limits().size_bytes, 4 * MIB + 4096);
    assert_eq!(head.descriptor().generation, 2);
    assert!(check(&path, Some(&kek)).unwrap().is_empty());
}

#[test]
fn a_layer_that_is_opened_again_is_that_of_the_same_volume_and_no_older() {
    let (datastore, kek) = (tempfile::tempdir().unwrap(), kek(1));
    let (path, other) = (volume(&datastore, "vm1", &kek), volume(&datastore, "vm2", &kek));
    let first_descriptor = fs::read(path.join("descriptor")).unwrap();
    let protection = Protection::Encrypted(&kek);
    let (mut head, layer, deks) = open_apart(&path, &to_write(&kek)).unwrap();

    let busy = head.reopen(protection, Duration::ZERO).map(|_| ());
    assert!(matches!(busy, Err(DatastoreError::InUse { .. })), "its I/O may still be under way");
    drop(layer);
    head.grow(size(2 * MIB), protection).unwrap();
    let (layer, deks_again) = head.reopen(protection, Duration::ZERO).unwrap();
    assert_eq!(layer.facts.size_bytes, size(2 * MIB));
    assert_eq!(deks_again[0].1.expose(), deks[0].1.expose());
    drop(layer);

    fs::write(path.join("descriptor"), &first_descriptor).unwrap();
    let rolled_back = head.reopen(protection, Duration::ZERO).map(|_| ());
    assert!(matches!(rolled_back, Err(DatastoreError::RolledBack { found: 1, least: 2, .. })));

    // Another volume under the same key, grown until its generation is high enough.
    let mut another = open(&other, &to_write(&kek)).unwrap();
    another.grow(size(2 * MIB), protection).unwrap();
    for entry in fs::read_dir(&other).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    let replaced = head.reopen(protection, Duration::ZERO).map(|_| ()).unwrap_err();
    assert!(matches!(replaced, DatastoreError::Replaced { .. }), "{replaced}");

    fs::remove_file(path.join("descriptor")).unwrap();
    let gone = head.reopen(protection, Duration::ZERO).map(|_| ());
    assert!(matches!(gone, Err(DatastoreError::NotAVolume { .. })));
}

/// A dead process's socket is no obstacle.
#[test]
fn a_control_socket_is_no_stranger() {
    let (datastore, kek) = (tempfile::tempdir().unwrap(), kek(1));
    let path = volume(&datastore, "vm1", &kek);
    drop(std::os::unix::net::UnixListener::bind(path.join(CONTROL_SOCKET)).unwrap());
    assert!(check(&path, Some(&kek)).unwrap().is_empty());
    drop(open(&path, &to_write(&kek)).unwrap());
    assert_eq!(list(datastore.path()).unwrap().len(), 1);
    delete(&path, Duration::ZERO).unwrap();
}
