//! A volume is plugged into a running guest with the commands that `volume expose --show qmp`
//! prints, used, and unplugged, again and again: each time its data is there, and the server keeps
//! no resources from the last time.

#![cfg(feature = "full")]

use std::time::Duration;

use serde_json::{Value, json};
use strongroom_system_tests::family::open_descriptors;
use strongroom_system_tests::{
    CommandLine, ExerciseReport, Guest, GuestPlan, Machine, Process, Protection, Scratch, Volume,
};

const CYCLES: u64 = 10;
/// Timeout of steps that take a second: a server's start and end, and a guest's release of a
/// device.
const DEADLINE: Duration = Duration::from_secs(60);

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
    let mut guest = GuestPlan::new(&scratch, machine.name()).machine(machine).boot();
    let (server, commands) = expose(&scratch, &volume, "--vhost-user");
    let mut descriptors = Vec::new();
    for cycle in 1..=CYCLES {
        plug(&mut guest, machine, &commands);
        if cycle > 1 {
            verify(&mut guest, cycle - 1);
        }
        exercise(&mut guest, cycle);
        // While the disk is in use, the resources of the previous session are certainly released.
        descriptors.push(open_descriptors(server.id()));
        unplug(&mut guest);
        guest.qmp().execute("chardev-remove", json!({ "id": "disk0" }));
    }
    assert!(server.terminate(DEADLINE).success());

    let (server, commands) = expose(&scratch, &volume, "--nbd");
    plug(&mut guest, machine, &commands);
    verify(&mut guest, CYCLES);
    unplug(&mut guest);
    guest.qmp().execute("blockdev-del", json!({ "node-name": "disk0" }));
    assert!(server.terminate(DEADLINE).success());
    guest.power_off();
    assert!(descriptors.iter().all(|count| *count == descriptors[0]), "{descriptors:?}");
    descriptors
}

/// Exposes the volume. Returns the printed QMP commands for a running guest.
fn expose(scratch: &Scratch, volume: &Volume<'_>, protocol: &str) -> (Process, Vec<Value>) {
    let [path, key_file] = [volume.path(), volume.key_file()].map(|path| path.to_string_lossy().into_owned());
    let address = format!("unix:{path}.socket");
    let mut server = CommandLine::new(scratch).start(
        "expose",
        &["volume", "expose", &path, "--key-file", &key_file, protocol, &address, "--show", "qmp"],
    );
    let mut command = || {
        let line = server.wait_for_line("a QMP command", DEADLINE, |line| line.trim().starts_with('{'));
        serde_json::from_str(&line).expect("a QMP command is JSON")
    };
    let commands = vec![command(), command()];
    (server, commands)
}

/// Executes the printed commands; the user chooses the bus.
fn plug(guest: &mut Guest, machine: Machine, commands: &[Value]) {
    for command in commands {
        let name = command["execute"].as_str().expect("a command has a name");
        let mut arguments = command["arguments"].clone();
        if name == "device_add" {
            arguments["bus"] = machine.plug().into();
        }
        guest.qmp().execute(name, arguments);
    }
    guest.session().wait_until("[ -b /dev/vda ]");
}

fn unplug(guest: &mut Guest) {
    let qmp = guest.qmp();
    qmp.execute("device_del", json!({ "id": "disk0" }));
    qmp.wait_for_event_that("DEVICE_DELETED", DEADLINE, |data| data["device"] == "disk0");
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
