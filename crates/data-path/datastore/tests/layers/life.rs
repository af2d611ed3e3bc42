//! The life of layers: handed over, shared, grown, listed, deleted.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use strongroom_datastore::file::storage::adopt_host_file;
use strongroom_datastore::file::*;
use strongroom_datastore::file::{discards, tags};
use strongroom_io::Disk;
use strongroom_types::LayerId;

use crate::volume::{LOCK_WAIT, MIB, Volume, chain, close_in_order, epochs, size};

#[test]
fn a_layer_travels_with_those_below_it() {
    let volume = Volume::encrypted(MIB).and_layers(2);
    let (head, layer, deks) = open_apart(&volume.path, &volume.to_open(Access::ReadWrite)).unwrap();
    let epochs_of = |deks: &Deks| deks.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>();
    assert_eq!(epochs_of(&deks), epochs(1..=3));
    assert_eq!(epochs_of(&head.deks(volume.protection()).unwrap()), epochs(1..=3));
    let (facts, lower) = (layer.facts, layer.lower_facts());
    assert_eq!((facts.write_epoch, facts.read_only), (epochs([3])[0], false));
    assert_eq!(lower.iter().map(|facts| facts.write_epoch).collect::<Vec<_>>(), epochs([2, 1]));
    assert!(lower.iter().all(|facts| facts.read_only && facts.log.is_none()));

    let inodes = |layer: &OpenLayer| {
        let files = layer.files().unwrap().into_iter().map(|file| rustix::fs::fstat(file).unwrap().st_ino);
        files.collect::<Vec<_>>()
    };
    let sent = || layer.files().unwrap().into_iter();
    assert_eq!(
        sent().len(),
        4 + 3 + 2,
        "layer, log, tags, discards; no log below, and nothing below the lowest"
    );
    let and_sessions = sent().chain(std::io::pipe().map(|(read, _)| read.into()));
    let mut and_sessions = and_sessions.collect::<Vec<_>>().into_iter();
    let received = OpenLayer::from_files(facts, &lower, &mut and_sessions, adopt_host_file).unwrap();
    assert_eq!(inodes(&received), inodes(&layer));
    assert_eq!((received.lower_facts(), and_sessions.len()), (lower.clone(), 1));
    let too_few = &mut sent().skip(1);
    assert!(OpenLayer::from_files(facts, &lower, too_few, adopt_host_file).is_none());
    let (top, below) = received.into_blocks().unwrap();
    assert_eq!((below.len(), top.discards.is_some(), below[1].discards.is_some()), (2, true, false));
}

#[test]
fn one_writer_or_many_readers() {
    let volume = Volume::encrypted(MIB).and_layers(1);
    let to_read = volume.to_open(Access::ReadOnly);
    let in_use = |access| {
        let at_once = OpenOptions { lock_wait: Duration::ZERO, ..volume.to_open(access) };
        let added =
            add_layer(&volume.path, &AddLayerOptions { lock_wait: Duration::ZERO, ..volume.options() });
        matches!(open(&volume.path, &at_once), Err(DatastoreError::InUse { .. }))
            && matches!(added, Err(DatastoreError::InUse { .. }))
    };
    let writer = volume.open().unwrap();
    assert!(in_use(Access::ReadOnly));
    assert!(matches!(delete(&volume.path, Duration::ZERO), Err(DatastoreError::InUse { .. })));
    drop(writer);
    let readers = [open(&volume.path, &to_read).unwrap(), open(&volume.path, &to_read).unwrap()];
    assert!(in_use(Access::ReadWrite));
    drop(readers);
    drop(volume.open().unwrap());
}

#[test]
fn only_the_top_grows() {
    let (before, after) = (100 * MIB, 300 * MIB);
    let volume = Volume::encrypted(before).and_layers(2);
    let layers = chain(&volume.descriptor());
    let length = |prefix, layer| fs::metadata(volume.file(prefix, layer)).unwrap().len();
    // Bits that are already recorded stay.
    let record = fs::File::options().write(true).open(volume.file("discards", layers[0])).unwrap();
    record.write_all_at(&[7; 512], 512).unwrap();
    let mut opened = volume.open().unwrap();
    opened.grow(size(after), volume.protection()).unwrap();
    close_in_order(opened);
    let lengths = |layer| (length("layer", layer), length("tags2", layer));
    let wanted = |bytes| (bytes, tags::Layout::CURRENT.file_bytes(bytes));
    assert_eq!(lengths(layers[0]), wanted(after));
    assert_eq!(length("discards", layers[0]), discards::file_bytes(after));
    assert!(discards::file_bytes(after) > discards::file_bytes(before));
    let allocated = fs::metadata(volume.file("discards", layers[0])).unwrap().blocks() * 512;
    assert!(allocated >= discards::file_bytes(after));
    assert_eq!(fs::read(volume.file("discards", layers[0])).unwrap()[512..1024], [7; 512]);
    for layer in &layers[1..] {
        assert_eq!(lengths(*layer), wanted(before));
    }
    assert_eq!(length("discards", layers[1]), discards::file_bytes(before));

    let opened = volume.open().unwrap();
    let size_of = |disk: &FileDisk| disk.limits().size_bytes;
    assert_eq!(size_of(&opened.disk), after);
    assert!(opened.lower.iter().all(|layer| size_of(&layer.disk) == before));
    close_in_order(opened);
    assert!(volume.findings().is_empty());
    // The layer that has grown keeps its size when it is no longer the top.
    let added = volume.add_layer().unwrap();
    let sizes: Vec<_> = added.chain().map(|layer| added.layer_size(layer).bytes()).collect();
    assert_eq!(sizes, [after, after, before, before]);
}

#[test]
fn a_list_and_a_description_show_all_layers() {
    let volume = Volume::clear(MIB).and_layers(2);
    let listed = list(volume.path.parent().unwrap()).unwrap();
    let [ListedVolume::Volume(described)] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!(described.descriptor.chain().count(), 3);
    let on_disk: u64 = fs::read_dir(&volume.path)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512)
        .sum();
    let directory = fs::metadata(&volume.path).unwrap().blocks() * 512;
    assert_eq!(described.space.committed_bytes, on_disk + directory);
    assert_eq!(
        describe_log(&volume.path).unwrap(),
        Some(LogUse { size_bytes: LOG_BYTES_MIN, used_bytes: 0 })
    );
}

#[test]
fn deletion_takes_all_layers_and_leftovers_and_no_stranger() {
    let volume = Volume::encrypted(MIB).and_layers(2);
    for prefix in ["layer", "log", "tags2", "discards"] {
        fs::write(volume.file(prefix, LayerId::random()), [1; 5000]).unwrap();
    }
    let stranger = volume.path.join("layer-of-mine");
    fs::write(&stranger, "mine").unwrap();
    let before = volume.state();
    let refused = delete(&volume.path, LOCK_WAIT).unwrap_err();
    assert!(matches!(&refused, DatastoreError::Stranger { stranger, .. } if stranger == "layer-of-mine"));
    let finding = volume.findings().into_iter().find(|finding| finding.message.contains("of-mine")).unwrap();
    assert!(finding.message.contains("not a part"), "{}", finding.message);
    assert_eq!(volume.state(), before);
    fs::remove_file(stranger).unwrap();
    delete(&volume.path, LOCK_WAIT).unwrap();
    assert!(!volume.path.exists());
}
