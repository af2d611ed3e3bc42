//! The suite that every disk must pass.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{IdleReactor, Sealed};
use strongroom_types::{KeyEpoch, VolumeSize};

use crate::support::{Pools, connect};

/// Runs the suite on volumes of this storage.
pub fn passes(storage: impl Storage + 'static) {
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
    if let Err(failure) = suite.epoch(KeyEpoch::CLEAR).event_loops(|| IdleReactor::new().map(Rc::new)).run() {
        panic!("{failure}");
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_on_a_replicated_pool() {
    passes(connect(Pools::Replicated));
}

#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_on_an_erasure_coded_pool() {
    passes(connect(Pools::ErasureCoded));
}
