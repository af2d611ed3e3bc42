//! Snapshots, and a new top for a volume that is in use.

use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use strongroom_datastore::file::*;
use strongroom_types::SnapshotId;

use crate::volume::{MIB, Volume, chain, close_in_order, expected_names, size};

fn named(name: &str) -> NewSnapshot {
    NewSnapshot { id: SnapshotId::random(), name: name.parse().unwrap() }
}

#[test]
fn a_snapshot_is_a_layer_that_is_kept_and_goes_with_its_key() {
    let volume = Volume::encrypted(MIB);
    let (one, two) = (named("one"), named("two"));
    let made = create_snapshot(&volume.path, &one, &volume.options()).unwrap();
    let kept = made.snapshot(one.id).unwrap().layer;
    assert_eq!(chain(&made)[1], kept);
    let twice = create_snapshot(&volume.path, &named("one"), &volume.options()).unwrap_err();
    assert!(matches!(twice, DatastoreError::SnapshotExists { .. }), "{twice}");

    let grown = size(2 * MIB);
    let mut head = VolumeHead::open(&volume.path, &volume.to_open(Access::ReadWrite)).unwrap();
    head.grow(grown, volume.protection()).unwrap();
    drop(head);
    let reverted = revert(&volume.path, one.id, Some(&two), &volume.options()).unwrap();
    assert_eq!((reverted.size_bytes, reverted.layers.len()), (size(MIB), 3));
    assert!(reverted.generation > made.generation);
    assert!(matches!(volume.findings().as_slice(), []), "{:?}", volume.findings());
    let there = revert(&volume.path, two.id, None, &volume.options()).unwrap();
    assert_eq!((there.size_bytes, there.layers.len()), (grown, 3), "the top that was left is gone");

    // The first snapshot's layer stays: the second lies on it.
    let to_write = volume.to_open(Access::ReadWrite);
    let without = delete_snapshot(&volume.path, one.id, &to_write).unwrap();
    assert_eq!(without.next_merge(&SharedLayers::default()).map(|merging| merging.into), Some(kept));
    let refused = delete_snapshot(&volume.path, one.id, &to_write).unwrap_err();
    assert!(matches!(refused, DatastoreError::NoSnapshot { .. }), "{refused}");
    assert_eq!(volume.names(), expected_names(&chain(&without), true, true));
}

/// A top that was prepared for a change-over is removed without a trace, or opened as if the
/// change-over had happened.
#[test]
fn a_prepared_top_is_withdrawn_or_opened() {
    let volume = Volume::encrypted(MIB);
    let to_write = volume.to_open(Access::ReadWrite);
    let mut opened = volume.open().unwrap();
    let before = opened.descriptor().clone();
    opened.head.prepare_layer(volume.protection(), Some(LOG_BYTES_MIN)).unwrap();
    assert_eq!(opened.descriptor().closing().unwrap().id, before.top);
    let again = opened.head.prepare_layer(volume.protection(), None).unwrap_err();
    assert!(matches!(again, DatastoreError::NotClosed { .. }), "{again}");
    let early = opened.head.settle_layer(Some(&named("one")), volume.protection()).unwrap_err();
    assert!(matches!(early, DatastoreError::LogNotEmpty { .. }), "its log is in use: {early}");
    opened.head.withdraw_layer(volume.protection()).unwrap();
    let generation = opened.descriptor().generation;
    assert_eq!(
        *opened.descriptor(),
        Descriptor { generation, encryption: opened.descriptor().encryption.clone(), ..before.clone() }
    );
    assert_eq!(volume.names(), expected_names(&[before.top], true, true));

    opened.head.prepare_layer(volume.protection(), Some(LOG_BYTES_MIN)).unwrap();
    drop(opened);
    let killed = open(&volume.path, &to_write).unwrap();
    assert_eq!(killed.lower.len(), 1);
    assert_eq!(killed.descriptor().closing().map(|layer| layer.id), Some(before.top));
    // Others may read it beside its owner once it is complete.
    let reader = std::fs::File::open(volume.file("layer", before.top)).unwrap();
    flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
    let layered = create_snapshot(
        &volume.path,
        &named("two"),
        &AddLayerOptions { lock_wait: Duration::ZERO, ..volume.options() },
    );
    assert!(matches!(layered, Err(DatastoreError::InUse { .. })));
    drop(killed);
    // Until then, an owner waits for the last writes of a dead one.
    let refused = open(&volume.path, &OpenOptions { lock_wait: Duration::ZERO, ..to_write }).unwrap_err();
    assert!(matches!(refused, DatastoreError::InUse { .. }), "{refused}");
    drop(reader);
    let refused = create_snapshot(&volume.path, &named("two"), &volume.options()).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotClosed { .. }), "{refused}");
}

/// Layers of another branch wait to be merged when the last snapshot of it is deleted.
#[test]
fn a_deletion_takes_the_mark_of_a_merge_with_its_layers() {
    let volume = Volume::encrypted(MIB);
    let to_write = volume.to_open(Access::ReadWrite);
    let (one, two, three) = (named("one"), named("two"), named("three"));
    create_snapshot(&volume.path, &one, &volume.options()).unwrap();
    create_snapshot(&volume.path, &two, &volume.options()).unwrap();
    revert(&volume.path, one.id, Some(&three), &volume.options()).unwrap();
    let without = delete_snapshot(&volume.path, two.id, &to_write).unwrap();
    let marked = without.merging.unwrap();
    assert_eq!(without.snapshot(three.id).map(|snapshot| snapshot.layer), Some(marked.from));
    assert_eq!(
        (without.merge_in_use(), without.next_merge_in_use(&SharedLayers::default())),
        (None, None),
        "it is not in the chain"
    );
    let without = delete_snapshot(&volume.path, three.id, &to_write).unwrap();
    assert_eq!((without.layers.len(), without.merging), (2, None));
    assert!(matches!(volume.findings().as_slice(), []), "{:?}", volume.findings());
    volume.open().unwrap();
}

/// Of several pairs, those without the top are merged first, because the top needs another one on
/// it. A finished merge marks the next pair.
#[test]
fn what_is_merged_while_a_volume_is_in_use_lies_below_its_top() {
    let volume = Volume::encrypted(MIB);
    let to_write = volume.to_open(Access::ReadWrite);
    let snapshots = ["one", "two", "three", "four"].map(named);
    for snapshot in &snapshots {
        create_snapshot(&volume.path, snapshot, &volume.options()).unwrap();
    }
    let layers: Vec<_> = chain(&volume.descriptor()).into_iter().rev().collect();
    let pair = |upper: usize| Some(Merging { from: layers[upper], into: layers[upper - 1] });
    let mut head = VolumeHead::open(&volume.path, &to_write).unwrap();
    let protection = volume.protection();
    head.delete_snapshot(snapshots[3].id, protection).unwrap();
    assert_eq!(head.descriptor().merging, pair(4), "only the top lies on the deleted snapshot's layer");
    let refused = head.open_merged_into(protection).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotMergeable { .. }), "{refused}");
    drop(head);
    close_in_order(volume.open().unwrap());

    // Another snapshot makes the top a layer that can be merged.
    let again = create_snapshot(&volume.path, &named("again"), &volume.options()).unwrap();
    assert_eq!((again.merging, again.merge_in_use()), (pair(4), pair(4)));
    let mut opened = volume.open().unwrap();
    let head = &mut opened.head;
    head.delete_snapshot(snapshots[0].id, protection).unwrap();
    head.delete_snapshot(snapshots[1].id, protection).unwrap();
    assert_eq!(head.descriptor().merging, pair(4), "a merge that was begun is finished first");
    let (place, _) = head.open_merged_into(protection).unwrap();
    assert_eq!(chain(head.descriptor())[1 + place], layers[3]);
    head.finish_merge(protection).unwrap();
    assert_eq!(head.descriptor().merging, pair(1));
    head.finish_merge(protection).unwrap();
    assert_eq!(head.descriptor().merging.map(|merging| merging.into), Some(layers[0]));
    head.finish_merge(protection).unwrap();
    assert!(head.descriptor().merging.is_none() && !head.descriptor().has_layers_to_merge());
    drop(opened);
    assert!(matches!(volume.findings().as_slice(), []), "{:?}", volume.findings());
}

/// A process that opens the volume waits for the last writes of one that merged; the volume's owner
/// can open the lower layer beside it.
#[test]
fn a_layer_that_is_merged_into_is_locked() {
    let volume = Volume::encrypted(MIB);
    let (one, two) = (named("one"), named("two"));
    create_snapshot(&volume.path, &one, &volume.options()).unwrap();
    create_snapshot(&volume.path, &two, &volume.options()).unwrap();
    let without = delete_snapshot(&volume.path, one.id, &volume.to_open(Access::ReadWrite)).unwrap();
    let into = without.merging.unwrap().into;
    for prefix in ["layer", "tags2"] {
        let file = std::fs::File::open(volume.file(prefix, into)).unwrap();
        // The description of a dead process's write.
        flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
        let options = OpenOptions { lock_wait: Duration::ZERO, ..volume.to_open(Access::ReadWrite) };
        let refused = open(&volume.path, &options).unwrap_err();
        assert!(matches!(refused, DatastoreError::InUse { .. }), "{refused}");
        open(&volume.path, &OpenOptions { access: Access::ReadOnly, ..options }).unwrap();
    }
    let mut opened = volume.open().unwrap();
    let (place, _) = opened.head.open_merged_into(volume.protection()).unwrap();
    assert_eq!(place, 1);
}
