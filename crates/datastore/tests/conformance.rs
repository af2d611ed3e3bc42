//! The file volume as a stage: the suite that every disk must pass, on the real ring.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::conformance::Conformance;
use strongroom_io::{Allocation, Channel, Disk, IoError, Limits, Sealed, Thread};
use strongroom_ring::Ring;
use strongroom_types::{Extent, VolumeSize};

use support::Destaging;

fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

/// A volume with what empties its first-write log.
struct Destaged {
    disk: Arc<FileDisk>,
    _destaging: Destaging,
}

impl Disk<Sealed> for Destaged {
    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        self.disk.open(thread, depth)
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.disk.allocation(extent, report)
    }
}

fn passes(place: &str, provisioning: Provisioning) {
    let datastore = tempfile::tempdir_in(place).unwrap();
    let count = AtomicU64::new(0);
    let suite = Conformance::<Sealed>::new(move || {
        let path = datastore.path().join(count.fetch_add(1, Ordering::Relaxed).to_string());
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let protection = Protection::Unencrypted;
        create(&path, &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: false })
            .unwrap();
        let options = OpenOptions {
            protection,
            access: Access::ReadWrite,
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        let disk = open(&path, &options).unwrap().disk;
        Destaged { _destaging: Destaging::of(&disk), disk }
    });
    if let Err(failure) = suite.event_loops(ring).run() {
        panic!("{failure}");
    }
}

#[test]
fn thin_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thin);
}

#[test]
fn thick_on_a_disk() {
    passes(env!("CARGO_TARGET_TMPDIR"), Provisioning::Thick);
}

#[test]
fn thin_in_memory() {
    passes("/dev/shm", Provisioning::Thin);
}
