//! The process that exposes a running guest's volume is killed again and again, and restarted: here
//! the supervisor, whose worker then closes the volume and ends (`killed_under_a_guest` kills
//! workers). The guest sees a pause, never an error, and every acknowledged write is there.

use strongroom_system_tests::{Exercise, Guest, Protection, Scratch, Volume};

/// Each kill meets other I/O in flight, and the last one follows a recovery.
const KILLS: usize = 3;
/// Operations between two kills, so that each server has written before it dies.
const OPERATIONS_BETWEEN_KILLS: u64 = 200;

#[test]
fn reconnects_after_the_server_is_killed() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "256M", Protection::Encrypted);
    let mut exposure = volume.expose();
    let mut guest = Guest::boot(&scratch, "guest", &[exposure.socket()]);
    let mut exercise = Exercise::start(&mut guest, "/dev/vda", "64M");
    for _ in 0..KILLS {
        exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);
        exposure.kill();
        exposure = volume.expose();
    }
    exercise.wait_for_more(OPERATIONS_BETWEEN_KILLS);

    let report = exercise.stop();
    report.assert_clean();
    println!(
        "{} operations over {KILLS} kills; the longest took {:?}",
        report.operations, report.longest_stall
    );
    guest.power_off();
    assert!(exposure.close().success());
}
