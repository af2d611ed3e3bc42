//! Reads datastores on clusters.

use std::sync::Arc;

use strongroom_datastore::file::storage::{mount, storage_of, unmount};
use strongroom_rbd::process::{StorageProgram, StorageStarter};
use strongroom_types::DatastoreId;

use super::Note;

/// A datastore that this process has mounted for a while. Its storage process ends with the mount.
pub struct Mounted(DatastoreId);

impl Mounted {
    /// Mounts the datastore of a note, if it is on a cluster and not mounted yet.
    pub fn of(note: &Note) -> Option<Self> {
        let wanted = note.ceph.clone().filter(|_| storage_of(&note.path).is_err())?;
        let program = StorageProgram::this()
            .inspect_err(|error| tracing::warn!("no datastore on a cluster can be mounted: {error}"))
            .ok()?;
        mount(note.datastore, Arc::new(StorageStarter::new(program, wanted).storage()));
        Some(Self(note.datastore))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.0);
    }
}
