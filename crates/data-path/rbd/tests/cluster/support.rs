//! The cluster that the tests share, and their datastores in it.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use strongroom_datastore::file::storage::StoredFile;
use strongroom_io::{EventLoop, FileQueue, FileToken, IdleReactor};
use strongroom_memory::BufferPool;
use strongroom_rbd::{ClusterConf, ClusterOptions, RbdOptions, RbdStorage};
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
        cluster: ClusterOptions { conf: ClusterConf::File(conf), user: "client.admin".to_owned() },
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

/// A thread's queue to a file.
pub struct FileLane {
    pub file: Arc<dyn StoredFile>,
    pub queue: Box<dyn FileQueue>,
    pub token: FileToken,
    pub event_loop: Rc<IdleReactor>,
    pub pool: BufferPool,
}

impl FileLane {
    /// A queue to this file, with so much memory.
    pub fn to(file: Arc<dyn StoredFile>, pool_bytes: usize) -> Self {
        let event_loop = Rc::new(IdleReactor::new().unwrap());
        let mut queue = file.queue(&event_loop.reactor()).unwrap();
        let token = queue.register(Arc::clone(&file) as _).unwrap();
        Self { file, queue, token, event_loop, pool: BufferPool::new(pool_bytes).unwrap() }
    }
}
