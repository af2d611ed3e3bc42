//! A hostile guest and a hostile front end harm only themselves: while one attacks the worker of
//! its own volume, another volume is under verified load, and the attacked volume is served again
//! right after.

mod front_end;
mod guest;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::worker_support::Worker;
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{Protection, Scratch, Volume};

/// Operations that the neighbour completes during each attack.
const NEIGHBOURS_OPERATIONS: u64 = 200;
/// Repetitions of the random attacks.
const ROUNDS: usize = if cfg!(feature = "full") { 400 } else { 12 };
const AREA_BYTES: u64 = 16 << 20;
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_hostile_guest_and_front_end_harm_themselves_alone() {
    let scratch = Scratch::new();
    let good = Volume::create(&scratch, "good", "64M", Protection::Encrypted);
    let bad = Volume::create(&scratch, "bad", "64M", Protection::Encrypted);
    let (neighbour, attacked) = (good.expose_vhost_user(), bad.expose_vhost_user());
    let neighbours_worker = Worker::of(&good).id;
    let (done, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let report = thread::scope(|scope| {
        let load = scope.spawn(|| load_until(neighbour.socket(), &done, &operations));
        let attacks = catch_unwind(AssertUnwindSafe(|| attack(&bad, attacked.socket(), &operations)));
        done.store(true, Ordering::SeqCst);
        let report = load.join().unwrap_or_else(|panic| resume_unwind(panic));
        attacks.unwrap_or_else(|panic| resume_unwind(panic));
        report.unwrap_or_else(|error| panic!("the neighbour: {error}"))
    });
    println!("the neighbour, meanwhile: {report}");
    assert_eq!(Worker::of(&good).id, neighbours_worker);
    assert!(neighbour.close().success());
    assert!(attacked.close().success());
}

/// Runs all attacks, and checks in between that the volume is served.
fn attack(volume: &Volume<'_>, socket: &Path, operations: &AtomicU64) {
    let worker = Worker::of(volume).id;
    for (name, attack) in ATTACKS {
        let before = operations.load(Ordering::SeqCst);
        attack(socket);
        await_neighbour(operations, before, name);
        verify_shortly(socket, name);
    }
    let stalling = "sockets that stall half-way through a message";
    let before = operations.load(Ordering::SeqCst);
    let stalled = front_end::stalling_sockets(socket);
    await_neighbour(operations, before, stalling);
    drop(stalled);
    verify_shortly(socket, stalling);
    assert_eq!(Worker::of(volume).id, worker, "none of this ends a worker");

    let vanishing = "memory that vanishes";
    let before = operations.load(Ordering::SeqCst);
    front_end::cut_memory_off(socket);
    await_neighbour(operations, before, vanishing);
    verify_shortly(socket, vanishing);
    println!("{vanishing} ended the worker: {}", Worker::of(volume).id != worker);
}

type Attack = fn(&Path);

const ATTACKS: [(&str, Attack); 8] = [
    ("rings that are broken", guest::break_rings),
    ("noise in the rings", guest::noise_in_rings),
    ("requests of absurd length", guest::absurd_requests),
    ("memory regions that overlap, are none, or are taken away", front_end::regions),
    ("rings outside of memory", front_end::rings_outside),
    ("features that change under requests", front_end::changing_features),
    ("areas of what is in flight that lie", front_end::lying_areas),
    ("messages that are none", front_end::noise_in_messages),
];

/// Verified load until `done`.
fn load_until(socket: &Path, done: &AtomicBool, operations: &AtomicU64) -> Result<Report, LoadError> {
    let front_end = FrontEnd::connect(socket, Settings::new(2, 16))?;
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(1) };
    let mut load = Load::new(front_end, config)?;
    while !done.load(Ordering::SeqCst) {
        load.run(Until::Operations(20))?;
        operations.store(load.report().operations(), Ordering::SeqCst);
    }
    load.finish()
}

/// Waits until the neighbour has completed more operations.
fn await_neighbour(operations: &AtomicU64, before: u64, attack: &str) {
    let until = Instant::now() + DEADLINE;
    while operations.load(Ordering::SeqCst) < before + NEIGHBOURS_OPERATIONS {
        assert!(Instant::now() < until, "the neighbour stalled under {attack}");
        thread::yield_now();
    }
}

/// The attacked volume is served: a short verified load.
fn verify_shortly(socket: &Path, attack: &str) {
    let verified = || -> Result<Report, LoadError> {
        let front_end = FrontEnd::connect(socket, Settings::new(2, 16))?;
        let config = LoadConfig { area_bytes: 1 << 20, ..LoadConfig::new(2) };
        let mut load = Load::new(front_end, config)?;
        load.run(Until::Operations(50))?;
        load.finish()
    };
    let report = verified().unwrap_or_else(|error| panic!("after {attack}: {error}"));
    println!("{attack}: the next session did {} operations", report.operations());
}

fn connect(socket: &Path) -> FrontEnd {
    FrontEnd::connect(socket, Settings::new(2, 16)).expect("a session")
}
