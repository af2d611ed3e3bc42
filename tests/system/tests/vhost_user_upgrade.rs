//! The worker of an exposed volume is upgraded while its disk is under verified load: the
//! connection stays, every request is answered once, and the pause is a few milliseconds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use crate::worker_support::{DEADLINE, Worker};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume};

const UPGRADES: usize = if cfg!(feature = "full") { 100 } else { 3 };
const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const AREA_BYTES: u64 = 32 << 20;
/// The least number of operations that each worker answers.
const OPERATIONS: u64 = 300;

#[test]
fn a_worker_is_upgraded_under_a_guests_requests() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path();
    let path = path.to_str().expect("a test's path is text");
    let (done, operations, stall_us) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let wait_for_more = |load: &ScopedJoinHandle<'_, _>| {
        let (before, until) = (operations.load(Ordering::SeqCst), Instant::now() + DEADLINE);
        while operations.load(Ordering::SeqCst) < before + OPERATIONS {
            assert!(!load.is_finished() && Instant::now() < until, "nothing is answered");
            thread::yield_now();
        }
        stall_us.swap(0, Ordering::SeqCst)
    };
    let (report, stalls) = thread::scope(|scope| {
        let load = scope.spawn(|| load_until(exposure.socket(), &done, &operations, &stall_us));
        let upgrades = catch_unwind(AssertUnwindSafe(|| {
            let upgrade = |_| {
                let without = wait_for_more(&load);
                let worker = Worker::of(&volume).id;
                let upgraded = strongroom.json(&["volume", "upgrade", path]);
                assert_eq!(upgraded["old_worker_pid"], worker);
                let told = upgraded["stall_microseconds"].as_u64().expect("the pause is told");
                [without, told, wait_for_more(&load)]
            };
            (0..UPGRADES).map(upgrade).collect::<Vec<_>>()
        }));
        done.store(true, Ordering::SeqCst);
        let report = load.join().unwrap_or_else(|panic| resume_unwind(panic));
        let report = report.unwrap_or_else(|error| panic!("the load: {error}"));
        (report, upgrades.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    for (index, which) in
        ["without an upgrade", "as the upgrade tells", "with an upgrade"].into_iter().enumerate()
    {
        let mut stalls: Vec<_> = stalls.iter().map(|stalls| stalls[index]).collect();
        stalls.sort_unstable();
        let (median, p99) = (stalls[stalls.len() / 2], stalls[stalls.len() * 99 / 100]);
        println!("longest time without an answer, {which}: median {median} us, p99 {p99} us");
    }
    println!("{UPGRADES} upgrades: {report}");
    assert!(report.operations() >= UPGRADES as u64 * OPERATIONS, "{report}");
    assert!(exposure.close().success());
}

/// Verified load until `done`. It never reconnects.
fn load_until(
    socket: &Path,
    done: &AtomicBool,
    operations: &AtomicU64,
    stall_us: &AtomicU64,
) -> Result<Report, LoadError> {
    let front_end = FrontEnd::connect(socket, Settings::new(QUEUES, DEPTH))?;
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(31) };
    let mut load = Load::new(front_end, config)?;
    while !done.load(Ordering::SeqCst) {
        load.run(Until::Operations(20))?;
        stall_us.fetch_max(load.take_longest_stall().as_micros() as u64, Ordering::SeqCst);
        operations.store(load.report().operations(), Ordering::SeqCst);
    }
    load.finish()
}
