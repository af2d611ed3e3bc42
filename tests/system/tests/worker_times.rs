//! How long clients wait for a killed worker's successor, and for an upgrade: measured and printed,
//! without a limit, because a busy machine is not an error. `docs/PERFORMANCE.md` has the figures
//! of an idle one.

#![cfg(feature = "full")]

use std::time::{Duration, Instant};

use crate::worker_support::{DEADLINE, NbdClient, VerifiedIo, Worker};
use serde_json::Value;
use strongroom_system_tests::{Protection, Scratch, Volume, family};

const ROUNDS: usize = 50;
const OPERATIONS: u64 = 100;

fn report(what: &str, mut times: Vec<Duration>) -> String {
    times.sort();
    let (median, p99, longest) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100], times[ROUNDS - 1]);
    format!("{what}: median {median:?}, p99 {p99:?}, longest {longest:?} of {ROUNDS}")
}

#[test]
fn from_a_kill_to_the_first_io() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let mut client = NbdClient::connect(exposed.socket()).unwrap();
    let times = (0..ROUNDS).map(|round| {
        let written = [round as u8; 4096];
        client.write(0, &written).unwrap();
        let worker = family::worker_of(exposed.process().id());
        let pid = rustix::process::Pid::from_raw(worker.cast_signed()).unwrap();
        let killed_at = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let mut found = [0; 4096];
        // A connection that the dead worker's socket still accepts is refused, and repeated at
        // once.
        while client.read(0, &mut found).is_err() {
            assert!(killed_at.elapsed() < DEADLINE, "no worker within {DEADLINE:?}");
            if let Ok(again) = NbdClient::connect(exposed.socket()) {
                client = again;
            }
        }
        assert!(found == written);
        killed_at.elapsed()
    });
    println!("{}", report("from kill -9 to the first I/O over NBD", times.collect()));
    assert!(exposed.close().success());
}

#[test]
fn the_pause_of_an_upgrade() {
    for (frontend, exposed_over_nbd) in [("NBD", true), ("vhost-user", false)] {
        let scratch = Scratch::new();
        let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
        let exposed = if exposed_over_nbd { volume.expose() } else { volume.expose_vhost_user() };
        let io = exposed_over_nbd.then(|| VerifiedIo::start(exposed.socket()));
        let times = (0..ROUNDS).map(|_| {
            if let Some(io) = &io {
                io.wait_for_more(OPERATIONS);
            }
            let before = Worker::of(&volume);
            let answer = volume.upgrade();
            before.wait();
            let upgraded: Value = serde_json::from_str(&answer.success()).unwrap();
            Duration::from_micros(upgraded["stall_microseconds"].as_u64().unwrap())
        });
        let what = format!("nobody serves during an upgrade over {frontend}");
        println!("{}", report(&what, times.collect()));
        if let Some(io) = io {
            let (operations, longest) = io.stop();
            println!("the longest of a client's {operations} operations meanwhile: {longest:?}");
        }
        assert!(exposed.close().success());
    }
}
