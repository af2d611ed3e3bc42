//! The worker of a guest's vhost-user disk is killed twenty times while 32 requests are in flight: the guest sees no
//! error and no wrong block, only pauses, and those are measured by its own clock.

#![cfg(feature = "full")]

use std::time::Duration;

use strongroom_system_tests::{Exercise, GuestPlan, Machine, Protection, Scratch, Volume};

const KILLS: usize = 20;
/// Requests in flight; each thread of the exercise has one.
const DEPTH: usize = 32;
/// Done between two kills, so that each worker has written before it dies, and each kill meets other requests.
const OPERATIONS_BETWEEN_KILLS: u64 = 300;

#[test]
fn a_guest_sees_no_error_when_its_worker_is_killed() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "256M", Protection::Encrypted);
    let mut exposure = volume.expose_vhost_user();
    let plan = GuestPlan::new(&scratch, "guest").machine(Machine::Q35);
    let mut guest = plan.vhost_user(exposure.socket()).boot();
    let mut exercise = Exercise::start_in(guest.session(), "/dev/vda", "96M", DEPTH);
    exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
    let without_kill = exercise.take_longest_gap();
    let mut pauses = Vec::new();
    for _ in 0..KILLS {
        exposure.kill();
        exposure = volume.expose_vhost_user();
        exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
        pauses.push(exercise.take_longest_gap());
    }

    let report = exercise.stop();
    report.assert_clean();
    guest.power_off();
    assert!(exposure.close().success());
    pauses.sort_unstable();
    println!(
        "{} operations at depth {DEPTH} over {KILLS} kills; from the last request before a kill to the first after it: \
         median {:?}, 99 of 100 within {:?} (without a kill {without_kill:?}); the longest request took {:?}",
        report.operations,
        quantile(&pauses, 50),
        quantile(&pauses, 99),
        report.longest_stall
    );
}

/// The smallest of the sorted times that is not exceeded by this many of a hundred.
fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}
