//! Linked clones: volumes that have layers of other ones.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::Disk;
use strongroom_keys::Kek;
use strongroom_types::{SnapshotId, VolumeId};

use crate::volume::{LOCK_WAIT, MIB, Volume, chain, close_in_order, expected_names, kek, size};

/// A volume with a snapshot, and a place for clones of it.
struct Origin {
    volume: Volume,
    snapshot: NewSnapshot,
    clone_kek: Kek,
}

impl Origin {
    fn new() -> Self {
        let volume = Volume::encrypted(MIB).and_layers(1);
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: "for-clones".parse().unwrap() };
        create_snapshot(&volume.path, &snapshot, &volume.options()).unwrap();
        Self { volume, snapshot, clone_kek: kek(2) }
    }

    fn place(&self, name: &str) -> PathBuf {
        self.volume.path.with_file_name(name)
    }

    fn origin(&self) -> CloneOrigin<'_> {
        CloneOrigin {
            path: &self.volume.path,
            volume: Some(self.volume.descriptor().volume),
            snapshot: self.snapshot.id,
            options: self.volume.to_open(Access::ReadOnly),
        }
    }

    fn link(&self, name: &str) -> Result<Descriptor, DatastoreError> {
        link_snapshot(&self.origin(), &self.place(name), Protection::Encrypted(&self.clone_kek))
    }

    fn to_open_clone(&self) -> OpenOptions<'_> {
        let protection = Protection::Encrypted(&self.clone_kek);
        OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation: 0 }
    }

    /// Deletes its snapshot.
    fn without_snapshot(&self) -> Descriptor {
        delete_snapshot(&self.volume.path, self.snapshot.id, &self.volume.to_open(Access::ReadWrite)).unwrap()
    }
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.to_str().unwrap().to_owned()).collect();
    names.retain(|name| !name.starts_with("descriptor.spare-"));
    names.sort();
    names
}

#[test]
fn a_clone_has_the_layers_of_its_origin_under_a_key_of_its_own() {
    let origin = Origin::new();
    let before = origin.volume.state();
    let clone = origin.link("clone").unwrap();
    assert_eq!(origin.volume.state(), before, "its origin is as it was");
    let of_origin = origin.volume.descriptor();
    assert_eq!(chain(&clone)[1..], chain(&of_origin)[1..]);
    assert!(clone.volume != of_origin.volume && clone.generation == 1 && clone.snapshots.is_empty());
    let path = origin.place("clone");
    assert_eq!(names_in(&path), expected_names(&chain(&clone), true, true));
    for layer in &chain(&clone)[1..] {
        let [theirs, ours] = [&origin.volume.path, &path]
            .map(|path| fs::metadata(path.join(format!("layer-{layer}"))).unwrap());
        assert_eq!((theirs.ino(), theirs.nlink()), (ours.ino(), 2));
    }
    assert!(clone.layers[..2].iter().all(|layer| layer.volume == Some(of_origin.volume)));
    assert_eq!(clone.layer(clone.top).unwrap().volume, None);
    // A program that knows no such layers refuses it; its origin is described as before.
    let version = |path: &Path| fs::read(path.join("descriptor")).unwrap()[8];
    assert_eq!((version(&path), version(&origin.volume.path)), (6, 5));

    let described = describe(&path).unwrap();
    let allocated = |name: &str| fs::metadata(path.join(name)).unwrap().blocks() * 512;
    let shared: u64 = names_in(&path)
        .iter()
        .filter(|name| fs::metadata(path.join(name)).unwrap().nlink() > 1)
        .map(|name| allocated(name))
        .sum();
    let space = &described.space;
    assert!(shared > 0 && space.shared_bytes == shared && space.committed_bytes > shared);
    assert!(!described.shared_layers.is_empty());

    let opened = open(&path, &origin.to_open_clone()).unwrap();
    assert_eq!((opened.lower.len(), opened.deks.len()), (2, 3));
    let keys: Vec<_> = opened.deks[..2].iter().map(|(epoch, _)| *epoch).collect();
    let of_origin = origin.volume.open().unwrap();
    assert_eq!(keys, of_origin.deks[..2].iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>());
    close_in_order(opened);
    close_in_order(of_origin);
    let with_theirs = open(&path, &origin.volume.to_open(Access::ReadWrite)).unwrap_err();
    assert_eq!(with_theirs.code(), "wrong_key");
    assert!(check(&path, Some(&origin.clone_kek)).unwrap().is_empty());

    // Each is deleted without the other, also while the other one is in use.
    let in_use = open(&path, &origin.to_open_clone()).unwrap();
    delete(&origin.volume.path, Duration::ZERO).unwrap();
    drop(in_use);
    close_in_order(open(&path, &origin.to_open_clone()).unwrap());
    assert!(describe(&path).unwrap().shared_layers.is_empty());
    delete(&path, LOCK_WAIT).unwrap();
}

/// Clones of clones hang on the same files, and a clone has its own snapshots, size and key.
#[test]
fn a_clone_lives_like_any_volume() {
    let origin = Origin::new();
    origin.link("clone").unwrap();
    let path = origin.place("clone");
    let options = AddLayerOptions {
        protection: Protection::Encrypted(&origin.clone_kek),
        log_bytes: Some(LOG_BYTES_MIN),
        lock_wait: LOCK_WAIT,
        least_generation: 0,
    };
    let own = NewSnapshot { id: SnapshotId::random(), name: "own".parse().unwrap() };
    create_snapshot(&path, &own, &options).unwrap();
    let mut head = VolumeHead::open(&path, &origin.to_open_clone()).unwrap();
    head.grow(size(2 * MIB), options.protection).unwrap();
    drop(head);
    let (third, to_open) = (kek(3), origin.to_open_clone());
    let of_clone = CloneOrigin {
        path: &path,
        volume: None,
        snapshot: own.id,
        options: OpenOptions { access: Access::ReadOnly, ..to_open },
    };
    let second = link_snapshot(&of_clone, &origin.place("second"), Protection::Encrypted(&third)).unwrap();
    let makers: Vec<_> = second.layers.iter().map(|layer| layer.volume).collect();
    let (first, clone) = (origin.volume.descriptor().volume, describe(&path).unwrap().descriptor.volume);
    assert_eq!(makers, [Some(first), Some(first), Some(clone), None]);
    assert_eq!(second.size_bytes, size(MIB));
    let other = kek(4);
    let to_rewrap =
        RewrapOptions { from: &origin.clone_kek, to: &other, lock_wait: LOCK_WAIT, least_generation: 0 };
    rewrap(&path, &to_rewrap).unwrap();
    revert(&path, own.id, None, &AddLayerOptions { protection: Protection::Encrypted(&other), ..options })
        .unwrap();
    for (path, kek) in [(path, &other), (origin.place("second"), &third)] {
        let protection = Protection::Encrypted(kek);
        close_in_order(open(&path, &OpenOptions { protection, ..to_open }).unwrap());
        assert!(check(&path, Some(kek)).unwrap().is_empty());
    }
}

#[test]
fn nothing_is_merged_into_a_layer_that_a_clone_has() {
    let origin = Origin::new();
    origin.link("clone").unwrap();
    let without = origin.without_snapshot();
    let path = &origin.volume.path;
    assert_eq!(without.merging, None);
    let shared = || describe(path).unwrap().shared_layers;
    assert!(without.has_layers_to_merge() && without.waits_for_others(&shared()));
    let clone = describe(&origin.place("clone")).unwrap();
    assert!(!clone.shared_layers.is_empty() && !clone.descriptor.waits_for_others(&clone.shared_layers));
    let to_write = origin.volume.to_open(Access::ReadWrite);
    assert!(open_merge(path, &to_write).unwrap().is_none());
    let mut head = VolumeHead::open(path, &to_write).unwrap();
    assert_eq!(head.mark_merge(to_write.protection).unwrap(), None);
    drop(head);
    // Its layers are merged once nobody else has them.
    delete(&origin.place("clone"), LOCK_WAIT).unwrap();
    assert!(!without.waits_for_others(&shared()));
    assert!(open_merge(path, &to_write).unwrap().is_some());
}

/// Whatever the descriptor says, the count of names decides.
#[test]
fn a_marked_merge_waits_for_a_link_that_somebody_has_made() {
    let origin = Origin::new();
    let without = origin.without_snapshot();
    let merging = without.merging.unwrap();
    let (volume, to_write) = (&origin.volume, origin.volume.to_open(Access::ReadWrite));
    let refused = origin.link("clone").unwrap_err();
    assert!(matches!(refused, DatastoreError::NoSnapshot { .. }), "{refused}");
    for prefix in ["layer", "tags2"] {
        let link = origin.place("link");
        fs::hard_link(volume.file(prefix, merging.into), &link).unwrap();
        assert!(open_merge(&volume.path, &to_write).unwrap().is_none());
        let mut opened = volume.open().unwrap();
        assert!(opened.lower.iter().all(|layer| layer.disk.limits().read_only));
        let refused = opened.head.open_merged_into(volume.protection()).unwrap_err();
        assert!(matches!(refused, DatastoreError::Shared { names: 2, .. }), "{refused}");
        drop(opened);
        fs::remove_file(link).unwrap();
    }
    assert!(open_merge(&volume.path, &to_write).unwrap().is_some());
}

/// A merge of a volume in use waits for a reader that had the lock before the mark was there.
#[test]
fn what_somebody_reads_is_not_claimed() {
    let origin = Origin::new();
    let (volume, to_write) = (&origin.volume, origin.volume.to_open(Access::ReadWrite));
    let (head, layer, _) = open_apart(&volume.path, &to_write).unwrap();
    layer.lower[0].claim().unwrap();
    let reader = open_snapshot(&volume.path, origin.snapshot.id, &to_write).unwrap();
    assert_eq!(layer.lower[0].claim(), Err(rustix::io::Errno::WOULDBLOCK));
    drop(reader);
    layer.lower[0].claim().unwrap();
    open_snapshot(&volume.path, origin.snapshot.id, &to_write).unwrap();
    drop(head);
}

#[test]
fn what_cannot_be_linked_is_refused_and_leaves_nothing() {
    let origin = Origin::new();
    let there = || names_in(origin.volume.path.parent().unwrap());
    let before = there();
    let refused = |origin: &CloneOrigin<'_>, place: &Path, protection| {
        let refused = link_snapshot(origin, place, protection).unwrap_err();
        (refused.code(), refused.to_string())
    };
    let (clone, own) = (origin.place("clone"), Protection::Encrypted(&origin.clone_kek));
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let (code, message) = refused(&origin.origin(), &elsewhere.path().join("clone"), own);
    assert_eq!(code, "not_linkable");
    assert!(message.contains("make a full clone"), "{message}");
    assert_eq!(names_in(elsewhere.path()), Vec::<String>::new());
    assert_eq!(refused(&origin.origin(), &clone, Protection::Unencrypted).0, "not_linkable");
    assert_eq!(refused(&origin.origin(), &origin.volume.path, own).0, "exists");
    let other = CloneOrigin { volume: Some(VolumeId::random()), ..origin.origin() };
    assert_eq!(refused(&other, &clone, own).0, "other_volume");
    let other = CloneOrigin { snapshot: SnapshotId::random(), ..origin.origin() };
    assert_eq!(refused(&other, &clone, own).0, "no_snapshot");
    let options = OpenOptions { least_generation: 1000, ..origin.origin().options };
    assert_eq!(refused(&CloneOrigin { options, ..origin.origin() }, &clone, own).0, "rolled_back");
    assert_eq!(there(), before);
}

/// A chain as long as a volume can have has no room for a clone's top.
#[test]
fn a_chain_is_no_longer_than_a_volume_can_have() {
    let origin = Origin::new();
    let last = NewSnapshot { id: SnapshotId::random(), name: "last".parse().unwrap() };
    for _ in 0..CHAIN_LAYERS_MAX - 4 {
        origin.volume.add_layer().unwrap();
    }
    create_snapshot(&origin.volume.path, &last, &origin.volume.options()).unwrap();
    assert_eq!(chain(&origin.volume.descriptor()).len(), CHAIN_LAYERS_MAX);
    let of_last = CloneOrigin { snapshot: last.id, ..origin.origin() };
    link_snapshot(&of_last, &origin.place("clone"), Protection::Encrypted(&origin.clone_kek)).unwrap();
    let full = NewSnapshot { id: SnapshotId::random(), name: "of-clone".parse().unwrap() };
    let protection = Protection::Encrypted(&origin.clone_kek);
    let options = AddLayerOptions { protection, ..origin.volume.options() };
    let refused = create_snapshot(&origin.place("clone"), &full, &options).unwrap_err();
    assert!(matches!(refused, DatastoreError::LongChain { .. }), "{refused}");
}
