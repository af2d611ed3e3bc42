//! The cluster that the tests share, and their datastores in it.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_io::conformance::EventLoop;
use strongroom_io::{IdleReactor, IoError, Reactor};
use strongroom_rbd::{ClusterOptions, RbdOptions, RbdReactor, RbdStorage};
use strongroom_test_peers::CephCluster;

/// One cluster for all tests of the program; it ends when the program does.
fn conf() -> PathBuf {
    static CLUSTER: OnceLock<CephCluster> = OnceLock::new();
    CLUSTER.get_or_init(|| CephCluster::start(3)).conf.clone()
}

/// The pools of a datastore.
#[derive(Clone, Copy)]
pub enum Pools {
    Replicated,
    ErasureCoded,
}

/// A datastore of its own in the cluster that the tests share.
pub fn datastore(pools: Pools) -> RbdOptions {
    datastore_on(conf(), pools)
}

/// A datastore of its own in the cluster with this configuration.
pub fn datastore_on(conf: PathBuf, pools: Pools) -> RbdOptions {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("test{}", COUNT.fetch_add(1, Ordering::Relaxed));
    RbdOptions {
        cluster: ClusterOptions { conf, user: "client.admin".to_owned() },
        pool: "rep2".to_owned(),
        data_pool: match pools {
            Pools::Replicated => None,
            Pools::ErasureCoded => Some("ec21".to_owned()),
        },
        namespace,
    }
}

pub fn connect(pools: Pools) -> RbdStorage {
    RbdStorage::connect(&datastore(pools)).unwrap()
}

/// The event loop of a thread whose files lie on the cluster.
pub struct Loop(Rc<IdleReactor>);

impl Loop {
    pub fn new() -> Result<Self, IoError> {
        Ok(Self(Rc::new(IdleReactor::new()?)))
    }
}

impl EventLoop for Loop {
    fn reactor(&self) -> Rc<dyn Reactor> {
        Rc::new(RbdReactor::new(Rc::clone(&self.0) as _, 64))
    }

    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        self.0.sleep(at_most)
    }
}
