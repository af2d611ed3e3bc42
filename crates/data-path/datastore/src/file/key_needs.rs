//! Which KEKs the volumes of a datastore need. A person must know this before destroying a KEK.
//!
//! It is stricter than [`list`](super::list): a key may be destroyed because it is *not* found
//! here. So a directory that looks like a volume and cannot be read is reported, never skipped. The
//! remains of an interrupted creation count if they have a descriptor. Descriptors are not
//! authenticated: an attacker who can edit one can make a key seem needed, or remove its envelopes,
//! which he can do in any case.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use strongroom_types::{KekId, VolumeId};

use super::descriptor::{Descriptor, KekRecord};
use super::directory::{DESCRIPTOR, VolumeDirectory, system};
use super::error::DatastoreError;
use super::places::places;
use super::storage::{BY_PATH, Storage};

/// The directory that a file system makes for its own checks, readable by root only. Strongroom
/// never puts a volume there.
const LOST_AND_FOUND: &str = "lost+found";

/// How often a datastore is scanned at most, so that a volume that is renamed meanwhile is seen
/// under one of its names.
const ATTEMPTS: usize = 8;

/// A volume, and the KEKs of its envelopes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeNeeds {
    /// Its path.
    pub path: PathBuf,
    /// Its id.
    pub volume: VolumeId,
    /// The KEKs that open it: none of a clear volume, two while a re-wrap is under way.
    pub keks: Vec<KekRecord>,
}

/// The KEKs that a datastore's volumes need.
#[derive(Debug, Default)]
pub struct KeyNeeds {
    /// Its volumes, by name.
    pub volumes: Vec<VolumeNeeds>,
    /// Directories that may be volumes, and why it is unknown which keys they need.
    pub unreadable: Vec<DatastoreError>,
}

/// Lists the KEKs that the volumes of the datastore at `path` need.
///
/// # Errors
/// If the datastore itself cannot be read. Unreadable entries are part of the result.
pub fn key_needs(path: &Path) -> Result<KeyNeeds, DatastoreError> {
    key_needs_on(BY_PATH, path)
}

/// As [`key_needs`], on another file system.
pub fn key_needs_on(storage: &dyn Storage, path: &Path) -> Result<KeyNeeds, DatastoreError> {
    let datastore = VolumeDirectory::open_datastore(storage, path)?;
    let mut found = places(storage, &datastore)?;
    for _ in 0..ATTEMPTS {
        let needs = needs_of_all(storage, path, &found);
        let found_then = std::mem::replace(&mut found, places(storage, &datastore)?);
        if found == found_then {
            return Ok(needs);
        }
    }
    Err(system("find the volumes of a datastore that keeps changing,", path)(Errno::AGAIN))
}

fn needs_of_all(storage: &dyn Storage, path: &Path, places: &[String]) -> KeyNeeds {
    let mut needs = KeyNeeds::default();
    for name in places {
        match needs_of(storage, &path.join(name)) {
            Ok(Some(volume)) => needs.volumes.push(volume),
            Ok(None) => {}
            Err(DatastoreError::System { errno: Errno::ACCESS, .. }) if name == LOST_AND_FOUND => {}
            Err(error) => needs.unreadable.push(error),
        }
    }
    needs
}

/// Returns `None` for a directory that is no volume: without a descriptor there is no envelope that
/// a key could open.
fn needs_of(storage: &dyn Storage, path: &Path) -> Result<Option<VolumeNeeds>, DatastoreError> {
    let handle = match storage.open_volume(path) {
        Ok(handle) => handle,
        // A file, or a directory that was deleted meanwhile.
        Err(Errno::NOTDIR | Errno::NOENT) => return Ok(None),
        // A link is not followed. One that leads to a volume may be all that names it here.
        Err(Errno::LOOP) if storage.exists(&path.join(DESCRIPTOR)) => {
            return Err(DatastoreError::Link { path: path.to_owned() });
        }
        Err(Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(system("open", path)(errno)),
    };
    let directory = VolumeDirectory { path: path.to_owned(), handle };
    let encoded = match directory.read_descriptor() {
        Ok(encoded) => encoded,
        Err(DatastoreError::NotAVolume { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let descriptor = encoded.unverified();
    let keks: Vec<KekRecord> =
        descriptor.encryption.iter().flat_map(|encryption| encryption.keks().cloned()).collect();
    let unnamed = envelope_keks(descriptor).find(|kek| keks.iter().all(|record| record.id != *kek));
    if let Some(kek) = unnamed {
        let reason = format!("it has an envelope under KEK {kek}, and does not say where that comes from");
        return Err(DatastoreError::Damaged { path: path.to_owned(), reason });
    }
    Ok(Some(VolumeNeeds { path: path.to_owned(), volume: descriptor.volume, keks }))
}

/// The KEK of each envelope of each layer, branches and snapshots included.
fn envelope_keks(descriptor: &Descriptor) -> impl Iterator<Item = KekId> {
    let epochs = descriptor.layers.iter().flat_map(|layer| &layer.epochs);
    epochs.flat_map(|record| record.envelopes.iter().map(|envelope| envelope.kek()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use strongroom_keys::{Kek, ProviderKey};
    use strongroom_memory::secret::SecretBytes;

    use super::*;
    use crate::file::create::BUILDING_PREFIX;
    use crate::file::{
        Access, AddLayerOptions, CreateOptions, OpenOptions, Protection, Provisioning, VolumeHead, add_layer,
        create, rename,
    };

    fn provided(number: u8) -> Kek {
        let key = number.to_string().parse().unwrap();
        let key = ProviderKey { provider: "corp".parse().unwrap(), key, wrapped: None };
        let secret = SecretBytes::from_slice_and_wipe(&mut [number; 32]).unwrap();
        Kek::from_provider(secret, key).unwrap()
    }

    fn make(path: &Path, protection: Protection<'_>) {
        let size = "1M".parse().unwrap();
        let (provisioning, log_bytes) = (Provisioning::Thin, None);
        let options = CreateOptions { size, provisioning, protection, log_bytes, integrity: None };
        create(path, &options).unwrap();
    }

    fn needed(path: &Path) -> Vec<(String, Vec<KekId>)> {
        let needs = key_needs(path).unwrap();
        assert!(needs.unreadable.is_empty(), "{:?}", needs.unreadable);
        let name = |volume: &VolumeNeeds| volume.path.file_name().unwrap().to_str().unwrap().to_owned();
        let keks = |volume: &VolumeNeeds| volume.keks.iter().map(|record| record.id).collect();
        needs.volumes.iter().map(|volume| (name(volume), keks(volume))).collect()
    }

    #[test]
    fn each_volume_is_told_with_its_keys_with_both_while_it_moves() {
        let scratch = tempfile::tempdir().unwrap();
        let (ds, old, new) = (scratch.path(), provided(1), provided(2));
        make(&ds.join("clear"), Protection::Unencrypted);
        make(&ds.join("vm1"), Protection::Encrypted(&old));
        fs::write(ds.join("note"), "no volume").unwrap();
        fs::create_dir(ds.join("no-volume")).unwrap();
        let one = vec![("clear".to_owned(), vec![]), ("vm1".to_owned(), vec![old.id()])];
        assert_eq!(needed(ds), one);

        let path = ds.join("vm1");
        let protection = Protection::Encrypted(&old);
        let lock_wait = Duration::ZERO;
        let layered = AddLayerOptions { protection, log_bytes: None, lock_wait, least_generation: 0 };
        add_layer(&path, &layered).unwrap();
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        let mut head = VolumeHead::open(&path, &options).unwrap();
        head.begin_rewrap(&old, &new).unwrap();
        assert_eq!(needed(ds)[1].1, [old.id(), new.id()]);
        head.finish_rewrap(&new).unwrap();
        assert_eq!(needed(ds)[1].1, [new.id()]);
    }

    #[test]
    fn volumes_of_vms_count_whole_or_half_made() {
        let scratch = tempfile::tempdir().unwrap();
        let (ds, kek) = (scratch.path(), provided(1));
        for vm in ["web1", ".strongroom-new-vm"] {
            fs::create_dir(ds.join(vm)).unwrap();
            make(&ds.join(vm).join("disk0"), Protection::Encrypted(&kek));
        }
        fs::write(ds.join("web1/vm.json"), "{}").unwrap();
        std::os::unix::fs::symlink(".", ds.join("web1/again")).unwrap();
        let disk0 = || ("disk0".to_owned(), vec![kek.id()]);
        assert_eq!(needed(ds), [disk0(), disk0()]);
        let listed = crate::file::list(ds).unwrap();
        let paths: Vec<_> = listed.iter().map(|volume| volume.path().to_owned()).collect();
        let paths_are = [".strongroom-new-vm", "web1/again", "web1/disk0"].map(|place| ds.join(place));
        assert_eq!(paths, paths_are);
        fs::write(ds.join("web1/disk0/descriptor"), "damaged").unwrap();
        assert_eq!(key_needs(ds).unwrap().unreadable.len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_told_and_what_was_left_half_made_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let (ds, kek) = (scratch.path(), provided(1));
        make(&ds.join("vm1"), Protection::Encrypted(&kek));
        make(&ds.join("vm2"), Protection::Encrypted(&kek));
        let rest = format!("{BUILDING_PREFIX}1");
        fs::rename(ds.join("vm2"), ds.join(&rest)).unwrap();
        assert_eq!(needed(ds), [(rest, vec![kek.id()]), ("vm1".to_owned(), vec![kek.id()])]);

        let descriptor = ds.join("vm1/descriptor");
        let mut bytes = fs::read(&descriptor).unwrap();
        bytes.truncate(bytes.len() / 2);
        fs::write(&descriptor, bytes).unwrap();
        let needs = key_needs(ds).unwrap();
        let [error] = needs.unreadable.as_slice() else { panic!("{needs:?}") };
        assert_eq!((error.code(), needs.volumes.len()), ("damaged", 1));
        assert!(key_needs(&ds.join("none")).is_err());
        rename(&ds.join("vm1"), &ds.join("vm3")).unwrap();
        assert_eq!(key_needs(ds).unwrap().unreadable.len(), 1);
    }

    #[test]
    fn an_envelope_under_a_key_that_is_not_named_leaves_it_unknown() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, kek) = (scratch.path().join("vm1"), provided(1));
        make(&path, Protection::Encrypted(&kek));
        let directory = VolumeDirectory::open(BY_PATH, &path).unwrap();
        let mut descriptor = directory.read_descriptor().unwrap().unverified().clone();
        let other = provided(2);
        let encryption = descriptor.encryption.as_mut().unwrap();
        encryption.kek = KekRecord { id: other.id(), source: other.source().clone() };
        directory.write_descriptor(&descriptor.encode(&path, &[&other]).unwrap()).unwrap();
        let needs = key_needs(scratch.path()).unwrap();
        assert!(needs.unreadable[0].to_string().contains("does not say where"), "{needs:?}");
    }
}
