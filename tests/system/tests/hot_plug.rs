//! A volume is plugged into a running guest, used, and unplugged, again and again: each time it holds what it held,
//! and the server keeps nothing of the guests' last time.

#![cfg(feature = "full")]

use std::time::Duration;

use serde_json::json;
use strongroom_system_tests::family::open_descriptors;
use strongroom_system_tests::{
    ExerciseReport, Exposure, Guest, GuestPlan, Machine, Protection, Scratch, Volume,
};

const CYCLES: u64 = 10;
/// From asking the guest for the device to its letting go of it.
const UNPLUG_DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn plugs_into_pc_ten_times() {
    println!("pc: {CYCLES} cycles, descriptors of the server in each: {:?}", plugs_ten_times(Machine::Pc));
}

#[test]
fn plugs_into_q35_ten_times() {
    println!("q35: {CYCLES} cycles, descriptors of the server in each: {:?}", plugs_ten_times(Machine::Q35));
}

/// Returns how many descriptors the server had open each time.
fn plugs_ten_times(machine: Machine) -> Vec<usize> {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let mut guest = GuestPlan::new(&scratch, machine.name()).machine(machine).boot();
    let mut descriptors = Vec::new();
    for cycle in 1..=CYCLES {
        plug(&mut guest, machine, &exposure);
        if cycle > 1 {
            verify(&mut guest, cycle - 1);
        }
        exercise(&mut guest, cycle);
        // With the disk in use, the session before this one is over, and its end is no matter of moments.
        descriptors.push(open_descriptors(exposure.process().id()));
        unplug(&mut guest);
    }
    guest.power_off();
    assert!(descriptors.iter().all(|count| *count == descriptors[0]), "{descriptors:?}");
    assert!(exposure.close().success());
    descriptors
}

fn plug(guest: &mut Guest, machine: Machine, exposure: &Exposure) {
    let address = json!({ "type": "unix", "data": { "path": exposure.socket() } });
    let socket = json!({ "addr": address, "server": false, "reconnect": 1 });
    let backend = json!({ "type": "socket", "data": socket });
    guest.qmp().execute("chardev-add", json!({ "id": "plugged", "backend": backend }));
    guest.qmp().execute(
        "device_add",
        json!({ "driver": "vhost-user-blk-pci", "id": "plugged", "chardev": "plugged", "bus": machine.plug() }),
    );
    guest.session().wait_until("[ -b /dev/vda ]");
}

fn unplug(guest: &mut Guest) {
    let qmp = guest.qmp();
    qmp.execute("device_del", json!({ "id": "plugged" }));
    qmp.wait_for_event_that("DEVICE_DELETED", UNPLUG_DEADLINE, |data| data["device"] == "plugged");
    qmp.execute("chardev-remove", json!({ "id": "plugged" }));
    guest.run("! [ -e /dev/vda ]");
}

fn exercise(guest: &mut Guest, seed: u64) {
    ExerciseReport::parse(&guest.run(&command(seed))).assert_clean();
}

fn verify(guest: &mut Guest, seed: u64) {
    ExerciseReport::parse(&guest.run(&format!("{} --verify-only", command(seed)))).assert_clean();
}

fn command(seed: u64) -> String {
    format!("diskexercise --device /dev/vda --length 8M --threads 4 --ops 50 --seed {seed}")
}
