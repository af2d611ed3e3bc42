//! Mounts the datastores on clusters that a task needs.
//!
//! The files of such a datastore belong to a storage process, which has the cluster's key and no
//! key of a volume. A process that is about to have a volume's key can start no other one once it
//! is confined: a supervisor that runs a VM has its starter do so, and is replaced with the storage
//! process; a job has one from the beginning, and fails if that ends.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{fmt, io, thread};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use strongroom_datastore::file::storage::mount;
use strongroom_host::protocol::Problem;
use strongroom_rbd::process::{StorageProcess, StorageStarter};
use strongroom_remote::RemoteStorage;
use strongroom_types::{CephMount, DatastoreId};

use crate::Programs;
use crate::starter::Starter;

/// The datastores that a task needs.
pub type Clusters = BTreeMap<DatastoreId, CephMount>;

/// Mounts them for a supervisor: its starter starts each storage process.
pub fn mount_by_starter<'a>(datastores: impl Iterator<Item = &'a DatastoreId>, starter: &Starter) {
    for id in datastores.copied() {
        let starter = starter.clone();
        let dial = move || {
            let failed = |reason: &dyn fmt::Display| {
                tracing::error!("datastore {id} cannot be reached: {reason}");
                Errno::NOTCONN
            };
            let [socket, pidfd] = starter.storage(id).map_err(|problem| failed(&problem))?;
            end_with(pidfd).map_err(|error| failed(&error))?;
            Ok(socket)
        };
        mount(id, Arc::new(RemoteStorage::new(dial)));
    }
}

/// Ends this process when the storage process has ended: what it has open there, such as the
/// record of the console, is gone. hostd starts another supervisor, which opens everything again.
fn end_with(storage: OwnedFd) -> io::Result<()> {
    let watch = move || {
        while poll(&mut [PollFd::new(&storage, PollFlags::IN)], None).is_err() {}
        tracing::error!("a storage process is gone, and so is its VM's supervisor");
        std::process::exit(1);
    };
    thread::Builder::new().name("storage".to_owned()).spawn(watch).map(drop)
}

/// Mounts them for a process without keys, which starts a storage process when it needs one.
pub fn mount_on_demand(clusters: &Clusters, programs: &Programs) {
    for (id, wanted) in clusters {
        mount(*id, Arc::new(StorageStarter::new(programs.storage(), wanted.clone()).storage()));
    }
}

/// Mounts them for a job that is about to be confined, with a storage process each.
///
/// # Errors
/// If a cluster cannot be reached.
pub fn mount_once(clusters: &Clusters, programs: &Programs) -> Result<Vec<StorageProcess>, Problem> {
    let connect = |(id, wanted): (&DatastoreId, &CephMount)| {
        let (process, socket) = programs.storage().start(wanted, None).map_err(|error| {
            Problem::new("cluster", format!("datastore {id} cannot be reached: {error}"))
                .with_next_step("`strongroom datastore show` has the state that each host sees")
        })?;
        let socket: Mutex<Option<OwnedFd>> = Mutex::new(Some(socket));
        mount(*id, Arc::new(RemoteStorage::new(move || socket.lock().take().ok_or(Errno::CONNRESET))));
        Ok(process)
    };
    clusters.iter().map(connect).collect()
}
