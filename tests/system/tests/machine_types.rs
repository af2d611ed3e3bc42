//! A guest on each machine type, with a disk over vhost-user and one over NBD at once: both keep
//! their data. And guests whose disks are attached with the exact arguments that `volume expose`
//! prints, whatever the volume's name.

#![cfg(feature = "full")]

use std::time::Duration;

use strongroom_system_tests::{CommandLine, ExerciseReport, GuestPlan, Machine, Protection, Scratch, Volume};

/// A name with special characters of every syntax that it passes through.
const ODD_NAME: &str = "vm 1, \"o'dd\" <&>";
const EXPOSE_DEADLINE: Duration = Duration::from_secs(60);
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

#[test]
fn what_is_printed_for_vhost_user_boots() {
    boots_as_printed("--vhost-user");
}

#[test]
fn what_is_printed_for_nbd_boots() {
    boots_as_printed("--nbd");
}

fn boots_as_printed(protocol: &str) {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, ODD_NAME, "64M", Protection::Encrypted);
    let [path, key_file] = [volume.path(), volume.key_file()].map(|path| path.to_string_lossy().into_owned());
    let address = format!("unix:{path}.socket");
    let mut server = CommandLine::new(&scratch)
        .start("expose", &["volume", "expose", &path, "--key-file", &key_file, protocol, &address]);
    let is_arguments = |line: &str| line.trim().starts_with("qemu-system-x86_64 ");
    let line = server.wait_for_line("QEMU's arguments", EXPOSE_DEADLINE, is_arguments);
    let (_, arguments) = line.split_once(" ... ").expect("three dots are what the person has already");
    let mut guest = GuestPlan::new(&scratch, "guest").pasted(arguments).boot();
    ExerciseReport::parse(&guest.run(&format!("{EXERCISE} --device /dev/vda"))).assert_clean();
    guest.power_off();
    assert!(server.terminate(EXPOSE_DEADLINE).success());
}
