//! Creates a volume: completely, or not at all.
//!
//! Everything is built in a hidden directory beside the volume's place, made durable, and then
//! renamed into place, which is atomic. A power cut leaves a complete volume, or a hidden directory
//! that `list` shows as a leftover.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use strongroom_keys::{Cipher, Envelope, EnvelopeContext, Kek, Purpose};
use strongroom_types::{KeyEpoch, LayerId, VolumeId, VolumeSize, unix_seconds_now};

use super::descriptor::{
    Descriptor, EncryptionRecord, EpochRecord, Integrity, KekRecord, LayerRecord, Provisioning,
};
use super::directory::{VolumeDirectory, parent_of, sync_parent, system};
use super::error::DatastoreError;
use super::filesystem::FileSystem;
use super::open::Protection;
use super::storage::{BY_PATH, Storage};
use super::{layer_files, log};

/// The prefix of the name of a volume under construction.
pub(super) const BUILDING_PREFIX: &str = ".strongroom-new-";

/// Options of [`create`].
#[derive(Debug)]
pub struct CreateOptions<'a> {
    /// The size that the guest sees.
    pub size: VolumeSize,
    /// How space is allocated.
    pub provisioning: Provisioning,
    /// The key that encrypts it, or none.
    pub protection: Protection<'a>,
    /// Bytes of the first-write log of a thin volume; `None` chooses them by the volume's size.
    pub log_bytes: Option<u64>,
    /// How its blocks are tagged, if they are. Only encrypted volumes can have tags.
    pub integrity: Option<Integrity>,
}

/// Creates a volume at `path`. Its parent is the datastore's directory, which is created if only it
/// is missing.
pub fn create(path: &Path, options: &CreateOptions<'_>) -> Result<Descriptor, DatastoreError> {
    create_on(BY_PATH, path, options)
}

/// As [`create`], on another file system.
pub fn create_on(
    storage: &dyn Storage,
    path: &Path,
    options: &CreateOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let file_system = check_place(storage, path)?;
    let descriptor = describe_new(path, &file_system, options)?;
    let building = Building::start(storage, path, descriptor.volume)?;
    let layer = &descriptor.layers[0];
    layer_files::make(
        &building.directory,
        &descriptor,
        layer,
        log::FileState::Closed,
        path,
        options.protection,
    )?;
    let encoded = descriptor.encode(path, &options.protection.keks())?;
    building.directory.write_descriptor(&encoded)?;
    building.finish(path)?;
    Ok(descriptor)
}

/// Refuses a path where no volume can be made. Makes the datastore's directory if it is missing.
/// Returns its file system.
pub(super) fn check_place(storage: &dyn Storage, path: &Path) -> Result<FileSystem, DatastoreError> {
    check_name(path)?;
    let parent = parent_of(path);
    make_datastore(storage, parent)?;
    let file_system = VolumeDirectory::open_datastore(storage, parent)?.file_system()?;
    match storage.exists(path) {
        true => Err(DatastoreError::Exists { path: path.to_owned() }),
        false => Ok(file_system),
    }
}

/// Durably gives a volume another name in its datastore. If the name is taken, it is an error and
/// nothing changes.
pub fn rename(from: &Path, to: &Path) -> Result<(), DatastoreError> {
    rename_on(BY_PATH, from, to)
}

/// As [`rename`], on another file system.
pub fn rename_on(storage: &dyn Storage, from: &Path, to: &Path) -> Result<(), DatastoreError> {
    check_name(to)?;
    put_in_place(storage, from, to)?;
    sync_parent(storage, to)
}

/// Moves a volume that is not in use into another directory of its datastore, durably, without
/// following links below the datastore and without replacing anything. May be repeated.
///
/// # Errors
/// If there is no volume, or something has its new name.
pub fn move_volume(from: &Path, to: &Path) -> Result<(), DatastoreError> {
    check_name(to)?;
    match BY_PATH.rename(from, to) {
        Ok(()) => {}
        // It was moved before, and that may not be durable yet.
        Err(Errno::NOENT) if BY_PATH.exists(to) => {}
        Err(Errno::EXIST) => return Err(DatastoreError::Exists { path: to.to_owned() }),
        Err(errno) => return Err(system("move", from)(errno)),
    }
    sync_parent(BY_PATH, to)?;
    sync_parent(BY_PATH, from)
}

/// Renames without replacing. The rename is durable only when the directory is synced.
fn put_in_place(storage: &dyn Storage, from: &Path, to: &Path) -> Result<(), DatastoreError> {
    storage.rename(from, to).map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => DatastoreError::Exists { path: to.to_owned() },
        errno => system("create", to)(errno),
    })
}

/// Refuses a path that cannot be a volume's name.
pub(super) fn check_name(path: &Path) -> Result<(), DatastoreError> {
    let bad = |reason| DatastoreError::BadName { path: path.to_owned(), reason };
    let name = path.file_name().ok_or_else(|| bad("it ends in '..' or in nothing"))?;
    let name = name.to_str().ok_or_else(|| bad("it is not UTF-8"))?;
    match name {
        _ if name.starts_with('.') => Err(bad("hidden names are the datastore's own")),
        _ if name.chars().any(char::is_control) => Err(bad("it holds a control character")),
        // ext4, XFS, btrfs and tmpfs have the same limit.
        _ if name.len() > 255 => Err(bad("it is longer than 255 bytes")),
        _ => Ok(()),
    }
}

pub(super) fn make_datastore(storage: &dyn Storage, parent: &Path) -> Result<(), DatastoreError> {
    match storage.make_directory(parent) {
        Ok(()) => sync_parent(storage, parent),
        Err(Errno::EXIST) => Ok(()),
        // Any other fault (read-only, not reachable) gives a better error when the directory is
        // opened.
        Err(_) if storage.is_directory(parent) => Ok(()),
        Err(errno) => Err(system("create the datastore", parent)(errno)),
    }
}

fn describe_new(
    path: &Path,
    file_system: &FileSystem,
    options: &CreateOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    if options.provisioning == Provisioning::Thick && !file_system.reserves_space {
        return Err(DatastoreError::ThinOnly { path: path.to_owned(), kind: file_system.kind });
    }
    let log = log::record_for(file_system, options.provisioning, options.log_bytes, options.size);
    let integrity = match (options.integrity, options.protection.kek()) {
        (Some(_), None) => return Err(DatastoreError::NothingToTagWith { path: path.to_owned() }),
        (wanted, _) => wanted.map(Integrity::renewed),
    };
    let (volume, layer) = (VolumeId::random(), LayerId::random());
    let mut descriptor = Descriptor {
        volume,
        generation: 1,
        size_bytes: options.size,
        provisioning: options.provisioning,
        created_unix_seconds: unix_seconds_now(),
        encryption: options.protection.kek().map(|kek| EncryptionRecord {
            kek: KekRecord { id: kek.id(), source: kek.source().clone() },
            next_kek: None,
            next_epoch: KeyEpoch::FIRST,
        }),
        top: layer,
        layers: Vec::new(),
        snapshots: Vec::new(),
        merging: None,
        reencrypting: None,
        group: None,
    };
    let epochs = new_epoch(path, &mut descriptor, layer, options.protection)?;
    descriptor.layers.push(LayerRecord {
        id: layer,
        parent: None,
        size_bytes: None,
        epochs: epochs.into_iter().collect(),
        log,
        integrity,
        closing: false,
        volume: None,
    });
    Ok(descriptor)
}

/// The next DEK of the volume, for a new layer; none in a clear volume.
pub(super) fn new_epoch(
    path: &Path,
    descriptor: &mut Descriptor,
    layer: LayerId,
    protection: Protection<'_>,
) -> Result<Option<EpochRecord>, DatastoreError> {
    let volume = descriptor.volume;
    let Some(encryption) = &mut descriptor.encryption else { return Ok(None) };
    let Some(kek) = protection.kek_for_new(encryption) else { return Ok(None) };
    let epoch = encryption.next_epoch;
    encryption.next_epoch = epoch.next().ok_or_else(|| DatastoreError::Damaged {
        path: path.to_owned(),
        reason: "it has no key epoch left".to_owned(),
    })?;
    new_dek(path, volume, layer, epoch, kek).map(Some)
}

/// Makes a DEK for a layer of the volume, and seals it.
pub(super) fn new_dek(
    path: &Path,
    volume: VolumeId,
    layer: LayerId,
    epoch: KeyEpoch,
    kek: &Kek,
) -> Result<EpochRecord, DatastoreError> {
    let cipher = Cipher::Aes256Xts4096;
    let context = EnvelopeContext { purpose: Purpose::LayerData, volume, layer, epoch, cipher };
    let (envelope, _dek) =
        Envelope::new(&context, kek).map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?;
    Ok(EpochRecord { epoch, cipher, envelopes: vec![envelope] })
}

/// A volume under construction. Unless it is finished, all of it is removed.
pub(super) struct Building<'a> {
    storage: &'a dyn Storage,
    pub(super) directory: VolumeDirectory,
    path: PathBuf,
    finished: bool,
}

impl<'a> Building<'a> {
    /// Begins the volume that will lie at `path`.
    pub(super) fn start(
        storage: &'a dyn Storage,
        path: &Path,
        volume: VolumeId,
    ) -> Result<Self, DatastoreError> {
        let path = parent_of(path).join(format!("{BUILDING_PREFIX}{volume}"));
        storage.make_directory(&path).map_err(system("create", &path))?;
        let directory = VolumeDirectory::open(storage, &path)?;
        Ok(Self { storage, directory, path, finished: false })
    }

    /// Renames it into place. The files and their names are durable before the directory gets its
    /// name.
    pub(super) fn finish(mut self, path: &Path) -> Result<(), DatastoreError> {
        self.directory.sync()?;
        put_in_place(self.storage, &self.path, path)?;
        self.finished = true;
        sync_parent(self.storage, path)
    }
}

impl Drop for Building<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for name in self.directory.names().unwrap_or_default() {
            let _ = self.directory.handle.remove(&name);
        }
        let _ = self.storage.remove_directory(&self.path);
    }
}
