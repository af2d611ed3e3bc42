//! The file volume as a stage: the suite that every disk must pass, on the real ring.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{IoError, Sealed};
use strongroom_ring::Ring;
use strongroom_types::{KeyEpoch, VolumeSize};

use support::{Destaged, Destaging};

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// `syncs_in_turn` as if the file system asked for it.
fn passes(place: &str, provisioning: Provisioning, syncs_in_turn: bool) {
    let datastore = tempfile::tempdir_in(place).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let protection = Protection::Unencrypted;
        create(&path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None })
            .unwrap();
        let options = OpenOptions {
            protection,
            access: Access::ReadWrite,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let (_, mut layer, _) = open_apart(&path, &options).unwrap();
        layer.facts.syncs_in_turn = syncs_in_turn;
        let disk = Arc::new(FileDisk::new(layer).unwrap());
        Destaged { destaging: Destaging::of(&disk, ring), disk }
    });
    if let Err(failure) = suite.epoch(KeyEpoch::CLEAR).event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn thin_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thin, false);
}

#[test]
fn thin_on_a_disk_whose_syncs_take_turns() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thin, true);
}

#[test]
fn thick_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thick, false);
}

#[test]
fn thin_in_memory() {
    passes("/dev/shm", Provisioning::Thin, false);
}
