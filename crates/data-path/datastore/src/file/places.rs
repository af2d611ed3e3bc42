//! Where volumes are in a datastore: in it, or in the directory of a VM that is in it.
//!
//! ```text
//! ds/vm1/descriptor           a volume by itself
//! ds/web1/vm.json             a VM: its configuration, which is hostd's
//! ds/web1/disk0/descriptor    a volume of that VM
//! ds/web1/vtpm.state/         what swtpm keeps of its TPM, sealed with a key that is in a volume; no volume itself
//! ```

use std::path::Path;

use super::directory::{DESCRIPTOR, VolumeDirectory};
use super::error::DatastoreError;
use super::storage::Storage;
use rustix::fs::OFlags;

/// The file that makes a directory a VM's.
pub const VM_FILE: &str = "vm.json";
/// The directory of a VM's that is no volume: swtpm's.
pub const TPM_STATE: &str = "vtpm.state";

/// The names, below the datastore, of whatever can be a volume, sorted: its entries, and `vm/entry`
/// for the entries of each directory that is no volume itself. Most of them are none.
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

/// Nothing for what is no directory, has a descriptor, or cannot be read: whoever looks at the
/// place itself says so.
fn entries_of_vm(storage: &dyn Storage, path: &Path) -> Vec<String> {
    match VolumeDirectory::open(storage, path) {
        Ok(directory) if directory.file(DESCRIPTOR, OFlags::RDONLY).is_err() => {
            directory.names().unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Whether the directory is a VM's.
pub(super) fn is_vm(directory: &VolumeDirectory) -> bool {
    directory.file(VM_FILE, OFlags::RDONLY).is_ok()
}
