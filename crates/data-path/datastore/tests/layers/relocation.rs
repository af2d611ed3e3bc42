//! Volumes that move to another datastore, on another file system.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use strongroom_datastore::file::*;
use strongroom_types::{BLOCK_BYTES, SnapshotId, VolumeId};

use crate::volume::{LOCK_WAIT, MIB, Volume, close_in_order, kek};

/// Another datastore, in memory.
pub struct Destination {
    datastore: tempfile::TempDir,
}

impl Destination {
    pub fn new() -> Self {
        Self { datastore: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    /// On a file system whose files are read and written past the page cache.
    pub fn on_disk() -> Self {
        Self { datastore: tempfile::tempdir().unwrap() }
    }

    pub fn datastore(&self) -> &Path {
        self.datastore.path()
    }

    pub fn place(&self) -> PathBuf {
        self.datastore.path().join("vm1")
    }

    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.datastore.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

pub fn options(volume: &Volume) -> RelocateOptions<'_> {
    RelocateOptions { protection: volume.protection(), lock_wait: LOCK_WAIT, least_generation: 0 }
}

pub fn on(_: RelocateProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The content of the files of a volume's layers, apart from logs.
pub fn content(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let parts = ["layer-", "tags2-", "discards-"];
    let of_layers = named.filter(|(name, _)| parts.iter().any(|part| name.starts_with(part)));
    of_layers.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// A volume of three layers and a branch, with blocks here and there.
pub fn with_content(volume: Volume) -> Volume {
    let mut kept = Vec::new();
    for (fill, name) in [(1_u8, "one"), (2, "two")] {
        write_blocks(&volume, fill);
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: name.parse().unwrap() };
        create_snapshot(&volume.path, &snapshot, &volume.options()).unwrap();
        kept.push(snapshot.id);
    }
    write_blocks(&volume, 3);
    revert(&volume.path, kept[0], None, &volume.options()).unwrap();
    volume
}

/// Puts something into all files of the top, past what would verify it: a move looks at nothing.
pub fn write_blocks(volume: &Volume, fill: u8) {
    let top = volume.descriptor().top;
    for part in ["layer", "tags2", "discards"] {
        let Ok(file) = fs::File::options().write(true).open(volume.file(part, top)) else { continue };
        for block in [0_u64, 7, 250] {
            let at = block * BLOCK_BYTES;
            if at + BLOCK_BYTES <= file.metadata().unwrap().len() && part != "tags2" {
                file.write_all_at(&[fill; BLOCK_BYTES as usize], at).unwrap();
            }
        }
    }
}

#[test]
fn a_volume_moves_with_its_snapshots_and_keeps_its_identity() {
    for volume in [
        Volume::encrypted(4 * MIB),
        Volume::clear(4 * MIB),
        Volume::new(Some(kek(1)), 2 * MIB, Provisioning::Thick),
    ] {
        let volume = with_content(volume);
        let (before, files) = (volume.descriptor(), content(&volume.path));
        let there = Destination::new();
        let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
        assert_eq!(*moving.descriptor(), before);
        let copied = moving.copy(&mut on).unwrap().unwrap();
        assert_eq!((copied.layers, copied.shared_layers), (before.layers.len(), 0));
        let after = moving.take_place().unwrap();
        // Whoever knows the new one's generation does not take the former one.
        let former = authenticated(&volume.path, volume.protection(), after.generation).unwrap_err();
        assert!(matches!(former, DatastoreError::RolledBack { .. }), "{former}");
        moving.remove_former().unwrap();
        assert!(!volume.path.exists());
        assert_eq!(content(&there.place()), files);
        assert_eq!(after, Descriptor { generation: before.generation + 1, ..before.clone() });
        assert_eq!(describe(&there.place()).unwrap().descriptor, after);
        let options = OpenOptions {
            protection: volume.protection(),
            access: Access::ReadWrite,
            lock_wait: LOCK_WAIT,
            least_generation: after.generation,
        };
        close_in_order(open(&there.place(), &options).unwrap());
        let space = describe(&there.place()).unwrap().space;
        match before.provisioning {
            Provisioning::Thin => assert!(space.committed_bytes < 4 * MIB, "holes stay holes"),
            Provisioning::Thick => assert!(space.committed_bytes >= before.layers.len() as u64 * 2 * MIB),
        }
    }
}

#[test]
fn layers_that_clones_have_are_copied_and_the_clones_keep_them() {
    let volume = Volume::encrypted(MIB);
    let snapshot = NewSnapshot { id: SnapshotId::random(), name: "for-clones".parse().unwrap() };
    write_blocks(&volume, 1);
    create_snapshot(&volume.path, &snapshot, &volume.options()).unwrap();
    let origin = CloneOrigin {
        path: &volume.path,
        volume: None,
        snapshot: snapshot.id,
        options: volume.to_open(Access::ReadOnly),
    };
    let clone = volume.path.with_file_name("clone");
    let of_clone = link_snapshot(&origin, &clone, volume.protection()).unwrap();
    let there = Destination::new();
    let mut moving = begin_relocation(&clone, &there.place(), &options(&volume)).unwrap();
    assert_eq!(moving.copy(&mut on).unwrap().unwrap().shared_layers, 1);
    let moved = moving.take_place().unwrap();
    moving.remove_former().unwrap();
    // The layer is still its origin's: its tags are bound to that.
    assert_eq!(moved.layers[0].volume, Some(volume.descriptor().volume));
    assert_eq!(moved.volume, of_clone.volume);
    let layer = volume.file("layer", moved.layers[0].id);
    assert_eq!(fs::metadata(layer).unwrap().nlink(), 1, "the origin has it for itself again");
    close_in_order(volume.open().unwrap());
    assert!(
        check(&there.place(), Some(&kek(1))).unwrap().iter().all(|found| found.severity == Severity::Notice)
    );
}

#[test]
fn a_taken_place_is_refused_and_a_volume_at_two_places_is_told() {
    let (volume, there) = (Volume::encrypted(MIB), Destination::new());
    let begin = |to: &Path| begin_relocation(&volume.path, to, &options(&volume)).map(drop).unwrap_err();
    assert!(matches!(begin(&volume.path), DatastoreError::Exists { .. }));
    let by_another_path = volume.path.parent().unwrap().join(".").join("vm1");
    assert!(matches!(begin(&by_another_path), DatastoreError::Exists { .. }));
    fs::create_dir(there.place()).unwrap();
    assert!(matches!(begin(&there.place()), DatastoreError::Exists { .. }));
    fs::remove_dir(there.place()).unwrap();
    assert!(matches!(begin(&there.datastore.path().join(".hidden")), DatastoreError::BadName { .. }));
    assert!(there.names().is_empty());

    let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
    moving.copy(&mut on).unwrap().unwrap();
    moving.take_place().unwrap();
    drop(moving);
    let told = begin(&there.place());
    assert!(matches!(told, DatastoreError::TwoPlaces { .. }), "{told}");

    // Its caller has no record that it is there: it is taken back, and the next attempt finds it.
    let id = volume.descriptor().volume;
    let other = withdraw(&there.place(), VolumeId::random(), &options(&volume)).unwrap_err();
    assert!(matches!(other, DatastoreError::OtherVolume { .. }), "{other}");
    withdraw(&there.place(), id, &options(&volume)).unwrap();
    withdraw(&there.place(), id, &options(&volume)).unwrap();
    assert!(!there.place().exists());
    assert!(
        list(there.datastore.path())
            .unwrap()
            .iter()
            .all(|found| matches!(found, ListedVolume::Broken { .. }))
    );
    let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
    assert_eq!(moving.copy(&mut on).unwrap().unwrap().written_bytes, 0);
    drop(moving);
    // Or nothing is left of it.
    cancel_relocation(&there.place(), id, LOCK_WAIT).unwrap();
    cancel_relocation(&there.place(), id, LOCK_WAIT).unwrap();
    assert!(there.names().is_empty());
    close_in_order(volume.open().unwrap());
}

#[test]
fn the_former_volume_goes_only_if_the_other_one_is_it() {
    let (volume, there) = (Volume::encrypted(MIB), Destination::new());
    let gone = |to: &Path| remove_former(&volume.path, to, &options(&volume)).unwrap_err();
    assert!(matches!(gone(&there.place()), DatastoreError::System { .. }));
    assert!(matches!(gone(&volume.path), DatastoreError::RolledBack { .. }), "it is not its own successor");
    let create_there = |key: u8| {
        let kek = kek(key);
        let options = CreateOptions {
            size: volume.descriptor().size_bytes,
            provisioning: Provisioning::Thin,
            protection: Protection::Encrypted(&kek),
            log_bytes: Some(LOG_BYTES_MIN),
            integrity: None,
        };
        create(&there.place(), &options).unwrap();
    };
    create_there(1);
    assert!(matches!(gone(&there.place()), DatastoreError::OtherVolume { .. }));
    delete(&there.place(), LOCK_WAIT).unwrap();
    create_there(2);
    assert!(matches!(gone(&there.place()), DatastoreError::Key { .. }));
    delete(&there.place(), LOCK_WAIT).unwrap();

    let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
    moving.copy(&mut on).unwrap().unwrap();
    moving.take_place().unwrap();
    drop(moving);
    let descriptor = there.place().join("descriptor");
    let right = fs::read(&descriptor).unwrap();
    let mut forged = right.clone();
    *forged.last_mut().unwrap() ^= 1;
    fs::write(&descriptor, forged).unwrap();
    assert!(matches!(gone(&there.place()), DatastoreError::NotAuthentic { .. }));
    let id = volume.descriptor().volume;
    let refused = withdraw(&there.place(), id, &options(&volume)).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotAuthentic { .. }), "{refused}");
    fs::write(&descriptor, right).unwrap();
    // It may be in use there.
    let in_use = open(&there.place(), &volume.to_open(Access::ReadWrite)).unwrap();
    remove_former(&volume.path, &there.place(), &options(&volume)).unwrap();
    remove_former(&volume.path, &there.place(), &options(&volume)).unwrap();
    assert!(!volume.path.exists());
    close_in_order(in_use);
}

#[test]
fn a_volume_that_is_in_use_or_was_not_closed_does_not_move() {
    let (volume, there) = (Volume::encrypted(MIB), Destination::new());
    let begin = || {
        let options = RelocateOptions { lock_wait: std::time::Duration::ZERO, ..options(&volume) };
        begin_relocation(&volume.path, &there.place(), &options).map(drop).unwrap_err()
    };
    let opened = volume.open().unwrap();
    assert!(matches!(begin(), DatastoreError::InUse { .. }));
    drop(opened);
    let unclosed = begin();
    assert!(matches!(unclosed, DatastoreError::LogNotEmpty { .. }), "{unclosed}");
    assert!(there.names().is_empty());
}

#[test]
fn a_reader_of_a_snapshot_keeps_the_former_volume_until_the_move_is_taken_back() {
    let (volume, there) = (Volume::encrypted(MIB), Destination::new());
    let snapshot = NewSnapshot { id: SnapshotId::random(), name: "read".parse().unwrap() };
    create_snapshot(&volume.path, &snapshot, &volume.options()).unwrap();
    let reader = open_snapshot(&volume.path, snapshot.id, &volume.to_open(Access::ReadOnly)).unwrap();
    let briefly = RelocateOptions { lock_wait: std::time::Duration::ZERO, ..options(&volume) };
    let mut moving = begin_relocation(&volume.path, &there.place(), &briefly).unwrap();
    moving.copy(&mut on).unwrap().unwrap();
    moving.take_place().unwrap();
    let kept = moving.remove_former().unwrap_err();
    assert!(matches!(kept, DatastoreError::InUse { .. }), "{kept}");
    // Nothing of it is gone.
    let id = volume.descriptor().volume;
    withdraw(&there.place(), id, &options(&volume)).unwrap();
    drop(reader);
    let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
    assert_eq!(moving.copy(&mut on).unwrap().unwrap().written_bytes, 0);
    moving.take_place().unwrap();
    moving.remove_former().unwrap();
    assert!(!volume.path.exists() && there.names() == ["vm1"]);
}

/// Whoever can write to the destination leads no copy to another place.
#[test]
fn links_at_the_destination_are_not_followed() {
    let (volume, there) = (Volume::encrypted(MIB), Destination::new());
    let descriptor = volume.descriptor();
    let staging = there.datastore.path().join(format!(".strongroom-moving-{}", descriptor.volume));
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &staging).unwrap();
    let refused = begin_relocation(&volume.path, &there.place(), &options(&volume)).map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::Link { .. }), "{refused}");
    fs::remove_file(&staging).unwrap();
    fs::create_dir(&staging).unwrap();
    let layer = staging.join(format!("layer-{}", descriptor.top));
    std::os::unix::fs::symlink(elsewhere.path().join("file"), &layer).unwrap();
    let mut moving = begin_relocation(&volume.path, &there.place(), &options(&volume)).unwrap();
    moving.copy(&mut on).unwrap().unwrap();
    assert!(fs::symlink_metadata(&layer).unwrap().is_file());
    assert!(fs::read_dir(elsewhere.path()).unwrap().next().is_none());
    drop(moving);
    // What is no volume's is not removed.
    fs::write(staging.join("somebody's"), "").unwrap();
    let refused = begin_relocation(&volume.path, &there.place(), &options(&volume)).map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::Stranger { .. }), "{refused}");
}
