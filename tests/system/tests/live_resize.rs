//! A volume grows while a guest writes to it: the guest sees the new size, uses the new space, and
//! its I/O continues.

#![cfg(feature = "full")]

use strongroom_system_tests::{Exercise, ExerciseReport, GuestPlan, Machine, Protection, Scratch, Volume};

/// Operations before and after the growth.
const OPERATIONS: u64 = 200;
/// The last part of the new space, up to the end of the volume.
const EXERCISE_OF_THE_NEW: &str =
    "diskexercise --device /dev/vda --offset 192M --length 64M --threads 4 --ops 200";

#[test]
fn a_guest_sees_its_volume_grow() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "128M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let plan = GuestPlan::new(&scratch, "guest").machine(Machine::Q35);
    let mut guest = plan.vhost_user(exposure.socket()).boot();
    assert_eq!(sectors(&guest.run("cat /sys/block/vda/size")), 128 << 11);

    let mut exercise = Exercise::start(&mut guest, "/dev/vda", "128M");
    exercise.wait_for_more(OPERATIONS);
    volume.command("resize", &["--size", "256M"]).success();
    exercise.wait_for_more(OPERATIONS);
    exercise.stop().assert_clean();

    guest.session().wait_until(&format!("[ $(cat /sys/block/vda/size) = {} ]", 256 << 11));
    assert!(guest.run("dmesg").contains("[vda] new size: 524288 512-byte logical blocks"));
    ExerciseReport::parse(&guest.run(EXERCISE_OF_THE_NEW)).assert_clean();
    guest.power_off();
    assert!(exposure.close().success());
}

fn sectors(text: &str) -> u64 {
    text.trim().parse().expect("a size is a number")
}
