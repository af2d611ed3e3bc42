//! The worker of an exposed volume is killed again and again while requests are in flight, out of
//! order; from time to time its successor is killed too, while it repeats the requests that it
//! found. The next one answers all of them, though none is sent again, and every sector has the
//! right content.

use std::time::{Duration, Instant};

use crate::worker_support::Worker;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};
use strongroom_system_tests::{Protection, Scratch, Volume};

const ROUNDS: usize = if cfg!(feature = "full") { 200 } else { 3 };
/// The limit of rounds until requests were in flight at a kill: on a busy machine the worker may
/// have completed all of them by then.
const ROUNDS_MAX: usize = 10 * ROUNDS;
const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const AREA_BYTES: u64 = 32 << 20;
/// The longest load before a kill, in microseconds.
const LOAD_US_MAX: u64 = 40_000;
/// Operations after each kill, so that each worker has changed something before it dies.
const OPERATIONS_BETWEEN_KILLS: u64 = 500;
/// The successor is killed too in every round of this interval.
const DOUBLE_KILL_EVERY: usize = 3;
const SEED: u64 = 0x5eed;

#[test]
fn requests_in_flight_outlive_the_worker() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let front_end = FrontEnd::connect(exposure.socket(), Settings::new(QUEUES, DEPTH)).expect("a session");
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(SEED) };
    let mut load = Load::new(front_end, config).expect("load");
    let mut random = StdRng::seed_from_u64(SEED);
    let mut gaps = Vec::new();
    let mut rounds = 0;
    while rounds < ROUNDS || rounds < ROUNDS_MAX && !shows_something(&load.report()) {
        let round = rounds;
        rounds += 1;
        let mut load_and_kill = || -> Result<(), LoadError> {
            let worker = Worker::of(&volume);
            load.run(Until::Time(
                Instant::now() + Duration::from_micros(random.random_range(0..LOAD_US_MAX)),
            ))?;
            let killed = Instant::now();
            kill(worker, &mut load)?;
            if round % DOUBLE_KILL_EVERY == DOUBLE_KILL_EVERY - 1 {
                kill(Worker::of(&volume), &mut load)?;
            } else {
                load.await_answer()?;
                gaps.push(killed.elapsed());
            }
            load.run(Until::Operations(OPERATIONS_BETWEEN_KILLS))
        };
        load_and_kill().unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let report = load.finish().unwrap_or_else(|error| panic!("in the end: {error}"));
    gaps.sort_unstable();
    let (median, p99) = (gaps[gaps.len() / 2], gaps[gaps.len() * 99 / 100]);
    println!("{rounds} rounds, first answer after a kill (median, p99) {median:?}, {p99:?}: {report}");
    assert!(shows_something(&report), "{report}");
    assert_eq!(report.reconnects as usize, rounds + rounds / DOUBLE_KILL_EVERY);
    assert!(exposure.close().success());
}

/// Requests were in flight when a worker died, and out of order.
fn shows_something(report: &Report) -> bool {
    report.replayed > 0 && report.out_of_order > 0
}

/// Kills a worker at any point, and continues with its successor.
fn kill(worker: Worker, load: &mut Load) -> Result<(), LoadError> {
    worker.kill();
    load.await_end()?;
    load.reconnect()?;
    Ok(())
}
