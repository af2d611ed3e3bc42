//! The worker of an exposed volume is upgraded while its disk is under verified load: the connection stays, every request
//! is answered once, and the pause is a matter of milliseconds.

#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

mod worker_support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume};
use worker_support::{DEADLINE, Worker};

const UPGRADES: usize = if cfg!(feature = "full") { 100 } else { 3 };
const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const AREA_BYTES: u64 = 32 << 20;
/// Answered by each worker at least.
const OPERATIONS: u64 = 300;

#[test]
fn a_worker_is_upgraded_under_a_guests_requests() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path();
    let path = path.to_str().expect("a test's path is text");
    let (done, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let (report, mut pauses) = thread::scope(|scope| {
        let load = scope.spawn(|| load_until(exposure.socket(), &done, &operations));
        let upgrades = catch_unwind(AssertUnwindSafe(|| {
            let upgrade = |_| {
                let (before, until) = (operations.load(Ordering::SeqCst), Instant::now() + DEADLINE);
                while operations.load(Ordering::SeqCst) < before + OPERATIONS {
                    assert!(!load.is_finished() && Instant::now() < until, "nothing is answered");
                    thread::yield_now();
                }
                let worker = Worker::of(&volume).id;
                let upgraded = strongroom.json(&["volume", "upgrade", path]);
                assert_eq!(upgraded["old_worker_pid"], worker);
                upgraded["stall_microseconds"].as_u64().expect("the pause is told")
            };
            (0..UPGRADES).map(upgrade).collect::<Vec<_>>()
        }));
        done.store(true, Ordering::SeqCst);
        let report = load.join().unwrap_or_else(|panic| resume_unwind(panic));
        let report = report.unwrap_or_else(|error| panic!("the load: {error}"));
        (report, upgrades.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    pauses.sort_unstable();
    let (median, p99) = (pauses[pauses.len() / 2], pauses[pauses.len() * 99 / 100]);
    println!("{UPGRADES} upgrades, pause (median, p99) {median} us, {p99} us: {report}");
    assert!(report.operations() >= UPGRADES as u64 * OPERATIONS && report.out_of_order > 0);
    assert!(exposure.close().success());
}

/// Verified load, until it is done. It never connects anew.
fn load_until(socket: &Path, done: &AtomicBool, operations: &AtomicU64) -> Result<Report, LoadError> {
    let front_end = FrontEnd::connect(socket, Settings::new(QUEUES, DEPTH))?;
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(31) };
    let mut load = Load::new(front_end, config)?;
    while !done.load(Ordering::SeqCst) {
        load.run(Until::Operations(20))?;
        operations.store(load.report().operations(), Ordering::SeqCst);
    }
    load.finish()
}
