//! A volume moves to another KEK: which keys open it on the way, and what an attacker with only one
//! of the keys can do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_crypto::kdf::Argon2idParams;
use strongroom_datastore::file::*;
use strongroom_keys::{DescriptorKey, Kek, KekSource, KeyError, ProviderKey};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeSize;

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut bytes.to_vec()).unwrap()
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&secret(&[fill; 32])).unwrap()
}

fn provided(fill: u8) -> Kek {
    let (provider, key) = ("corp".parse().unwrap(), "4711".parse().unwrap());
    Kek::from_provider(secret(&[fill; 32]), ProviderKey { provider, key, wrapped: None }).unwrap()
}

fn options(kek: &Kek, least_generation: u64) -> OpenOptions<'_> {
    let protection = Protection::Encrypted(kek);
    OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation }
}

fn from_to<'a>(from: &'a Kek, to: &'a Kek) -> RewrapOptions<'a> {
    RewrapOptions { from, to, lock_wait: Duration::ZERO, least_generation: 0 }
}

/// A volume of two layers.
struct Volume {
    _datastore: tempfile::TempDir,
    path: PathBuf,
}

impl Volume {
    fn new(kek: &Kek) -> Self {
        let datastore = tempfile::tempdir().unwrap();
        let path = datastore.path().join("vm1");
        let protection = Protection::Encrypted(kek);
        let made = CreateOptions {
            size: VolumeSize::new(1 << 20).unwrap(),
            provisioning: Provisioning::Thick,
            protection,
            log_bytes: None,
            integrity: Some(Integrity::NEW),
        };
        create(&path, &made).unwrap();
        add_layer(&path, &Self::added(kek)).unwrap();
        Self { _datastore: datastore, path }
    }

    fn added(kek: &Kek) -> AddLayerOptions<'_> {
        let protection = Protection::Encrypted(kek);
        AddLayerOptions { protection, log_bytes: None, lock_wait: Duration::ZERO, least_generation: 0 }
    }

    fn head(&self, kek: &Kek) -> VolumeHead {
        VolumeHead::open(&self.path, &options(kek, 0)).unwrap()
    }

    /// A volume that is between the two keys.
    fn between(from: &Kek, to: &Kek) -> Self {
        let volume = Self::new(from);
        volume.head(from).begin_rewrap(from, to).unwrap();
        volume
    }

    /// Opens it as a guest's volume, and returns the DEKs.
    fn open(&self, kek: &Kek, least_generation: u64) -> Result<Vec<Vec<u8>>, DatastoreError> {
        let opened = open(&self.path, &options(kek, least_generation))?;
        Ok(opened.deks.iter().map(|(_, dek)| dek.expose().to_vec()).collect())
    }

    fn descriptor(&self) -> Descriptor {
        describe(&self.path).unwrap().descriptor
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path.join("descriptor")).unwrap()
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(self.path.join("descriptor"), bytes).unwrap();
    }

    /// Every file but the descriptor and its reserve.
    fn blocks(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path());
        let is_block =
            |path: &PathBuf| !path.file_name().unwrap().to_str().unwrap().starts_with("descriptor");
        entries.filter(is_block).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

/// A descriptor with these tags, as an attacker with some of the keys could make it.
fn forged(version: u32, descriptor: &Descriptor, keks: &[&Kek]) -> Vec<u8> {
    let body = serde_json::to_vec(descriptor).unwrap();
    let length = (body.len() as u32).to_le_bytes();
    let signed = [b"STRGROOM".as_slice(), &version.to_le_bytes(), &length, &body].concat();
    let tag = |kek: &&Kek| DescriptorKey::derive(kek, descriptor.volume).unwrap().tag(&signed).unwrap();
    [signed.as_slice(), &keks.iter().flat_map(tag).collect::<Vec<_>>()].concat()
}

fn is_wrong_key<T: std::fmt::Debug>(opened: &Result<T, DatastoreError>) -> bool {
    matches!(opened, Err(DatastoreError::Key { error: KeyError::WrongKek { .. }, .. }))
}

#[test]
fn passphrases_and_key_files_become_a_providers_key_and_no_block_is_touched() {
    let new = provided(2);
    let passphrase = Kek::of_new_passphrase(&secret(b"correct horse"), Argon2idParams::RECOMMENDED).unwrap();
    for old in [kek(1), passphrase] {
        let volume = Volume::new(&old);
        let (deks, blocks) = (volume.open(&old, 0).unwrap(), volume.blocks());
        assert_eq!(deks.len(), 2);
        let rewrapped = rewrap(&volume.path, &from_to(&old, &new)).unwrap();
        assert_eq!(rewrapped, volume.descriptor());
        assert_eq!(rewrapped.generation, 4, "made, a layer added, under both, under the new one");
        assert_eq!(rewrapped.key_source(), Some(new.source()));
        assert_eq!(volume.open(&new, 4).unwrap(), deks);
        assert_eq!(volume.blocks(), blocks);
        assert!(is_wrong_key(&volume.open(&old, 0)));
        assert!(!String::from_utf8_lossy(&volume.bytes()).contains(&old.id().to_string()));
        assert!(check(&volume.path, Some(&new)).unwrap().is_empty());
        // A finished re-wrap stays finished, whatever key is given for the old one.
        assert_eq!(rewrap(&volume.path, &from_to(&old, &new)).unwrap(), rewrapped);
        assert!(is_wrong_key(&rewrap(&volume.path, &from_to(&old, &kek(3)))));
    }
}

#[test]
fn the_same_key_at_another_place_is_only_named_anew() {
    let (file, same) = (kek(1), provided(1));
    let volume = Volume::new(&file);
    let moved = rewrap(&volume.path, &from_to(&file, &same)).unwrap();
    assert_eq!((moved.generation, moved.key_source()), (3, Some(same.source())));
    assert_eq!(volume.open(&file, 3).unwrap(), volume.open(&same, 3).unwrap());
}

#[test]
fn between_two_keys_either_opens_it_and_neither_changes_it_alone() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::between(&old, &new);
    assert_eq!(volume.open(&old, 3).unwrap(), volume.open(&new, 3).unwrap());
    assert!(is_wrong_key(&volume.open(&kek(3), 0)));
    let before = volume.bytes();
    for one in [&old, &new] {
        assert!(check(&volume.path, Some(one)).unwrap().is_empty());
        let size = VolumeSize::new(2 << 20).unwrap();
        let grown = volume.head(one).grow(size, Protection::Encrypted(one));
        assert!(matches!(grown, Err(DatastoreError::BetweenKeys { .. })), "{grown:?}");
        let layered = add_layer(&volume.path, &Volume::added(one));
        assert!(matches!(layered, Err(DatastoreError::BetweenKeys { .. })), "{layered:?}");
    }
    assert_eq!(volume.bytes(), before);
    rewrap(&volume.path, &from_to(&old, &new)).unwrap();
    add_layer(&volume.path, &Volume::added(&new)).unwrap();
    assert_eq!(volume.open(&new, 5).unwrap().len(), 3);
}

#[test]
fn the_new_key_finishes_alone_and_the_old_one_starts_over_with_a_third() {
    let (old, new, third) = (kek(1), provided(2), kek(3));
    let finished = Volume::between(&old, &new);
    rewrap(&finished.path, &from_to(&new, &new)).unwrap();
    assert!(finished.open(&new, 4).is_ok() && is_wrong_key(&finished.open(&old, 0)));

    let restarted = Volume::between(&old, &new);
    rewrap(&restarted.path, &from_to(&old, &third)).unwrap();
    assert!(restarted.open(&third, 5).is_ok());
    assert!(is_wrong_key(&restarted.open(&old, 0)) && is_wrong_key(&restarted.open(&new, 0)));

    let onwards = Volume::between(&old, &new);
    rewrap(&onwards.path, &from_to(&new, &third)).unwrap();
    assert!(onwards.open(&third, 5).is_ok() && is_wrong_key(&onwards.open(&old, 0)));

    let back = Volume::between(&old, &new);
    rewrap(&back.path, &from_to(&new, &old)).unwrap();
    assert!(back.open(&old, 4).is_ok() && is_wrong_key(&back.open(&new, 0)));
}

#[test]
fn earlier_descriptors_that_are_put_back_are_refused() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::new(&old);
    let before = volume.bytes();
    volume.head(&old).begin_rewrap(&old, &new).unwrap();
    let between = volume.bytes();
    let generation = rewrap(&volume.path, &from_to(&old, &new)).unwrap().generation;

    volume.put(&before);
    assert!(is_wrong_key(&volume.open(&new, 0)), "whoever expects the new key");
    let rolled_back = volume.open(&old, generation);
    assert!(matches!(rolled_back, Err(DatastoreError::RolledBack { found: 2, least: 4, .. })));

    volume.put(&between);
    let rolled_back = volume.open(&new, generation);
    assert!(matches!(rolled_back, Err(DatastoreError::RolledBack { found: 3, least: 4, .. })));
    let again = RewrapOptions { least_generation: generation, ..from_to(&old, &new) };
    assert!(matches!(rewrap(&volume.path, &again), Err(DatastoreError::RolledBack { .. })));
    assert_eq!(volume.bytes(), between, "what is refused is not touched");
}

#[test]
fn who_has_the_old_key_alone_makes_nothing_that_the_new_one_opens() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::between(&old, &new);
    let (between, bytes) = (volume.descriptor(), volume.bytes());
    let done = rewrap(&volume.path, &from_to(&old, &new)).unwrap();
    let mut larger = between.clone();
    (larger.size_bytes, larger.generation) = (VolumeSize::new(2 << 20).unwrap(), 99);
    let mut only_old = larger.clone();
    only_old.encryption.as_mut().unwrap().next_kek = None;
    let mut without = between.clone();
    without.layers[0].epochs[0].envelopes.reverse();
    let mut swapped = between.clone();
    let encryption = swapped.encryption.as_mut().unwrap();
    std::mem::swap(&mut encryption.kek, encryption.next_kek.as_mut().unwrap());
    let first_tag = bytes.len() - 64;
    let forgeries = [
        ("a tag of the old key twice", forged(FORMAT_VERSION, &larger, &[&old, &old])),
        (
            "the tag of another descriptor",
            [&forged(FORMAT_VERSION, &larger, &[&old]), &bytes[first_tag + 32..]].concat(),
        ),
        ("only the old key", forged(FORMAT_VERSION, &only_old, &[&old])),
        ("one tag is missing", bytes[..first_tag + 32].to_vec()),
        (
            "the tags change places",
            [&bytes[..first_tag], &bytes[first_tag + 32..], &bytes[first_tag..first_tag + 32]].concat(),
        ),
        ("the keys change places", forged(FORMAT_VERSION, &swapped, &[&old, &old])),
        ("an earlier format", forged(2, &larger, &[&old, &old])),
        (
            "the new key in front",
            forged(FORMAT_VERSION, &Descriptor { generation: 99, ..done.clone() }, &[&old]),
        ),
        ("the envelopes change places", forged(FORMAT_VERSION, &without, &[&old, &old])),
    ];
    for (what, bytes) in &forgeries {
        volume.put(bytes);
        let error = volume.open(&new, 0).unwrap_err();
        println!("{what}: {error}");
        assert!(
            matches!(
                error,
                DatastoreError::NotAuthentic { .. }
                    | DatastoreError::Damaged { .. }
                    | DatastoreError::Key { error: KeyError::WrongKek { .. }, .. }
            ),
            "{what}: {error}"
        );
        let head = VolumeHead::open(&volume.path, &options(&new, 0));
        assert!(head.is_err(), "{what}");
    }
}

#[test]
fn every_edited_byte_between_two_keys_is_noticed_by_somebody() {
    let (old, new) = (kek(1), kek(2));
    let volume = Volume::between(&old, &new);
    let bytes = volume.bytes();
    for at in 0..bytes.len() {
        let mut edited = bytes.clone();
        edited[at] ^= 1;
        volume.put(&edited);
        let opens = |kek| VolumeHead::open(&volume.path, &options(kek, 0)).is_ok();
        // Each key verifies only its own tag.
        let expected = match bytes.len() - at {
            1..=32 => (true, false),
            33..=64 => (false, true),
            _ => (false, false),
        };
        assert_eq!((opens(&old), opens(&new)), expected, "byte {at} of {}", bytes.len());
    }
}

#[test]
fn an_envelope_that_holds_another_key_keeps_the_old_one() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::between(&old, &new);
    // A descriptor that a bug, or an attacker with both keys, could have written: the new envelope
    // of one layer is that of another volume.
    let stranger = Volume::between(&old, &new).descriptor();
    let mut damaged = volume.descriptor();
    damaged.layers[0].epochs[0].envelopes[1] = stranger.layers[0].epochs[0].envelopes[1].clone();
    volume.put(&forged(FORMAT_VERSION, &damaged, &[&old, &new]));
    let refused = rewrap(&volume.path, &from_to(&old, &new));
    assert!(matches!(refused, Err(DatastoreError::NotRewrapped { .. })), "{refused:?}");
    assert!(volume.open(&old, 3).is_ok());
    damaged.layers[0].epochs[0].envelopes.truncate(1);
    volume.put(&forged(FORMAT_VERSION, &damaged, &[&old, &new]));
    assert!(matches!(rewrap(&volume.path, &from_to(&old, &new)), Err(DatastoreError::NotRewrapped { .. })));
    assert!(volume.open(&old, 3).is_ok());
}

#[test]
fn a_volume_of_version_2_is_rewrapped_too() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::new(&old);
    let bytes = volume.bytes();
    let body = std::str::from_utf8(&bytes[16..bytes.len() - 32]).unwrap();
    assert!(body.contains(r#""next_kek":null,"#));
    let body = body.replace(r#""next_kek":null,"#, "");
    let length = (body.len() as u32).to_le_bytes();
    let signed = [b"STRGROOM".as_slice(), &2_u32.to_le_bytes(), &length, body.as_bytes()].concat();
    let tag = DescriptorKey::derive(&old, volume.descriptor().volume).unwrap().tag(&signed).unwrap();
    volume.put(&[signed.as_slice(), &tag].concat());
    let deks = volume.open(&old, 2).unwrap();
    rewrap(&volume.path, &from_to(&old, &new)).unwrap();
    assert_eq!(volume.open(&new, 4).unwrap(), deks);
}

#[test]
fn a_volume_in_use_and_a_clear_one_are_refused() {
    let (old, new) = (kek(1), provided(2));
    let volume = Volume::new(&old);
    let opened = open(&volume.path, &options(&old, 0)).unwrap();
    assert!(matches!(rewrap(&volume.path, &from_to(&old, &new)), Err(DatastoreError::InUse { .. })));
    drop(opened);
    let clear = volume.path.with_file_name("clear");
    let made = CreateOptions {
        size: VolumeSize::new(1 << 20).unwrap(),
        provisioning: Provisioning::Thin,
        protection: Protection::Unencrypted,
        log_bytes: None,
        integrity: None,
    };
    create(Path::new(&clear), &made).unwrap();
    assert!(matches!(rewrap(&clear, &from_to(&old, &new)), Err(DatastoreError::NotEncrypted { .. })));
}
