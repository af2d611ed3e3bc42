//! Deleting a volume: first the keys, then the rest.
//!
//! The descriptor goes first, and durably: with its envelopes gone, what a power cut leaves of the layers is noise. What
//! is left of an interrupted deletion can be deleted again.

use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::directory::{
    CONTROL_SOCKET, DESCRIPTOR, DESCRIPTOR_NEW, VolumeDirectory, layer_of_name, sync_parent, system,
};
use super::error::DatastoreError;
use super::lock::{self, Sharing};
use super::storage::{HOST, Storage};

/// Deletes the volume at `path`, or what an interrupted creation or deletion left of one. Refuses while it is in use, once
/// `lock_wait` has passed, and where the directory holds anything else.
pub fn delete(path: &Path, lock_wait: Duration) -> Result<(), DatastoreError> {
    delete_on(HOST, path, lock_wait)
}

/// As [`delete`], on another file system.
pub fn delete_on(storage: &dyn Storage, path: &Path, lock_wait: Duration) -> Result<(), DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    let names = directory.names()?;
    let ours = |name: &str| {
        [DESCRIPTOR, DESCRIPTOR_NEW, CONTROL_SOCKET].contains(&name) || layer_of_name(name).is_some()
    };
    if let Some(stranger) = names.iter().find(|name| !ours(name)) {
        return Err(DatastoreError::Stranger { path: path.to_owned(), stranger: stranger.clone() });
    }
    if names.is_empty() && !is_building(path) {
        return Err(DatastoreError::NotAVolume { path: path.to_owned() });
    }
    // Held until the end, so that nobody opens what is going away.
    lock::acquire(&*directory.handle, Sharing::Exclusive, lock_wait, path)?;
    let mut locked = Vec::new();
    for name in names.iter().filter(|name| layer_of_name(name).is_some()) {
        let layer = directory.file(name, OFlags::RDONLY).map_err(system("open a layer of", path))?;
        lock::acquire(&*layer, Sharing::Exclusive, lock_wait, path)?;
        locked.push(layer);
    }
    let remove = |name: &str| match directory.handle.remove(name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(system("delete", path)(errno)),
    };
    remove(DESCRIPTOR)?;
    remove(DESCRIPTOR_NEW)?;
    directory.sync()?;
    // Nobody listens on it any more: who did held the lock.
    remove(CONTROL_SOCKET)?;
    for name in names.iter().filter(|name| layer_of_name(name).is_some()) {
        remove(name)?;
    }
    storage.remove_directory(path).map_err(system("delete", path))?;
    sync_parent(storage, path)
}

fn is_building(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(super::create::BUILDING_PREFIX)
}
