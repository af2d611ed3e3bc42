//! Volumes of several layers, without their data path: a layer added, described, opened, grown, checked, deleted; and
//! every way in which that is refused or interrupted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_datastore::file::{discards, tags};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IoError, Request, Sealed};
use strongroom_keys::{DescriptorKey, Kek, KekSource, KeyError};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{KeyEpoch, LayerId, VolumeSize};

use support::Destaging;

const MIB: u64 = 1 << 20;

/// A volume in a datastore of its own.
struct Volume {
    _datastore: tempfile::TempDir,
    path: PathBuf,
    kek: Option<Kek>,
}

impl Volume {
    fn new(kek: Option<Kek>, bytes: u64, provisioning: Provisioning) -> Self {
        let datastore = tempfile::tempdir().unwrap();
        let volume = Self { path: datastore.path().join("vm1"), _datastore: datastore, kek };
        let options = CreateOptions {
            size: size(bytes),
            provisioning,
            protection: volume.protection(),
            log_bytes: Some(LOG_BYTES_MIN),
            integrity: volume.kek.is_some(),
        };
        create(&volume.path, &options).unwrap();
        volume
    }

    /// An encrypted, thin one with tags.
    fn encrypted(bytes: u64) -> Self {
        Self::new(Some(kek(1)), bytes, Provisioning::Thin)
    }

    /// A clear, thin one.
    fn clear(bytes: u64) -> Self {
        Self::new(None, bytes, Provisioning::Thin)
    }

    fn protection(&self) -> Protection<'_> {
        self.kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted)
    }

    fn options(&self) -> AddLayerOptions<'_> {
        AddLayerOptions {
            protection: self.protection(),
            log_bytes: Some(LOG_BYTES_MIN),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        }
    }

    fn add_layer(&self) -> Result<Descriptor, DatastoreError> {
        add_layer(&self.path, &self.options())
    }

    /// With so many layers more.
    fn and_layers(self, count: usize) -> Self {
        (0..count).for_each(|_| drop(self.add_layer().unwrap()));
        self
    }

    fn to_open(&self, access: Access) -> OpenOptions<'_> {
        let protection = self.protection();
        OpenOptions { protection, access, lock_wait: Duration::ZERO, least_generation: 0 }
    }

    fn open(&self) -> Result<OpenVolume, DatastoreError> {
        open(&self.path, &self.to_open(Access::ReadWrite))
    }

    fn descriptor(&self) -> Descriptor {
        describe(&self.path).unwrap().descriptor
    }

    /// Replaces the descriptor of a clear volume by what `change` makes of it.
    fn edit(&self, change: impl FnOnce(&mut Descriptor)) {
        let mut descriptor = self.descriptor();
        change(&mut descriptor);
        let body = serde_json::to_vec(&descriptor).unwrap();
        let length = (body.len() as u32).to_le_bytes();
        let signed = [b"STRGROOM".as_slice(), &FORMAT_VERSION.to_le_bytes(), &length, &body].concat();
        let checksum = DescriptorKey::checksum(&signed);
        fs::write(self.path.join("descriptor"), [signed.as_slice(), checksum.as_slice()].concat()).unwrap();
    }

    fn file(&self, prefix: &str, layer: LayerId) -> PathBuf {
        self.path.join(format!("{prefix}-{layer}"))
    }

    /// Name and content of every file that belongs to the volume; those that space is kept in have none.
    fn state(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path());
        let named = entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
        let parts = named.filter(|(name, _)| !name.starts_with("descriptor.spare-"));
        parts.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
    }

    fn names(&self) -> Vec<String> {
        self.state().into_keys().collect()
    }

    fn findings(&self) -> Vec<Finding> {
        check(&self.path, self.kek.as_ref()).unwrap()
    }

    /// Opening and checking refuse for the same reason.
    fn refused(&self) -> DatastoreError {
        let error = self.open().unwrap_err();
        let found = self.findings();
        let errors: Vec<_> = found.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(errors.iter().any(|finding| finding.message == error.to_string()), "{error}: {found:?}");
        error
    }
}

/// Ends what has opened a volume, with an empty log.
fn close_in_order(opened: OpenVolume) {
    drop(Destaging::of(&opened.disk, ring));
}

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn size(bytes: u64) -> VolumeSize {
    VolumeSize::new(bytes).unwrap()
}

fn epochs(numbers: impl IntoIterator<Item = u32>) -> Vec<KeyEpoch> {
    numbers.into_iter().map(|number| KeyEpoch::new(number).unwrap()).collect()
}

/// What a volume of these layers, the top first, has in its directory.
fn expected_names(chain: &[LayerId], has_log: bool, has_tags: bool) -> Vec<String> {
    let mut names = vec!["descriptor".to_owned()];
    names.extend(has_log.then(|| format!("log-{}", chain[0])));
    for (index, layer) in chain.iter().enumerate() {
        names.push(format!("layer-{layer}"));
        names.extend(has_tags.then(|| format!("tags-{layer}")));
        names.extend((index + 1 < chain.len()).then(|| format!("discards-{layer}")));
    }
    names.sort();
    names
}

fn chain(descriptor: &Descriptor) -> Vec<LayerId> {
    descriptor.chain().map(|layer| layer.id).collect()
}

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
            for name in [format!("layer-{bottom}"), format!("tags-{bottom}")] {
                assert_eq!(after.get(&name), before.get(&name), "{name}");
            }
            assert!(volume.findings().is_empty());
            drop(volume.open().unwrap());
        }
    }
}

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
        let files = layer.files().into_iter().map(|file| rustix::fs::fstat(file).unwrap().st_ino);
        files.collect::<Vec<_>>()
    };
    let sent = layer.duplicate_files().unwrap();
    assert_eq!(
        sent.len(),
        4 + 3 + 2,
        "layer, log, tags, discards; no log below, and nothing below the lowest"
    );
    let and_sessions = sent.into_iter().chain(std::io::pipe().map(|(read, _)| read.into()));
    let mut and_sessions = and_sessions.collect::<Vec<_>>().into_iter();
    let received = OpenLayer::from_files(facts, &lower, &mut and_sessions).unwrap();
    assert_eq!(inodes(&received), inodes(&layer));
    assert_eq!((received.lower_facts(), and_sessions.len()), (lower.clone(), 1));
    let too_few = &mut layer.duplicate_files().unwrap().into_iter().skip(1);
    assert!(OpenLayer::from_files(facts, &lower, too_few).is_none());
    let (top, below) = received.into_blocks().unwrap();
    assert_eq!((below.len(), top.discards.is_some(), below[1].discards.is_some()), (2, true, false));
}

#[test]
fn one_writer_or_many_readers() {
    let volume = Volume::encrypted(MIB).and_layers(1);
    let to_read = volume.to_open(Access::ReadOnly);
    let writer = volume.open().unwrap();
    assert!(matches!(open(&volume.path, &to_read), Err(DatastoreError::InUse { .. })));
    assert!(matches!(volume.add_layer(), Err(DatastoreError::InUse { .. })));
    assert!(matches!(delete(&volume.path, Duration::ZERO), Err(DatastoreError::InUse { .. })));
    drop(writer);
    let readers = [open(&volume.path, &to_read).unwrap(), open(&volume.path, &to_read).unwrap()];
    assert!(matches!(volume.open(), Err(DatastoreError::InUse { .. })));
    assert!(matches!(volume.add_layer(), Err(DatastoreError::InUse { .. })));
    drop(readers);
    drop(volume.open().unwrap());
}

#[test]
fn a_layer_that_is_not_complete_gets_none_on_it() {
    let volume = Volume::encrypted(MIB);
    // What dies with the log in use, or ends without emptying it.
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

/// A layer whose tags are marked would be taken as it is for good, because nobody settles it once others lie on it.
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
    // What a power cut would leave now.
    let marked = fs::read(volume.file("tags", top)).unwrap();
    driver.succeed(Request::Flush).unwrap();
    drop((driver, tagged));
    close_in_order(opened);
    let settled = fs::read(volume.file("tags", top)).unwrap();
    fs::write(volume.file("tags", top), marked).unwrap();
    let refused = volume.add_layer().unwrap_err();
    assert!(matches!(refused, DatastoreError::TagsNotSettled { layer, .. } if layer == top), "{refused}");
    fs::write(volume.file("tags", top), settled).unwrap();
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

        let path = volume.file("tags", layer);
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
    let edits: [(&str, Edit); 8] = [
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
fn branches_are_refused() {
    let volume = Volume::clear(MIB).and_layers(1);
    volume.edit(|found| {
        let branch = LayerRecord { id: LayerId::random(), ..found.layers[0].clone() };
        found.layers.insert(1, LayerRecord { parent: Some(found.layers[0].id), ..branch });
    });
    assert!(matches!(volume.refused(), DatastoreError::Layers { count: 3, chain: 2, .. }));
    assert!(matches!(volume.add_layer(), Err(DatastoreError::Layers { .. })));
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
    // One file after the other, and at each step the volume is what it was.
    for prefix in ["layer", "log", "tags", "discards"] {
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
    // The last step: the descriptor is there, and the log that nobody needs any more too.
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

#[test]
fn deletion_takes_all_layers_and_leftovers_and_no_stranger() {
    let volume = Volume::encrypted(MIB).and_layers(2);
    for prefix in ["layer", "log", "tags", "discards"] {
        fs::write(volume.file(prefix, LayerId::random()), [1; 5000]).unwrap();
    }
    let stranger = volume.path.join("layer-of-mine");
    fs::write(&stranger, "mine").unwrap();
    let before = volume.state();
    let refused = delete(&volume.path, Duration::ZERO).unwrap_err();
    assert!(matches!(&refused, DatastoreError::Stranger { stranger, .. } if stranger == "layer-of-mine"));
    let finding = volume.findings().into_iter().find(|finding| finding.message.contains("of-mine")).unwrap();
    assert!(finding.message.contains("not a part"), "{}", finding.message);
    assert_eq!(volume.state(), before);
    fs::remove_file(stranger).unwrap();
    delete(&volume.path, Duration::ZERO).unwrap();
    assert!(!volume.path.exists());
}

#[test]
fn only_the_top_grows() {
    let (before, after) = (100 * MIB, 300 * MIB);
    let volume = Volume::encrypted(before).and_layers(2);
    let layers = chain(&volume.descriptor());
    let length = |prefix, layer| fs::metadata(volume.file(prefix, layer)).unwrap().len();
    // What is recorded already stays.
    let record = fs::File::options().write(true).open(volume.file("discards", layers[0])).unwrap();
    record.write_all_at(&[7; 512], 512).unwrap();
    let mut opened = volume.open().unwrap();
    opened.grow(size(after), volume.protection()).unwrap();
    close_in_order(opened);
    let lengths = |layer| (length("layer", layer), length("tags", layer));
    let wanted = |bytes| (bytes, tags::file_bytes(bytes));
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
    // The layer that has grown keeps its size when it is the top no more.
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
    assert_eq!(described.allocated_bytes, on_disk);
    assert_eq!(
        describe_log(&volume.path).unwrap(),
        Some(LogUse { size_bytes: LOG_BYTES_MIN, used_bytes: 0 })
    );
}
