//! Files that are missing, truncated, or foreign.

use std::fs;
use std::path::Path;

use strongroom_datastore::file::*;
use strongroom_types::{LayerId, SnapshotId};

use crate::volume::{MIB, Volume, chain, size};

fn snapshot(name: &str, layer: LayerId) -> SnapshotRecord {
    let (id, name) = (SnapshotId::random(), name.parse().unwrap());
    SnapshotRecord { id, name, layer, created_unix_seconds: 0 }
}

#[test]
fn what_is_missing_or_truncated_below_is_named() {
    let volume = Volume::encrypted(MIB).and_layers(2);
    let descriptor = volume.descriptor();
    let layers = chain(&descriptor);
    let cut_short = |path: &Path| {
        let good = fs::read(path).unwrap();
        fs::write(path, &good[..good.len() - 4096]).unwrap();
        good
    };
    for &layer in &layers[1..] {
        let path = volume.file("layer", layer);
        let good = cut_short(&path);
        assert!(matches!(volume.refused(), DatastoreError::Truncated { layer: of, .. } if of == layer));
        fs::remove_file(&path).unwrap();
        assert!(matches!(volume.refused(), DatastoreError::MissingLayer { layer: of, .. } if of == layer));
        assert!(matches!(volume.add_layer(), Err(DatastoreError::MissingLayer { .. })));
        fs::write(&path, &good).unwrap();

        let path = volume.file("tags2", layer);
        let good = cut_short(&path);
        assert!(matches!(volume.refused(), DatastoreError::TruncatedTags { layer: of, .. } if of == layer));
        fs::remove_file(&path).unwrap();
        assert!(matches!(volume.refused(), DatastoreError::MissingTags { layer: of, .. } if of == layer));
        fs::write(&path, &good).unwrap();
    }
    for &layer in &layers[..2] {
        let path = volume.file("discards", layer);
        let good = cut_short(&path);
        let refused = volume.refused();
        assert!(matches!(refused, DatastoreError::TruncatedDiscards { layer: of, .. } if of == layer));
        fs::remove_file(&path).unwrap();
        let refused = volume.refused();
        assert!(matches!(refused, DatastoreError::MissingDiscards { layer: of, .. } if of == layer));
        fs::write(&path, &good).unwrap();
    }
    drop(volume.open().unwrap());
}

#[test]
fn a_descriptor_that_none_of_us_writes_is_refused() {
    type Edit = fn(&mut Descriptor);
    let edits: [(&str, Edit); 14] = [
        ("the top with a size", |found| found.layers[2].size_bytes = Some(found.size_bytes)),
        ("a lower layer without a size", |found| found.layers[1].size_bytes = None),
        ("a lower layer that is larger than the volume", |found| {
            found.layers[1].size_bytes = Some(size(2 * MIB));
        }),
        ("a layer that is larger than the one on it", |found| {
            found.layers[1].size_bytes = Some(size(MIB / 2));
        }),
        ("a lower layer with a log", |found| found.layers[1].log = found.layers[2].log),
        ("a layer on the top", |found| {
            found.top = found.layers[1].id;
            found.layers[2].size_bytes = found.layers[1].size_bytes.take();
            found.layers[2].log = None;
        }),
        ("a parent that is not there", |found| found.layers[0].parent = Some(LayerId::random())),
        ("a circle", |found| found.layers[0].parent = Some(found.layers[1].id)),
        ("a snapshot of the top", |found| found.snapshots = vec![snapshot("a", found.top)]),
        ("a snapshot of no layer", |found| found.snapshots = vec![snapshot("a", LayerId::random())]),
        ("two snapshots of one name", |found| {
            found.snapshots = vec![snapshot("a", found.layers[0].id), snapshot("a", found.layers[1].id)];
        }),
        ("a layer that is being closed and does not lie below the top", |found| {
            found.layers[0].closing = true;
        }),
        ("a merge of layers that do not lie on each other", |found| {
            found.merging = Some(Merging { from: found.layers[2].id, into: found.layers[0].id });
        }),
        ("a merge into what a snapshot keeps", |found| {
            found.snapshots = vec![snapshot("a", found.layers[0].id)];
            found.merging = Some(Merging { from: found.layers[1].id, into: found.layers[0].id });
        }),
    ];
    for (what, edit) in edits {
        let volume = Volume::clear(MIB).and_layers(2);
        volume.edit(edit);
        let refused = volume.open().unwrap_err();
        assert!(matches!(refused, DatastoreError::Damaged { .. }), "{what}: {refused}");
        assert_eq!(volume.findings()[0].severity, Severity::Error, "{what}");
    }
    let volume = Volume::clear(MIB).and_layers(2);
    volume.edit(|_| {});
    drop(volume.open().unwrap());
}

#[test]
fn a_layer_that_nothing_needs_is_refused() {
    let volume = Volume::clear(MIB).and_layers(1);
    volume.edit(|found| {
        let branch = LayerRecord { id: LayerId::random(), ..found.layers[0].clone() };
        found.layers.insert(1, LayerRecord { parent: Some(found.layers[0].id), ..branch });
    });
    assert!(matches!(volume.refused(), DatastoreError::Damaged { .. }));
    assert!(matches!(volume.add_layer(), Err(DatastoreError::Damaged { .. })));
}
