//! A guest on each machine type, with a disk over vhost-user and one over NBD at once: both hold what was written.

#![cfg(feature = "full")]

use std::time::Duration;

use strongroom_system_tests::{ExerciseReport, GuestPlan, Machine, Protection, Scratch, Volume};

const EXERCISE: &str = "diskexercise --length 32M --threads 4 --ops 200";

#[test]
fn pc_has_both_kinds_of_disk() {
    println!("pc: up after {:?}", has_both_kinds_of_disk(Machine::Pc));
}

#[test]
fn q35_has_both_kinds_of_disk() {
    println!("q35: up after {:?}", has_both_kinds_of_disk(Machine::Q35));
}

/// Returns how long the guest took to boot.
fn has_both_kinds_of_disk(machine: Machine) -> Duration {
    let scratch = Scratch::new();
    let shared = Volume::create(&scratch, "shared", "64M", Protection::Encrypted);
    let copied = Volume::create(&scratch, "copied", "96M", Protection::Encrypted);
    let (vhost_user, nbd) = (shared.expose_vhost_user(), copied.expose());
    let mut guest = GuestPlan::new(&scratch, machine.name())
        .machine(machine)
        .vhost_user(vhost_user.socket())
        .nbd(nbd.socket())
        .boot();
    assert_eq!(guest.run("cat /sys/block/vda/size /sys/block/vdb/size"), "131072\n196608\n");
    for device in ["/dev/vda", "/dev/vdb"] {
        ExerciseReport::parse(&guest.run(&format!("{EXERCISE} --device {device}"))).assert_clean();
    }
    let boot_time = guest.boot_time();
    guest.power_off();
    assert!(vhost_user.close().success());
    assert!(nbd.close().success());
    boot_time
}
