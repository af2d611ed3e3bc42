//! Reads datastores on clusters.

use std::sync::Arc;

use rustix::io::Errno;
use strongroom_datastore::file::storage::{mount, storage_of, unmount};
use strongroom_rbd::process::StorageProgram;
use strongroom_remote::RemoteStorage;
use strongroom_types::DatastoreId;

use super::Note;

/// A datastore that this process has mounted for a while. Its storage process ends with the mount.
pub struct Mounted(DatastoreId);

impl Mounted {
    /// Mounts the datastore of a note, if it is on a cluster and not mounted yet.
    pub fn of(note: &Note) -> Option<Self> {
        let wanted = note.ceph.clone().filter(|_| storage_of(&note.path).is_err())?;
        let id = note.datastore;
        let dial = move || {
            let started = StorageProgram::this()
                .map_err(|error| error.to_string())
                .and_then(|program| program.start(&wanted, None).map_err(|error| error.to_string()));
            // The process ends when nobody uses it.
            started.map(|(_process, socket)| socket).map_err(|reason| {
                tracing::warn!("datastore {id} cannot be reached: {reason}");
                Errno::NOTCONN
            })
        };
        mount(id, Arc::new(RemoteStorage::new(dial)));
        Some(Self(id))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.0);
    }
}
