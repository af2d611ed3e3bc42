//! The suite that every disk must pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{Disk, Sealed};
use strongroom_types::{KeyEpoch, VolumeSize};

use crate::support::{MIB, client, ring, server, to_open};

/// A volume whose blocks are another process's; dropped in order.
#[test]
fn it_is_a_disk() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let storage = client(&server());
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let size = VolumeSize::new(5 * MIB + 512).unwrap();
        let (protection, provisioning) = (Protection::Unencrypted, Provisioning::Thick);
        let options = CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None };
        create_on(&storage, &path, &options).unwrap();
        let opened = open_on(&storage, &path, &to_open(protection, Access::ReadWrite)).unwrap();
        Arc::clone(&opened.disk) as Arc<dyn Disk<Sealed>>
    });
    if let Err(failure) = suite.epoch(KeyEpoch::CLEAR).event_loops(ring).run() {
        panic!("{failure}");
    }
}
