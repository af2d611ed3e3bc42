//! Snapshots, and a new top for a volume that is in use.

use strongroom_datastore::file::*;
use strongroom_types::SnapshotId;

use crate::volume::{MIB, Volume, chain, expected_names, size};

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
    assert_eq!(without.next_merge().map(|merging| merging.into), Some(kept));
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
    let layered = create_snapshot(
        &volume.path,
        &named("two"),
        &AddLayerOptions { lock_wait: std::time::Duration::ZERO, ..volume.options() },
    );
    assert!(matches!(layered, Err(DatastoreError::InUse { .. })));
    drop(killed);
    let refused = create_snapshot(&volume.path, &named("two"), &volume.options()).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotClosed { .. }), "{refused}");
}
