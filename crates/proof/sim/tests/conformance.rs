//! The file volume on simulated files passes the conformance suite of every disk, with completions
//! in any order, some of them late.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

#[path = "../../../data-path/datastore/tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::Sealed;
use strongroom_io::conformance::Conformance;
use strongroom_sim::SimFs;
use strongroom_types::{KeyEpoch, VolumeSize};

use support::{Destaged, Destaging};

fn suite(fs: &SimFs, provisioning: Provisioning) -> Conformance<Sealed> {
    let (count, seeds) = (AtomicU64::new(0), AtomicU64::new(0));
    let (volumes, threads) = (fs.clone(), fs.clone());
    let suite = Conformance::<Sealed>::new(move || {
        let path = PathBuf::from(format!("/ds/vm{}", count.fetch_add(1, Ordering::Relaxed)));
        let size = VolumeSize::new((5 << 20) + 512).unwrap();
        let protection = Protection::Unencrypted;
        create_on(
            &volumes,
            &path,
            &CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None },
        )
        .unwrap();
        let lock_wait = Duration::ZERO;
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation: 0 };
        let disk = open_on(&volumes, &path, &options).unwrap().disk;
        let destagers = volumes.clone();
        Destaged { destaging: Destaging::of(&disk, move || destagers.reactor(0)), disk }
    });
    suite.epoch(KeyEpoch::CLEAR).event_loops(move || threads.reactor(seeds.fetch_add(1, Ordering::Relaxed)))
}

#[test]
fn thin() {
    if let Err(failure) = suite(&SimFs::new(1), Provisioning::Thin).run() {
        panic!("{failure}");
    }
}

#[test]
fn thin_where_syncs_take_turns() {
    let fs = SimFs::new(3);
    fs.set_skips_overlapping_syncs(true);
    if let Err(failure) = suite(&fs, Provisioning::Thin).run() {
        panic!("{failure}");
    }
}

#[test]
fn thick() {
    if let Err(failure) = suite(&SimFs::new(2), Provisioning::Thick).run() {
        panic!("{failure}");
    }
}
