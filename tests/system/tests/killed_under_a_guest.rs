//! The worker of a guest's vhost-user disk is killed twenty times with 32 requests in flight, and
//! then upgraded: the guest sees no error and no wrong block, only pauses, which its own clock
//! measures.

#![cfg(feature = "full")]

use std::fmt;
use std::time::Duration;

use strongroom_system_tests::family::{kill, worker_of};
use strongroom_system_tests::{CommandLine, Exercise, GuestPlan, Machine, Protection, Scratch, Volume};

const KILLS: usize = 20;
const UPGRADES: usize = 5;
/// Requests in flight, one for each thread of the exercise.
const DEPTH: usize = 32;
/// Operations between two kills, so that each worker has written before it dies, and each kill
/// meets other requests.
const OPERATIONS_BETWEEN_KILLS: u64 = 300;

#[test]
fn a_guest_sees_no_error_when_its_worker_is_killed() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "256M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let plan = GuestPlan::new(&scratch, "guest").machine(Machine::Q35);
    let mut guest = plan.vhost_user(exposure.socket()).boot();
    let mut exercise = Exercise::start_in(guest.session(), "/dev/vda", "96M", DEPTH);
    exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
    let without_kill = exercise.take_longest_gap();
    let mut pauses = Vec::new();
    for _ in 0..KILLS {
        kill(worker_of(exposure.process().id()));
        exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
        pauses.push(exercise.take_longest_gap());
    }

    let (command_line, path) = (CommandLine::new(&scratch), volume.path());
    let mut upgrades = Vec::new();
    for _ in 0..UPGRADES {
        command_line.run(&["volume", "upgrade", &path.to_string_lossy()]).success();
        exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
        upgrades.push(exercise.take_longest_gap());
    }

    let report = exercise.stop();
    report.assert_clean();
    guest.power_off();
    assert!(exposure.close().success());
    println!(
        "{} operations at depth {DEPTH}; the longest took {:?}. From one request's end to the next: {without_kill:?}, over \
         {KILLS} kills {}, over {UPGRADES} upgrades {}",
        report.operations,
        report.longest_stall,
        Quantiles::of(pauses),
        Quantiles::of(upgrades)
    );
}

/// The quantiles of a set of times.
struct Quantiles {
    sorted: Vec<Duration>,
}

impl Quantiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { sorted: times }
    }

    /// The smallest time that this percentage does not exceed.
    fn at(&self, percent: usize) -> Duration {
        self.sorted[(self.sorted.len() * percent).div_ceil(100).max(1) - 1]
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "median {:?}, 99 of 100 within {:?}", self.at(50), self.at(99))
    }
}
