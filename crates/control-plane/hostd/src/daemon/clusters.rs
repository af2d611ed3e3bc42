//! The datastores on clusters that this host uses.
//!
//! Each has a storage process ([`strongroom_rbd`]), and a thread here that asks for its state
//! again and again: a cluster that does not answer must not keep hostd from reporting the rest of
//! the host. What hostd reports of such a datastore is what that thread has read last.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_datastore::file::storage::mount;
use strongroom_datastore::file::{identify_on, identity_on};
use strongroom_host::protocol::{Datastore, DatastoreState, Fencing, Problem};
use strongroom_rbd::process::{HostOrder, StorageProgram, StorageStarter};
use strongroom_remote::RemoteStorage;
use strongroom_types::{CephMount, CephUser, DatastoreId};

use super::capacity;
use super::config::DatastoreConfig;

/// The pause between two readings of a datastore's state.
const READ_EVERY: Duration = Duration::from_secs(5);
/// A reading that is older than this is reported as no answer.
const STALE_AFTER: Duration = Duration::from_secs(20);
/// The stack of a reading thread, in bytes.
const STACK_BYTES: usize = 512 << 10;

/// Called with each datastore that can be read now and could not before.
pub type OnReady = Arc<dyn Fn(&DatastoreConfig) + Send + Sync>;

/// The mounted datastores.
#[derive(Debug)]
pub struct Clusters {
    program: StorageProgram,
    mounted: Mutex<BTreeMap<DatastoreId, Arc<Mounted>>>,
}

/// A datastore that is connected.
pub struct Connection {
    starter: Arc<StorageStarter>,
    storage: RemoteStorage,
}

impl Connection {
    fn new(program: &StorageProgram, mount: &CephMount) -> Self {
        let starter = StorageStarter::new(program.clone(), mount.clone());
        Self { storage: starter.storage(), starter }
    }
}

#[derive(Debug)]
struct Mounted {
    config: DatastoreConfig,
    starter: Arc<StorageStarter>,
    /// The last reading, and when it was made.
    last: Mutex<(Datastore, Instant)>,
}

impl Mounted {
    fn now(&self) -> Datastore {
        let (state, read) = self.last.lock().clone();
        let is_stale = read.elapsed() > STALE_AFTER && state.state != DatastoreState::Missing;
        match is_stale {
            true => capacity::missing(
                &self.config,
                format!("the cluster has not answered for {} s", read.elapsed().as_secs()),
            ),
            false => state,
        }
    }

    fn read(&self) -> Datastore {
        let state = capacity::datastore(&self.config);
        match self.starter.refusal().filter(|_| state.state == DatastoreState::Missing) {
            Some(reason) => capacity::missing(&self.config, reason),
            None => state,
        }
    }
}

impl Clusters {
    /// Storage processes are of this program.
    pub fn new(program: StorageProgram) -> Self {
        Self { program, mounted: Mutex::default() }
    }

    /// Connects to a datastore, and returns its id. Without an `expected` one, it is made if it
    /// does not exist.
    ///
    /// # Errors
    /// `cluster` if it cannot be reached or used; `other_datastore` if it is not the expected one.
    pub fn connect(
        &self,
        wanted: &CephMount,
        expected: Option<DatastoreId>,
    ) -> Result<(DatastoreId, Connection), Problem> {
        let connection = Connection::new(&self.program, wanted);
        let pools = &wanted.pools;
        let place = format!("pool {}, namespace {}", pools.pool, pools.namespace);
        let found = match expected {
            None => identify_on(&connection.storage, Path::new("")).map(Some),
            Some(_) => identity_on(&connection.storage, Path::new("")),
        };
        let found = found.map_err(|error| {
            let reason = connection.starter.refusal().unwrap_or_else(|| error.to_string());
            Problem::new("cluster", format!("{place}: {reason}")).with_next_step(
                "see to it that the host's Ceph user may use the pools (docs/CEPH.md), and repeat it",
            )
        })?;
        match (found, expected) {
            (Some(id), None) => Ok((id, connection)),
            (Some(id), Some(expected)) if id == expected => Ok((id, connection)),
            (found, _) => {
                let found = found.map_or("no datastore".to_owned(), |id| format!("datastore {id}"));
                let message = format!("{place} holds {found}, which is another one");
                Err(Problem::new("other_datastore", message)
                    .with_next_step("name the datastore's own pool and namespace, on its own cluster"))
            }
        }
    }

    /// Mounts a datastore, in place of a former mount, and reads its state from now on. One that is
    /// not connected yet is connected by that. `on_ready` is called whenever it becomes readable
    /// that was not.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn mount(
        &self,
        config: &DatastoreConfig,
        connection: Option<Connection>,
        on_ready: OnReady,
    ) -> io::Result<()> {
        let Some(wanted) = &config.ceph else { return Ok(()) };
        let is_connected = connection.is_some();
        let Connection { starter, storage } =
            connection.unwrap_or_else(|| Connection::new(&self.program, wanted));
        mount(config.id, Arc::new(storage));
        let state = match is_connected {
            true => capacity::datastore(config),
            false => capacity::missing(config, "the host connects to its cluster".to_owned()),
        };
        let last = Mutex::new((state, Instant::now()));
        let mounted = Arc::new(Mounted { config: config.clone(), starter, last });
        let reader = Arc::downgrade(&mounted);
        self.mounted.lock().insert(config.id, mounted);
        let read = move || {
            // It ends when another mount has taken the place of this one.
            while let Some(mounted) = reader.upgrade() {
                let state = mounted.read();
                let was_missing = mounted.last.lock().0.state == DatastoreState::Missing;
                if was_missing && state.state != DatastoreState::Missing {
                    on_ready(&mounted.config);
                }
                *mounted.last.lock() = (state, Instant::now());
                drop(mounted);
                thread::sleep(READ_EVERY);
            }
        };
        thread::Builder::new().name("cluster".to_owned()).stack_size(STACK_BYTES).spawn(read).map(drop)
    }

    /// Fences, or admits, another host of a datastore.
    ///
    /// # Errors
    /// `cluster` if that was not done, or not completely.
    pub fn fence(&self, mount: &CephMount, user: CephUser, fencing: Fencing) -> Result<(), Problem> {
        let order = match fencing {
            Fencing::Fence => HostOrder::Fence(user),
            Fencing::Admit => HostOrder::Admit(user),
        };
        self.program.carry_out(mount, order).map_err(|error| {
            let next = "see whether the cluster answers (`ceph health detail`), and repeat it";
            Problem::new("cluster", error.to_string()).with_next_step(next)
        })
    }

    /// The state of a datastore, if it is on a cluster.
    pub fn state(&self, datastore: &DatastoreConfig) -> Option<Datastore> {
        self.mounted.lock().get(&datastore.id).map(|mounted| mounted.now())
    }
}
