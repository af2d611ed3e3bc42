//! The instrument that the other tests rely on: diskexercise finds no error on an intact disk, and
//! finds damage.

#![cfg(feature = "full")]

use std::time::Duration;

use strongroom_system_tests::{ExerciseReport, Guest, Protection, Scratch, Volume};

const EXERCISE_DEADLINE: Duration = Duration::from_secs(120);
/// About ten times the size of the region, so that hardly any sector stays unwritten.
const EXERCISE: &str = "diskexercise --device /dev/vda --length 4M --threads 2 --ops 400";
/// In the middle of the first thread's half.
const DAMAGE: &str = "dd if=/dev/zero of=/dev/vda bs=4096 seek=256 count=4 oflag=direct conv=notrunc";
const DAMAGED_SECTORS: u64 = 4 * 4096 / 512;

#[test]
fn diskexercise_notices_damage() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Unencrypted);
    let exposure = volume.expose();
    let mut guest = Guest::boot(&scratch, "guest", &[exposure.socket()]);
    ExerciseReport::parse(&guest.run(EXERCISE)).assert_clean();
    let verify = format!("{EXERCISE} --verify-only");
    ExerciseReport::parse(&guest.run(&verify)).assert_clean();

    guest.run(DAMAGE);
    let damaged = guest.try_run(&verify, EXERCISE_DEADLINE);
    let report = ExerciseReport::parse(&damaged.text);
    assert_eq!((damaged.status, report.errors), (1, 0), "{}", report.text);
    assert_eq!(report.mismatches, DAMAGED_SECTORS, "{}", report.text);
    guest.power_off();
    assert!(exposure.close().success());
}
