//! The stage of tags: the suite that every disk must pass, on the real ring, with memory for very
//! few tags.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::tags::{Layout, TagKeys, TagsDisk, TagsFacts, TagsTuning};
use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{Disk, IoError, Sealed};
use strongroom_keys::KekSource;
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::VolumeSize;

use support::{Destaged, Destaging};

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// A new volume, without the stage.
fn volume(path: &std::path::Path, provisioning: Provisioning, bytes: u64) -> OpenVolume {
    let secret = SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap();
    let kek = KekSource::KeyFile {}.kek(&secret).unwrap();
    let size = VolumeSize::new(bytes).unwrap();
    let protection = Protection::Encrypted(&kek);
    create(
        path,
        &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: Some(Integrity::NEW) },
    )
    .unwrap();
    let options =
        OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation: 0 };
    open(path, &options).unwrap()
}

/// An empty sidecar of the former format.
fn former_sidecar(path: &std::path::Path, layer_bytes: u64) -> OwnedFd {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(Layout::FORMER.file_bytes(layer_bytes)).unwrap();
    file.into()
}

fn passes(place: &str, provisioning: Provisioning, layout: Layout) {
    let datastore = tempfile::tempdir_in(place).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let number = count.fetch_add(1, Ordering::Relaxed);
        let bytes = (5 << 20) + 512;
        let mut volume = volume(&datastore.path().join(number.to_string()), provisioning, bytes);
        let keys = TagKeys::derive(&volume.take_deks()).unwrap().unwrap();
        let (file, facts) = volume.tags.take().unwrap();
        let facts = TagsFacts { syncs_in_turn: number.is_multiple_of(2), ..facts };
        let inner = Arc::clone(&volume.disk);
        let destaging = Destaging::of(&inner, ring);
        let disk = if layout == Layout::CURRENT {
            TagsDisk::over(inner, file, facts, keys, TagsTuning::default()).unwrap()
        } else {
            let path = datastore.path().join(format!("former-{number}"));
            let tags = former_sidecar(&path, inner.limits().size_bytes);
            TagsDisk::new(inner, tags, TagsFacts { absence: None, ..facts }, keys).unwrap()
        };
        Destaged { disk, destaging }
    });
    if let Err(failure) = suite.event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn thick_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thick, Layout::CURRENT);
}

#[test]
fn thin_in_memory() {
    passes("/dev/shm", Provisioning::Thin, Layout::CURRENT);
}

#[test]
fn of_the_former_format() {
    passes("/dev/shm", Provisioning::Thick, Layout::FORMER);
}
