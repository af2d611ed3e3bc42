//! Deletes a volume: first the keys, then the name, then the rest.
//!
//! The descriptor is durably removed first: with its envelopes gone, any layers that a power cut
//! leaves are noise. Then the directory gets a hidden name, durably, before anything else is
//! removed: an empty directory under the volume's own name would look like one that never held a
//! volume. An interrupted deletion can be repeated.
//!
//! If the file system is so full that it cannot even rename, the layers are emptied first.
//!
//! A file that other volumes have too ([`super::shared`]) only loses its name here. It is neither
//! locked nor emptied: the others may be in use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_types::VolumeId;

use super::create::BUILDING_PREFIX;
use super::directory::{
    CONTROL_SOCKET, DESCRIPTOR, DESCRIPTOR_NEW, VolumeDirectory, layer_of_name, parent_of, sync_parent,
    system,
};
use super::error::DatastoreError;
use super::group::refuse_an_unread_record;
use super::lock::{self, Sharing};
use super::relocate::ARRIVING_PREFIX;
use super::reserve::{is_spare, spare_names};
use super::storage::{BY_PATH, Storage};

/// The prefix of the name of a volume that is being deleted.
pub(super) const DELETING_PREFIX: &str = ".strongroom-deleted-";

/// Deletes the volume at `path`, or the remains of an interrupted creation or deletion. Refuses if
/// the volume is still in use after `lock_wait`, or if the directory holds any other file.
pub fn delete(path: &Path, lock_wait: Duration) -> Result<(), DatastoreError> {
    delete_on(BY_PATH, path, lock_wait)
}

/// As [`delete`], on another file system.
pub fn delete_on(storage: &dyn Storage, path: &Path, lock_wait: Duration) -> Result<(), DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let names = directory.names()?;
    let ours = |name: &str| {
        [DESCRIPTOR, DESCRIPTOR_NEW, CONTROL_SOCKET].contains(&name)
            || is_spare(name)
            || layer_of_name(name).is_some()
    };
    if let Some(stranger) = names.iter().find(|name| !ours(name)) {
        return Err(DatastoreError::Stranger { path: path.to_owned(), stranger: stranger.clone() });
    }
    if names.is_empty() && !is_rest(path) {
        return Err(DatastoreError::NotAVolume { path: path.to_owned() });
    }
    if let Ok(encoded) = directory.read_descriptor()
        && let Some(mark) = &encoded.unverified().group
    {
        refuse_an_unread_record(storage, path, mark)?;
    }
    // Held until the end, so that no process opens a volume that is being deleted.
    lock::acquire(&*directory.handle, Sharing::Exclusive, lock_wait, path)?;
    delete_locked(storage, &directory, lock_wait)
}

/// Deletes a volume whose directory is locked exclusively, and holds nothing else.
pub(super) fn delete_locked(
    storage: &dyn Storage,
    directory: &VolumeDirectory,
    lock_wait: Duration,
) -> Result<(), DatastoreError> {
    let path = &directory.path;
    let names = directory.names()?;
    let mut locked = Vec::new();
    for name in names.iter().filter(|name| layer_of_name(name).is_some() && !directory.is_shared(name)) {
        let layer = directory.file(name, OFlags::RDONLY).map_err(system("open a layer of", path))?;
        lock::acquire(&*layer, Sharing::Exclusive, lock_wait, path)?;
        locked.push((name, layer));
    }
    let remove = |name: &str| match directory.handle.remove(name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(system("delete", path)(errno)),
    };
    remove(DESCRIPTOR)?;
    remove(DESCRIPTOR_NEW)?;
    directory.sync()?;
    let path = &match put_aside(storage, path) {
        Err(DatastoreError::Full { .. }) => {
            // Under their locks nobody gives them another name.
            let own = locked.iter().filter(|(_, layer)| layer.link_count().is_ok_and(|names| names == 1));
            empty_layers(directory, own.map(|(name, _)| name.as_str()))?;
            put_aside(storage, path)?
        }
        aside => aside?,
    };
    spare_names().try_for_each(|name| remove(&name))?;
    // No process listens on it any more: a listener would hold the lock.
    remove(CONTROL_SOCKET)?;
    for name in names.iter().filter(|name| layer_of_name(name).is_some()) {
        remove(name)?;
    }
    storage.remove_directory(path).map_err(system("delete", path))?;
    sync_parent(storage, path)
}

/// Frees the space of layers, but keeps their names: a directory without them would look like one
/// that never held a volume. The layers are noise, now that the descriptor is gone.
fn empty_layers<'name>(
    directory: &VolumeDirectory,
    names: impl Iterator<Item = &'name str>,
) -> Result<(), DatastoreError> {
    for name in names {
        let emptied = directory.file(name, OFlags::WRONLY).and_then(|layer| {
            layer.set_length(0)?;
            layer.sync()
        });
        emptied.map_err(system("empty a layer of", &directory.path))?;
    }
    Ok(())
}

/// Durably renames the volume's directory to a hidden name. Returns its new path.
fn put_aside(storage: &dyn Storage, path: &Path) -> Result<PathBuf, DatastoreError> {
    if is_rest(path) {
        return Ok(path.to_owned());
    }
    let aside = parent_of(path).join(format!("{DELETING_PREFIX}{}", VolumeId::random()));
    storage.rename(path, &aside).map_err(system("delete", path))?;
    sync_parent(storage, path)?;
    Ok(aside)
}

/// Whether a path's name is that of an interrupted creation, deletion or move.
pub(super) fn is_rest(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [BUILDING_PREFIX, DELETING_PREFIX, ARRIVING_PREFIX].iter().any(|prefix| name.starts_with(prefix))
}
