//! What is done with volumes on a cluster: created, given snapshots, cloned, merged, deleted.

use std::path::Path;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::Disk;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{SnapshotId, VolumeSize};

use crate::support::{Pools, connect};

const MIB: u64 = 1 << 20;

fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_volume_lives_and_is_gone() {
    let (storage, kek) = (connect(Pools::Replicated), kek());
    let protection = Protection::Encrypted(&kek);
    let path = Path::new("vm1");
    let options = CreateOptions {
        size: VolumeSize::new(64 * MIB).unwrap(),
        provisioning: Provisioning::Thin,
        protection,
        log_bytes: None,
        integrity: Some(Integrity::PolyvalAesAbsence),
    };
    let thick = CreateOptions { provisioning: Provisioning::Thick, ..options };
    let refused = create_on(&storage, path, &thick).unwrap_err();
    assert!(matches!(&refused, DatastoreError::ThinOnly { .. }), "{refused}");
    let created = create_on(&storage, path, &options).unwrap();
    assert!(created.layers[0].log.is_none());

    let (access, lock_wait, least_generation) = (Access::ReadWrite, Duration::from_secs(10), 0);
    let to_open = OpenOptions { protection, access, lock_wait, least_generation };
    let opened = open_on(&storage, path, &to_open).unwrap();
    assert_eq!(opened.disk.limits().size_bytes, 64 * MIB);
    let at_once = OpenOptions { lock_wait: Duration::ZERO, ..to_open };
    let holder = std::process::id();
    let in_use = open_on(&storage, path, &at_once).map(drop).unwrap_err();
    assert!(matches!(in_use, DatastoreError::InUse { holder: Some(pid), .. } if pid == holder), "{in_use}");
    drop(opened);

    let add = AddLayerOptions { protection, log_bytes: None, lock_wait, least_generation };
    let (id, name) = (SnapshotId::random(), "before".parse().unwrap());
    let snapshot = NewSnapshot { id, name };
    create_snapshot_on(&storage, path, &snapshot, &add).unwrap();
    let origin = CloneOrigin { path, volume: Some(created.volume), snapshot: id, options: to_open };
    link_snapshot_on(&storage, &origin, Path::new("clone"), protection, None).unwrap();
    for path in [path, Path::new("clone")] {
        let findings = check_on(&storage, path, Some(&kek)).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
    }
    let listed = list_on(&storage, Path::new("")).unwrap();
    assert_eq!(listed.len(), 2);
    delete_on(&storage, path, lock_wait).unwrap();
    drop(open_on(&storage, Path::new("clone"), &to_open).unwrap());
    delete_on(&storage, Path::new("clone"), lock_wait).unwrap();
    assert!(list_on(&storage, Path::new("")).unwrap().is_empty());
}
