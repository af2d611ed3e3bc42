//! Adding a layer, and refusing to.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use strongroom_datastore::file::*;
use strongroom_datastore::file::{discards, tags};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, Request, Sealed};
use strongroom_keys::KeyError;
use strongroom_types::{LayerId, VolumeSize};

use crate::volume::{MIB, Volume, chain, close_in_order, epochs, expected_names, kek, ring};

#[test]
fn layers_are_added_one_on_the_other() {
    let volume = Volume::encrypted(8 * MIB);
    let mut tops = vec![volume.descriptor().top];
    for count in 2..=4 {
        let added = volume.add_layer().unwrap();
        tops.insert(0, added.top);
        assert_eq!(volume.descriptor(), added);
        assert_eq!((added.generation, chain(&added)), (count, tops.clone()));
    }
    let made = volume.descriptor();
    let sizes: Vec<_> = made.chain().map(|layer| layer.size_bytes.map(VolumeSize::bytes)).collect();
    assert_eq!(sizes, [None, Some(8 * MIB), Some(8 * MIB), Some(8 * MIB)]);
    assert_eq!(made.encryption.as_ref().unwrap().next_epoch, epochs([5])[0]);
    assert_eq!(volume.names(), expected_names(&tops, true, true));
    assert!(volume.findings().is_empty());

    let opened = volume.open().unwrap();
    assert_eq!(opened.deks.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), epochs(1..=4));
    let distinct: Vec<_> = opened.deks.iter().map(|(_, dek)| dek.expose().to_vec()).collect();
    assert!((0..4).all(|at| !distinct[..at].contains(&distinct[at])), "each layer has its own key");
    assert!(!opened.disk.limits().read_only && opened.disk.log_size_and_use().is_some());
    for (index, layer) in opened.lower.iter().enumerate() {
        assert!(layer.disk.limits().read_only && layer.disk.log_size_and_use().is_none());
        assert_eq!(layer.tags.as_ref().unwrap().1.layer, tops[index + 1]);
        let discards = layer.discards.as_ref().map(|(_, facts)| facts.layer);
        assert_eq!(discards, (index < 2).then(|| tops[index + 1]));
    }
    assert_eq!((opened.lower.len(), opened.discards.unwrap().1.layer), (3, tops[0]));
    let discards = fs::metadata(volume.file("discards", tops[0])).unwrap();
    assert_eq!(discards.len(), discards::file_bytes(8 * MIB));
    assert!(discards.blocks() * 512 >= discards.len(), "a discard never fails for want of room");
}

#[test]
fn what_is_below_stays_as_it_was() {
    for is_encrypted in [false, true] {
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let volume = Volume::new(is_encrypted.then(|| kek(1)), MIB, provisioning);
            let bottom = volume.descriptor().top;
            let file = fs::File::options().write(true).open(volume.file("layer", bottom)).unwrap();
            file.write_all_at(&[7; 4096], 8192).unwrap();
            let before = volume.state();
            let added = volume.add_layer().unwrap();
            let after = volume.state();
            let has_log = provisioning == Provisioning::Thin;
            assert_eq!(volume.names(), expected_names(&chain(&added), has_log, is_encrypted));
            for name in [format!("layer-{bottom}"), format!("tags2-{bottom}")] {
                assert_eq!(after.get(&name), before.get(&name), "{name}");
            }
            assert!(volume.findings().is_empty());
            drop(volume.open().unwrap());
        }
    }
}

#[test]
fn a_layer_that_is_not_complete_gets_none_on_it() {
    let volume = Volume::encrypted(MIB);
    // A process that dies with the log in use, or ends without emptying it.
    drop(volume.open().unwrap());
    let before = volume.state();
    let top = volume.descriptor().top;
    let refused = volume.add_layer().unwrap_err();
    assert!(matches!(refused, DatastoreError::LogNotEmpty { layer, .. } if layer == top), "{refused}");
    assert_eq!(volume.state(), before);
    let opened = volume.open().unwrap();
    close_in_order(opened);
    volume.add_layer().unwrap();
}

/// A layer whose tags are marked would be accepted unverified for good, because it is not settled
/// once others lie on it.
#[test]
fn a_layer_with_unsettled_tags_gets_none_on_it() {
    let volume = Volume::new(Some(kek(1)), MIB, Provisioning::Thick);
    let top = volume.descriptor().top;
    let mut opened = volume.open().unwrap();
    let (file, facts) = opened.tags.take().unwrap();
    let keys = tags::TagKeys::derive(&opened.take_deks()).unwrap().unwrap();
    let disk = Arc::clone(&opened.disk) as Arc<dyn Disk<Sealed>>;
    let tagged = tags::TagsDisk::over(disk, file, facts, keys, tags::TagsTuning::default()).unwrap();
    let mut driver = Driver::<Sealed>::open(&tagged, &Setup::on(ring), 4, 4 << 20, 0).unwrap();
    driver.write(0, &[7; 4096]).unwrap();
    // The state that a power cut would leave now.
    let marked = fs::read(volume.file("tags2", top)).unwrap();
    driver.succeed(Request::Flush).unwrap();
    drop((driver, tagged));
    close_in_order(opened);
    let settled = fs::read(volume.file("tags2", top)).unwrap();
    fs::write(volume.file("tags2", top), marked).unwrap();
    let refused = volume.add_layer().unwrap_err();
    assert!(matches!(refused, DatastoreError::TagsNotSettled { layer, .. } if layer == top), "{refused}");
    fs::write(volume.file("tags2", top), settled).unwrap();
    volume.add_layer().unwrap();
}

#[test]
fn only_whoever_has_the_key_adds_a_layer() {
    let volume = Volume::encrypted(MIB);
    let before = volume.state();
    let add = |protection, least_generation| {
        add_layer(&volume.path, &AddLayerOptions { protection, least_generation, ..volume.options() })
    };
    let other = kek(2);
    let wrong = add(Protection::Encrypted(&other), 0).unwrap_err();
    assert!(matches!(wrong, DatastoreError::Key { error: KeyError::WrongKek { .. }, .. }), "{wrong}");
    assert!(matches!(add(Protection::Unencrypted, 0), Err(DatastoreError::Encrypted { .. })));
    assert!(matches!(
        add(volume.protection(), 2),
        Err(DatastoreError::RolledBack { found: 1, least: 2, .. })
    ));
    assert_eq!(volume.state(), before);
    let clear = Volume::clear(MIB);
    let refused = add_layer(&clear.path, &volume.options());
    assert!(matches!(refused, Err(DatastoreError::NotEncrypted { .. })));
}

#[test]
fn a_chain_has_its_limit() {
    let volume = Volume::clear(MIB).and_layers(CHAIN_LAYERS_MAX - 1);
    assert_eq!(volume.open().unwrap().lower.len(), CHAIN_LAYERS_MAX - 1);
    let opened = volume.open().unwrap();
    close_in_order(opened);
    let before = volume.state();
    let refused = volume.add_layer().unwrap_err();
    assert!(matches!(refused, DatastoreError::LongChain { count: 33, most: 32, .. }), "{refused}");
    assert_eq!(volume.state(), before);
    volume.edit(|found| {
        let lowest = LayerRecord { id: LayerId::random(), ..found.layers[0].clone() };
        found.layers[0].parent = Some(lowest.id);
        found.layers.insert(0, lowest);
    });
    assert!(matches!(volume.refused(), DatastoreError::LongChain { count: 33, .. }));
}

#[test]
fn what_an_interrupted_addition_left_goes_away_with_the_next() {
    let volume = Volume::encrypted(MIB);
    let id = LayerId::random();
    let mut left = Vec::new();
    // One file after the other, and at each step the volume is unchanged.
    for prefix in ["layer", "log", "tags2", "discards"] {
        fs::write(volume.file(prefix, id), [1; 5000]).unwrap();
        left.push(format!("{prefix}-{id}"));
        let found = volume.findings();
        assert_eq!(found.len(), left.len());
        for name in &left {
            let named = found.iter().find(|finding| finding.message.contains(name)).unwrap();
            assert_eq!(named.severity, Severity::Notice);
            assert!(named.message.contains("goes away"), "{}", named.message);
        }
        drop(open(&volume.path, &volume.to_open(Access::ReadOnly)).unwrap());
    }
    // The last step: the descriptor is in place, and the log that is no longer needed still exists.
    let old_log = volume.file("log", volume.descriptor().top);
    let log = fs::read(&old_log).unwrap();
    let added = volume.add_layer().unwrap();
    assert_eq!(volume.names(), expected_names(&chain(&added), true, true));
    fs::write(&old_log, &log).unwrap();
    let found = volume.findings();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Notice));
    let name = old_log.file_name().unwrap().to_str().unwrap();
    assert!(found[0].message.contains(name), "{}", found[0].message);
    let added = volume.add_layer().unwrap();
    assert_eq!(volume.names(), expected_names(&chain(&added), true, true));
    assert!(volume.findings().is_empty());
    drop(volume.open().unwrap());
}
