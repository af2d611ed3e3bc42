//! Lists the volumes of a datastore.

use std::path::{Path, PathBuf};

use super::delete::is_rest;
use super::directory::{DescribedVolume, VolumeDirectory, describe_on};
use super::error::DatastoreError;
use super::places::{TPM_STATE, has_disks_of_a_vm, is_vm};
use super::storage::{BY_PATH, Storage};

/// One entry of a datastore.
#[derive(Debug)]
pub enum ListedVolume {
    /// A volume, as [`describe`] returns it.
    Volume(Box<DescribedVolume>),
    /// A directory that looks like a volume and cannot be read, or the remains of an interrupted
    /// creation.
    Broken {
        /// Where it is.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl ListedVolume {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::Volume(volume) => &volume.path,
            Self::Broken { path, .. } => path,
        }
    }
}

/// Lists the volumes of the datastore at `path`, including those of VMs, by name. A volume that
/// cannot be read does not hide the others.
pub fn list(path: &Path) -> Result<Vec<ListedVolume>, DatastoreError> {
    list_on(BY_PATH, path)
}

/// As [`list`], on another file system.
pub fn list_on(storage: &dyn Storage, path: &Path) -> Result<Vec<ListedVolume>, DatastoreError> {
    let datastore = VolumeDirectory::open_datastore(storage, path)?;
    datastore.file_system()?;
    let mut listed = Vec::new();
    list_in(storage, &datastore, Whose::Datastore, &mut listed)?;
    Ok(listed)
}

/// The kind of directory that is being listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Datastore,
    /// It holds volumes, and no VMs.
    Vm,
}

fn list_in(
    storage: &dyn Storage,
    directory: &VolumeDirectory,
    whose: Whose,
    listed: &mut Vec<ListedVolume>,
) -> Result<(), DatastoreError> {
    for name in directory.names()? {
        if whose == Whose::Vm && name == TPM_STATE {
            continue;
        }
        let path = directory.path.join(&name);
        if is_rest(&path) {
            let reason = "a creation, deletion or move that was interrupted; it can be deleted".to_owned();
            listed.push(ListedVolume::Broken { path, reason });
        } else if whose == Whose::Datastore && has_disks_of_a_vm(&name) {
            let broken = match VolumeDirectory::open(storage, &path) {
                Ok(disks) => list_in(storage, &disks, Whose::Vm, listed).err(),
                Err(error) => Some(error),
            };
            listed.extend(broken.map(|error| ListedVolume::Broken { path, reason: error.to_string() }));
        } else if !name.starts_with('.') && storage.is_directory(&path) {
            let broken = match describe_on(storage, &path) {
                Ok(volume) => {
                    listed.push(ListedVolume::Volume(Box::new(volume)));
                    continue;
                }
                // A volume without a descriptor, or a VM's directory.
                Err(error) => match VolumeDirectory::open(storage, &path) {
                    Ok(vm) if whose == Whose::Datastore && is_vm(&vm) => {
                        list_in(storage, &vm, Whose::Vm, listed).err()
                    }
                    _ => Some(error),
                },
            };
            listed.extend(broken.map(|error| ListedVolume::Broken { path, reason: error.to_string() }));
        }
    }
    Ok(())
}
