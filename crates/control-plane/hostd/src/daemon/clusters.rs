//! The datastores on clusters that this host uses.
//!
//! Each has a storage process ([`strongroom_rbd`]), and a thread here that asks for its state
//! again and again: a cluster that does not answer must not keep hostd from reporting the rest of
//! the host. What hostd reports of such a datastore is what that thread has read last.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use strongroom_datastore::file::storage::mount;
use strongroom_datastore::file::{DatastoreError, identify_on, identity_on};
use strongroom_host::protocol::{Datastore, DatastoreState, Fencing, Problem};
use strongroom_rbd::process::{HostOrder, Refusal, StorageProgram, StorageStarter};
use strongroom_remote::RemoteStorage;
use strongroom_types::{CephMount, CephUser, DatastoreId};

use super::capacity;
use super::config::DatastoreConfig;

/// The pause between two readings of a datastore's state that nobody asked for.
const READ_EVERY: Duration = Duration::from_secs(5);
/// How long a request for a reading waits for it: less than a control plane waits for hostd.
const LOOKS_WITHIN: Duration = Duration::from_secs(6);
/// A reading that is older than this is reported as no answer.
const STALE_AFTER: Duration = Duration::from_secs(20);
/// The stack of a reading thread, in bytes.
const STACK_BYTES: usize = 512 << 10;

/// Who follows the state of a datastore.
pub struct Follower {
    /// Called when it can be read and could not, before that is reported.
    pub on_ready: Box<dyn Fn(&DatastoreConfig) + Send + Sync>,
    /// Called when another state is reported than before.
    pub on_change: Box<dyn Fn() + Send + Sync>,
}

/// The mounted datastores.
#[derive(Debug)]
pub struct Clusters {
    program: StorageProgram,
    /// The name of this host.
    host: String,
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

struct Mounted {
    config: DatastoreConfig,
    host: String,
    starter: Arc<StorageStarter>,
    storage: RemoteStorage,
    /// Whether it was logged that this host was declared lost.
    is_fenced: AtomicBool,
    /// The last reading, and when it was made.
    last: Mutex<(Datastore, Instant)>,
    turns: Arc<Turns>,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Which readings of a datastore were asked for, and which were made. They are numbered.
#[derive(Debug, Default)]
struct Turns {
    numbers: Mutex<Numbers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The last reading that was asked for.
    asked: u64,
    /// The last one that has begun.
    begun: u64,
    /// The last one that has ended.
    ended: u64,
}

impl Turns {
    /// Asks for a reading that begins from now on, and waits for its end. Returns whether it has
    /// ended in time.
    fn ask(&self, within: Duration) -> bool {
        let mut numbers = self.numbers.lock();
        let awaited = numbers.begun + 1;
        numbers.asked = awaited;
        self.changed.notify_all();
        let is_under_way = |numbers: &mut Numbers| numbers.ended < awaited;
        !self.changed.wait_while_for(&mut numbers, is_under_way, within).timed_out()
    }

    /// Waits until a reading is asked for, or for `pause`, and begins one.
    fn begin(&self, pause: Duration) {
        let mut numbers = self.numbers.lock();
        let is_idle = |numbers: &mut Numbers| numbers.asked <= numbers.begun;
        self.changed.wait_while_for(&mut numbers, is_idle, pause);
        numbers.begun += 1;
    }

    /// Ends the reading that has begun last.
    fn end(&self) {
        let mut numbers = self.numbers.lock();
        numbers.ended = numbers.begun;
        self.changed.notify_all();
    }
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
        let mut found = capacity::try_datastore(&self.config);
        if matches!(found, Err(DatastoreError::System { errno: Errno::SHUTDOWN, .. })) {
            // The cluster refuses this storage process for good. Another one is let in, or told why
            // it is not.
            self.storage.hang_up();
            found = capacity::try_datastore(&self.config);
        }
        let found = found.unwrap_or_else(|error| capacity::missing(&self.config, error.to_string()));
        let refusal = self.starter.refusal().filter(|_| found.state == DatastoreState::Missing);
        self.note_fencing(refusal.as_ref().is_some_and(|refusal| refusal.is_fenced));
        match refusal {
            Some(Refusal { is_fenced: true, .. }) => capacity::missing(&self.config, fenced(&self.host)),
            Some(Refusal { reason, .. }) => capacity::missing(&self.config, reason),
            None => found,
        }
    }

    /// Logs once that this host was declared lost, and once that it is let in again.
    fn note_fencing(&self, is_fenced: bool) {
        let (host, datastore) = (&self.host, self.config.id);
        match (self.is_fenced.swap(is_fenced, Ordering::Relaxed), is_fenced) {
            (false, true) => tracing::error!(%host, %datastore, "{}", fenced(host)),
            (true, false) => tracing::info!(%host, %datastore, "the cluster takes this host again"),
            _ => {}
        }
    }

    /// Reads the state, and keeps it.
    fn look(&self, follower: &Follower) {
        let now = self.read();
        let former = self.last.lock().0.clone();
        let is_missing = |state: &Datastore| state.state == DatastoreState::Missing;
        if is_missing(&former) && !is_missing(&now) {
            (follower.on_ready)(&self.config);
        }
        let is_another = (former.state, &former.reason) != (now.state, &now.reason);
        *self.last.lock() = (now, Instant::now());
        if is_another {
            (follower.on_change)();
        }
    }
}

/// Why a host that was declared lost has no clusters, and what to do.
fn fenced(host: &str) -> String {
    format!(
        "host {host} was declared lost, and the cluster refuses it: what still runs there has lost its disks; \
         restart its machine, then let it in again: `strongroom host admit {host}`"
    )
}

impl Clusters {
    /// Storage processes are of this program. `host` is the name of this host.
    pub fn new(program: StorageProgram, host: String) -> Self {
        Self { program, host, mounted: Mutex::default() }
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
            let refusal = connection.starter.refusal();
            let reason = refusal.map_or_else(|| error.to_string(), |refusal| refusal.reason);
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
    /// not connected yet is connected by that.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn mount(
        &self,
        config: &DatastoreConfig,
        connection: Option<Connection>,
        follower: Follower,
    ) -> io::Result<()> {
        let Some(wanted) = &config.ceph else { return Ok(()) };
        let is_connected = connection.is_some();
        let Connection { starter, storage } =
            connection.unwrap_or_else(|| Connection::new(&self.program, wanted));
        mount(config.id, Arc::new(storage.clone()));
        let state = match is_connected {
            true => capacity::datastore(config),
            false => capacity::missing(config, "the host connects to its cluster".to_owned()),
        };
        let last = Mutex::new((state, Instant::now()));
        let turns = Arc::new(Turns::default());
        let mounted = Arc::new(Mounted {
            config: config.clone(),
            host: self.host.clone(),
            starter,
            storage,
            is_fenced: AtomicBool::new(false),
            last,
            turns: Arc::clone(&turns),
        });
        let reader = Arc::downgrade(&mounted);
        self.mounted.lock().insert(config.id, mounted);
        let read = move || {
            let mut pause = Duration::ZERO;
            loop {
                turns.begin(pause);
                // It ends when another mount has taken the place of this one.
                let Some(mounted) = reader.upgrade() else { return };
                mounted.look(&follower);
                turns.end();
                pause = READ_EVERY;
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

    /// Reads the state of a datastore now, if it is on a cluster. One whose cluster does not answer
    /// is missing.
    pub fn look(&self, datastore: &DatastoreConfig) -> Option<Datastore> {
        let mounted = self.mounted.lock().get(&datastore.id).cloned()?;
        match mounted.turns.ask(LOOKS_WITHIN) {
            true => Some(mounted.now()),
            false => {
                let reason = format!("the cluster does not answer within {} s", LOOKS_WITHIN.as_secs());
                Some(capacity::missing(datastore, reason))
            }
        }
    }

    /// The last known state of a datastore, if it is on a cluster.
    pub fn state(&self, datastore: &DatastoreConfig) -> Option<Datastore> {
        self.mounted.lock().get(&datastore.id).map(|mounted| mounted.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_reading_that_begins_after_it() {
        const LONG: Duration = Duration::from_secs(60);
        let (turns, is_over) = (Turns::default(), AtomicBool::new(false));
        assert!(!turns.ask(Duration::ZERO), "nobody reads");
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    turns.begin(LONG);
                    turns.end();
                }
            });
            for _ in 0..100 {
                let begun = turns.numbers.lock().begun;
                assert!(turns.ask(LONG));
                assert!(turns.numbers.lock().ended > begun);
            }
            is_over.store(true, Ordering::Relaxed);
            // The reader may wait for somebody who asks.
            turns.ask(Duration::ZERO);
        });
    }
}
