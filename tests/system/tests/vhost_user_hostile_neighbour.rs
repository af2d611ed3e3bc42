//! A hostile guest and a hostile front end harm themselves alone: while one does its worst to the worker of its own
//! volume, another volume is under verified load, and its own volume is served again right after.

#[path = "hostile_neighbour/front_end.rs"]
mod front_end;
#[path = "hostile_neighbour/guest.rs"]
mod guest;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{Exposure, Protection, Scratch, Volume};

/// Answered to the neighbour in the time of each attack.
const NEIGHBOURS_OPERATIONS: u64 = 200;
/// Repetitions of the attacks by chance.
const ROUNDS: usize = if cfg!(feature = "full") { 400 } else { 12 };
const AREA_BYTES: u64 = 16 << 20;
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn a_hostile_guest_and_front_end_harm_themselves_alone() {
    let scratch = Scratch::new();
    let good = Volume::create(&scratch, "good", "64M", Protection::Encrypted);
    let bad = Volume::create(&scratch, "bad", "64M", Protection::Encrypted);
    let (neighbour, mut attacked) = (good.expose_vhost_user(), bad.expose_vhost_user());
    let (done, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let report = thread::scope(|scope| {
        let load = scope.spawn(|| load_until(neighbour.socket(), &done, &operations));
        let attacks = catch_unwind(AssertUnwindSafe(|| {
            for (name, attack) in ATTACKS {
                let before = operations.load(Ordering::SeqCst);
                attack(attacked.socket());
                await_neighbour(&operations, before, name);
                let report = verify_shortly(&attacked);
                let report = report.unwrap_or_else(|error| panic!("after {name}: {error}"));
                println!("{name}: the next session did {} operations", report.operations());
            }
            let before = operations.load(Ordering::SeqCst);
            let stalled = front_end::stalling_sockets(attacked.socket());
            await_neighbour(&operations, before, "sockets that stall half-way through a message");
            drop(stalled);
            verify_shortly(&attacked).unwrap_or_else(|error| panic!("after sockets that stall: {error}"));
            let before = operations.load(Ordering::SeqCst);
            front_end::cut_memory_off(attacked.socket());
            await_neighbour(&operations, before, "memory that vanishes");
        }));
        done.store(true, Ordering::SeqCst);
        let report = load.join().unwrap_or_else(|panic| resume_unwind(panic));
        attacks.unwrap_or_else(|panic| resume_unwind(panic));
        report.unwrap_or_else(|error| panic!("the neighbour: {error}"))
    });
    println!("the neighbour, meanwhile: {report}");
    attacked = after_the_end(attacked, &bad);
    verify_shortly(&attacked).unwrap_or_else(|error| panic!("in the end: {error}"));
    assert!(neighbour.close().success());
    assert!(attacked.close().success());
}

/// Memory that is cut off under a worker may end it, and it alone.
fn after_the_end<'test>(attacked: Exposure, volume: &Volume<'test>) -> Exposure {
    attacked.kill();
    volume.expose_vhost_user()
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

/// Verified load, until it is done.
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

/// Waits until the neighbour has done more.
fn await_neighbour(operations: &AtomicU64, before: u64, attack: &str) {
    let until = Instant::now() + DEADLINE;
    while operations.load(Ordering::SeqCst) < before + NEIGHBOURS_OPERATIONS {
        assert!(Instant::now() < until, "the neighbour stalled under {attack}");
        thread::yield_now();
    }
}

fn verify_shortly(exposure: &Exposure) -> Result<Report, LoadError> {
    let front_end = FrontEnd::connect(exposure.socket(), Settings::new(2, 16))?;
    let config = LoadConfig { area_bytes: 1 << 20, ..LoadConfig::new(2) };
    let mut load = Load::new(front_end, config)?;
    load.run(Until::Operations(50))?;
    load.finish()
}

fn connect(socket: &Path) -> FrontEnd {
    FrontEnd::connect(socket, Settings::new(2, 16)).expect("a session")
}
