//! On a completely full file system, a volume can still be grown repeatedly, checked and deleted.
//! This runs only on the small file systems that `scripts/test-file-systems` mounts: the
//! environment has their paths, separated by colons.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeSize;

const SIZE_BYTES: u64 = 8 << 20;
/// Growths of one volume while nothing is free.
const GROWTHS: u64 = 4;
/// Small files that are made at the end, so that metadata has no room left either.
const SMALL_FILES_MAX: usize = 3000;

/// Fills all free space, even that reserved for `root`, first in large pieces and then in blocks.
fn fill(directory: &Path) {
    let filler = File::create(directory.join("filler")).unwrap();
    let mut at = 0;
    let mut piece = 256 << 20_u64;
    while piece >= 4096 {
        match fallocate(&filler, FallocateFlags::empty(), at, piece) {
            Ok(()) => at += piece,
            Err(_) => piece /= 2,
        }
    }
    filler.sync_all().unwrap();
    for number in 0..SMALL_FILES_MAX {
        let file = File::create(directory.join(format!("small-{number}")));
        let written = file.and_then(|mut file| file.write_all(&[1; 5000]).and_then(|()| file.sync_all()));
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::random(32).unwrap()).unwrap()
}

fn volume(path: &Path, kek: &Kek, provisioning: Provisioning) -> Result<Descriptor, DatastoreError> {
    let options = CreateOptions {
        size: VolumeSize::new(SIZE_BYTES).unwrap(),
        provisioning,
        protection: Protection::Encrypted(kek),
        log_bytes: None,
        integrity: None,
    };
    create(path, &options)
}

#[test]
fn a_full_datastore_takes_new_descriptors_and_deletions() {
    let places = std::env::var("STRONGROOM_TEST_DATASTORES").unwrap_or_default();
    for place in places.split(':').filter(|place| !place.is_empty()) {
        let directory = tempfile::tempdir_in(place).unwrap();
        let datastore = directory.path().join("ds");
        let (kek, path) = (kek(), datastore.join("vm1"));
        volume(&path, &kek, Provisioning::Thin).unwrap();
        let kept = datastore.join("vm2");
        volume(&kept, &kek, Provisioning::Thin).unwrap();
        fill(directory.path());
        // Neither a thin nor a thick new volume takes the reserve of the others.
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let refused = volume(&datastore.join("vm3"), &kek, provisioning).unwrap_err();
            assert!(matches!(refused, DatastoreError::Full { .. }), "{place}: {refused}");
        }
        let protection = Protection::Encrypted(&kek);
        let lock_wait = Duration::from_secs(60);
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        let mut opened = open(&path, &options).unwrap();
        for growth in 1..=GROWTHS {
            let size = VolumeSize::new(SIZE_BYTES + growth * 4096).unwrap();
            opened.grow(size, protection).unwrap_or_else(|error| panic!("{place}, growth {growth}: {error}"));
        }
        drop(opened);
        let described = describe(&path).unwrap();
        assert_eq!(described.descriptor.generation, 1 + GROWTHS);
        assert_eq!(described.descriptor.size_bytes.bytes(), SIZE_BYTES + GROWTHS * 4096);
        println!(
            "{place}: {} available when the descriptor was replaced",
            described.file_system.available_bytes
        );
        let findings = check(&path, Some(&kek)).unwrap();
        assert!(findings.is_empty(), "{place}: {findings:?}");
        let listed: Vec<_> = list(&datastore).unwrap().iter().map(|entry| entry.path().to_owned()).collect();
        assert_eq!(listed, [path.clone(), kept.clone()], "{place}");
        delete(&path, lock_wait).unwrap_or_else(|error| panic!("{place}: {error}"));
        // Once there is room again, everything works as before. (XFS frees space after a moment,
        // and first refills its own reserve.)
        std::fs::remove_file(directory.path().join("filler")).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(refused) = volume(&datastore.join("vm3"), &kek, Provisioning::Thin) {
            assert!(
                matches!(refused, DatastoreError::Full { .. }) && Instant::now() < until,
                "{place}: {refused}"
            );
            std::thread::yield_now();
        }
        delete(&kept, lock_wait).unwrap();
        // A file that is written and synced afterwards shows that the file system still works.
        File::create(directory.path().join("after")).unwrap().write_all_at(&[1; 4096], 0).unwrap();
    }
}
