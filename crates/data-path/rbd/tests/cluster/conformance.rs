//! The suite that every disk must pass.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{IdleReactor, Sealed};
use strongroom_rbd::{CephError, RbdStorage};
use strongroom_test_peers::CephCluster;
use strongroom_types::{KeyEpoch, Redundancy, VolumeSize};

use crate::support::{Pools, connect, datastore_on};

/// Runs the suite on volumes of this storage.
pub fn passes(storage: impl Storage + 'static) {
    passes_slice(storage, 400);
}

/// Runs the suite with this many random requests of each thread in each check.
pub fn passes_slice(storage: impl Storage + 'static, requests: usize) {
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let path = PathBuf::from(format!("vm{}", count.fetch_add(1, Ordering::Relaxed)));
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let (protection, provisioning) = (Protection::Unencrypted, Provisioning::Thin);
        let options = CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None };
        create_on(&storage, &path, &options).unwrap();
        let (access, lock_wait, least_generation) = (Access::ReadWrite, Duration::ZERO, 0);
        open_on(&storage, &path, &OpenOptions { protection, access, lock_wait, least_generation })
            .unwrap()
            .disk
    });
    let suite = suite.requests(requests);
    if let Err(failure) = suite.epoch(KeyEpoch::CLEAR).event_loops(|| IdleReactor::new().map(Rc::new)).run() {
        panic!("{failure}");
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_on_a_replicated_pool() {
    passes(connect(Pools::Replicated));
}

/// A user with no right beyond a namespace that the cluster's administrator has made.
#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_for_a_user_of_one_namespace() {
    let mut cluster = CephCluster::start(2);
    let administrators = datastore_on(cluster.conf.clone(), Pools::Replicated);
    let namespace = &administrators.namespace;
    cluster.tell(&format!(
        r#"{{"prefix":"make namespace","pool":"{}","name":"{namespace}"}}"#,
        administrators.pool
    ));
    cluster.add_user_of("client.narrow", namespace);
    let mut options = administrators.clone();
    options.cluster.user = "client.narrow".to_owned();
    let storage = RbdStorage::connect(&options).unwrap();
    let directory = storage.open_directory(Path::new("")).unwrap();
    let space = directory.file_system(Path::new("")).unwrap();
    assert!(space.available_bytes > 0);
    // Two copies, of which one is enough. Such a user may know it.
    assert_eq!(space.redundancy, Some(Redundancy { losses_survived: 1, losses_served: 1 }));
    drop(directory);
    passes(storage.clone());
    // What it needs of the monitors: to fence an instance.
    let other = RbdStorage::connect(&administrators).unwrap();
    storage.take_over(&other.own_address().unwrap()).unwrap();
    // A device hears of it from the next owner at the latest, with what that does there.
    storage.make_directory(Path::new("next")).unwrap();
    assert!(other.make_directory(Path::new("late")).is_err());
    // No other namespace, and not the pool's own.
    for namespace in ["other", ""] {
        options.namespace = namespace.to_owned();
        let refused = RbdStorage::connect(&options).map(drop).unwrap_err();
        assert!(matches!(refused, CephError::Call { errno: Errno::PERM, .. }), "{refused}");
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_on_an_erasure_coded_pool() {
    let storage = connect(Pools::ErasureCoded);
    let directory = storage.open_directory(Path::new("")).unwrap();
    let space = directory.file_system(Path::new("")).unwrap();
    // 2+1 beside names in two copies.
    assert_eq!(space.redundancy, Some(Redundancy { losses_survived: 1, losses_served: 1 }));
    drop(directory);
    passes(storage);
}
