//! The worker of an exposed volume is killed while requests are in flight, out of order, again and again. Its successor
//! answers all of them, though none is sent again, and every sector holds what it must.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Until};
use strongroom_system_tests::{Exposure, Protection, Scratch, Volume};

const ROUNDS: usize = if cfg!(feature = "full") { 200 } else { 3 };
const QUEUES: u16 = 2;
const DEPTH: u16 = 32;
const AREA_BYTES: u64 = 32 << 20;
/// The longest load before a kill, in microseconds.
const LOAD_US_MAX: u64 = 40_000;
/// Answered after each kill, so that each worker has changed something before it dies.
const OPERATIONS_BETWEEN_KILLS: u64 = 500;
const SEED: u64 = 0x5eed;

#[test]
fn requests_in_flight_outlive_the_worker() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let mut exposure = volume.expose_vhost_user();
    let front_end = FrontEnd::connect(exposure.socket(), Settings::new(QUEUES, DEPTH)).expect("a session");
    let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(SEED) };
    let mut load = Load::new(front_end, config).expect("load");
    let mut random = StdRng::seed_from_u64(SEED);
    let mut gaps = Vec::new();
    for round in 0..ROUNDS {
        let at = Instant::now() + Duration::from_micros(random.random_range(0..LOAD_US_MAX));
        let loaded = load.run(Until::Time(at));
        let killed = Instant::now();
        exposure = kill(exposure, &volume);
        let recovered = loaded.and_then(|()| load.reconnect()).and_then(|_| load.await_answer());
        gaps.push(killed.elapsed());
        let done = recovered.and_then(|()| load.run(Until::Operations(OPERATIONS_BETWEEN_KILLS)));
        done.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    let report = load.finish().unwrap_or_else(|error| panic!("in the end: {error}"));
    gaps.sort_unstable();
    let (median, p99) = (gaps[gaps.len() / 2], gaps[gaps.len() * 99 / 100]);
    println!("{ROUNDS} kills, first answer after (median, p99) {median:?}, {p99:?}: {report}");
    assert!(report.replayed > 0 && report.out_of_order > 0, "{report}");
    assert_eq!(report.reconnects, ROUNDS as u64);
    assert!(exposure.close().success());
}

/// Kills the worker where it stands.
fn kill<'test>(exposure: Exposure, volume: &Volume<'test>) -> Exposure {
    exposure.kill();
    volume.expose_vhost_user()
}
