//! The stage of tags: the suite that every disk must pass, on the real ring, with memory for hardly any tags.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::tags::{TagKeys, TagsDisk, TagsFacts, file_bytes};
use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{Disk, IoError, Sealed};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{KeyEpoch, LayerId, VolumeId, VolumeSize};

use support::{Destaged, Destaging};

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// A new volume's blocks, without the stage.
fn blocks(path: &std::path::Path, provisioning: Provisioning, bytes: u64) -> Arc<FileDisk> {
    let size = VolumeSize::new(bytes).unwrap();
    let protection = Protection::Unencrypted;
    create(path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: false })
        .unwrap();
    let options =
        OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation: 0 };
    open(path, &options).unwrap().disk
}

fn sidecar(path: &std::path::Path, layer_bytes: u64) -> OwnedFd {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(file_bytes(layer_bytes)).unwrap();
    file.into()
}

fn keys() -> TagKeys {
    let dek = SecretBytes::from_slice_and_wipe(&mut [7; 64]).unwrap();
    TagKeys::derive(&vec![(KeyEpoch::FIRST, dek)]).unwrap().unwrap()
}

fn passes(place: &str, provisioning: Provisioning) {
    let datastore = tempfile::tempdir_in(place).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let bytes = (5 << 20) + 512;
        let inner = blocks(&datastore.path().join(number.to_string()), provisioning, bytes);
        let tags = sidecar(&datastore.path().join(format!("tags-{number}")), inner.limits().size_bytes);
        let (volume, layer) = (VolumeId::random(), LayerId::random());
        let facts = TagsFacts { volume, layer, handed_over: false, syncs_in_turn: number.is_multiple_of(2) };
        let destaging = Destaging::of(&inner, ring);
        Destaged { disk: TagsDisk::new(inner, tags, facts, keys()).unwrap(), destaging }
    });
    if let Err(failure) = suite.event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn thick_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thick);
}

#[test]
fn thick_in_memory() {
    passes("/dev/shm", Provisioning::Thick);
}
