//! Where volumes are in a datastore: directly in it, or in a directory of a VM in it.
//!
//! ```text
//! ds/vm1/descriptor           a volume by itself
//! ds/web1/vm.json             a VM: its configuration, which is hostd's
//! ds/web1/disk0/descriptor    a volume of that VM
//! ds/web1/vtpm.state/         what swtpm keeps of its TPM, sealed with a key that is in a volume; no volume itself
//! ds/.strongroom-disks-ID/disk1/descriptor   a volume of the VM with this id, whose directory is elsewhere
//! ```

use std::path::Path;

use super::directory::{DESCRIPTOR, VolumeDirectory};
use super::error::DatastoreError;
use super::storage::Storage;
use rustix::fs::OFlags;

/// The file that makes a directory a VM's.
pub const VM_FILE: &str = "vm.json";
/// swtpm's directory in a VM's directory, which is no volume.
pub const TPM_STATE: &str = "vtpm.state";

/// The prefix of the name of a directory with disks of a VM of another datastore; the VM's id
/// follows.
pub const DISKS_PREFIX: &str = ".strongroom-disks-";

/// The sorted names, below the datastore, of all entries that could be volumes: its own, and
/// `vm/entry` for those of each directory that is no volume itself. Most of them are no volumes.
pub(super) fn places(
    storage: &dyn Storage,
    datastore: &VolumeDirectory,
) -> Result<Vec<String>, DatastoreError> {
    let mut places = Vec::new();
    for name in datastore.names()? {
        let inner = entries_of_vm(storage, &datastore.path.join(&name));
        places.extend(inner.iter().map(|inner| format!("{name}/{inner}")));
        places.push(name);
    }
    places.sort_unstable();
    Ok(places)
}

/// The entries of a directory that may be a VM's. Empty if it is no directory, has a descriptor, or
/// cannot be read: the caller reports that when it examines the place itself.
fn entries_of_vm(storage: &dyn Storage, path: &Path) -> Vec<String> {
    match VolumeDirectory::open(storage, path) {
        Ok(directory) if directory.file(DESCRIPTOR, OFlags::RDONLY).is_err() => {
            directory.names().unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Whether the directory with this name has disks of a VM of another datastore.
pub(super) fn has_disks_of_a_vm(name: &str) -> bool {
    name.starts_with(DISKS_PREFIX)
}

/// Whether the directory is a VM's.
pub(super) fn is_vm(directory: &VolumeDirectory) -> bool {
    directory.file(VM_FILE, OFlags::RDONLY).is_ok()
}
