//! VMs move to new keys while they run, are off or suspended, whatever is killed meanwhile.

use std::collections::BTreeSet;

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-key-marker-1f7a";
/// The number of writes is in `count`; `over` after a failed write.
const WRITE_ALL_THE_WHILE: &str = "(i=0; while dd if=text of=/dev/vdb bs=4096 conv=sync,fsync 2>/dev/null; \
    do i=$((i+1)); echo $i >count; done; echo over >count) &";
/// Prints the guest's count, which is empty for the moment in which the guest writes it.
const COUNT: &str = "until n=$(cat count); [ -n \"$n\" ]; do :; done; echo $n";
const READ: &str = "dd if=/dev/vda bs=4096 count=1 2>/dev/null | tr -d '\\000'";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_that_runs_moves_to_a_new_key_whoever_dies() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    std::fs::write(scratch.path("user-data"), "#cloud-config\n").unwrap();
    let create = "vm create web1 --memory 256M --net none --disk 64M --disk 32M --swap 32M --machine pc --user-data user-data";
    serving.runs(&format!("{create} {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console
        .session
        .run(&format!("echo {MARKER} > text; dd if=text of=/dev/vda bs=4096 conv=sync,fsync 2>&1"));
    // It writes all the time, and each write must be there.
    console.session.run(WRITE_ALL_THE_WHILE);

    serving.runs("vm dump create web1");
    let first = key(&serving);
    let moved = serving.runs("vm key rotate web1");
    let second = key(&serving);
    assert!(moved.contains(&format!("web1 is under key {second} of embedded")), "{moved}");
    assert_ne!(first, second);
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([second.clone()]));
    assert_eq!(volumes(&scratch).len(), 6, "two disks, swap, seed, console and a dump");
    let history = serving.runs(&format!("key history {first} --identity \"$PWD/home/control/auditor\""));
    assert!(history.contains("Revoke  "), "{history}");
    let refused = serving.is_refused(&format!("key rotate {second}"));
    assert!(refused.contains("strongroom vm key rotate web1"), "{refused}");

    // A supervisor that takes over gets the new key.
    for worker in serving.workers_of(&id) {
        kill_process(worker, Signal::KILL).unwrap();
    }
    assert!(console.session.run(READ).contains(MARKER));
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(READ).contains(MARKER));
    drop(console);

    // Killed at any moment, the VM keeps running, and the next call completes the move.
    for round in 0..3 {
        let (before, task) = (key(&serving), serving.json("vm key rotate web1 --no-wait"));
        let victim = match round {
            0 => serving.processes_of(&id)[0],
            1 => serving.process(&["serve", "--role host"]),
            _ => serving.process(&["serve", "--role control"]),
        };
        kill_process(victim, Signal::KILL).unwrap();
        serving.wait_until("web1", "has no task", |vm| vm["task"].is_null() && vm["power"] == "running");
        let done = serving.runs(&format!("task show {}", task["id"].as_str().unwrap()));
        assert_ne!(key(&serving), before, "round {round}: {done}");
        assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]), "round {round}");
    }
    let mut console = serving.console("web1");
    assert!(console.session.run(READ).contains(MARKER));
    let count =
        |said: String| said.trim().parse::<u64>().unwrap_or_else(|_| panic!("it wrote no more: {said}"));
    let before = count(console.session.run(COUNT));
    console.session.run(&format!("while [ $(cat count) -le {} ]; do :; done", before + 5));
    drop(console);

    // Its memory is sealed under its present key, and moves too.
    serving.runs("vm suspend web1");
    serving.runs("vm key rotate web1");
    assert_eq!(serving.vm("web1")["power"], "suspended");
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]));
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run(READ).contains(MARKER));
    count(console.session.run(COUNT));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert!(serving.runs("vm console web1 --history").contains(MARKER));
    serving.runs("vm dump open web1 1 --to opened");
    let opened = std::fs::read(scratch.path("opened")).unwrap();
    assert!(opened.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()));
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
fn a_vm_that_is_off_moves_with_all_that_it_keeps() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 256M --net none --disk 64M --uefi --tpm");
    serving.runs("vm create plain --memory 256M --net none --disk 64M --unencrypted");
    let first = key(&serving);
    // The move waits for an absent key server, and continues automatically.
    kill_process(serving.process(&["keyserver", "run"]), Signal::KILL).unwrap();
    serving.runs("vm key rotate web1");
    assert_ne!(key(&serving), first);
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]));
    let refused = serving.is_refused("vm key rotate plain");
    assert!(refused.contains("plain is not encrypted"), "{refused}");
    // The inventory is lost: the datastore has the new key.
    let second = key(&serving);
    serving.runs("vm unregister web1");
    serving.runs("vm register web1");
    assert_eq!(key(&serving), second);
    serving.end();
}

/// The VM's key in the inventory.
fn key(serving: &Serving<'_>) -> String {
    let told = serving.json("vm key status web1");
    let keys = told["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1, "{told}");
    assert_eq!(keys[0]["state"], "active", "{told}");
    keys[0]["key"].as_str().unwrap().to_owned()
}

/// The names of the VM's volumes.
fn volumes(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path("ds/web1")).unwrap().map(|entry| entry.unwrap().path());
    let volumes = entries.filter(|path| path.join("descriptor").exists());
    volumes.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// The keys of its volumes, from their descriptors.
fn keys_of_volumes(serving: &Serving<'_>, scratch: &Scratch) -> BTreeSet<String> {
    let keys = |name: String| {
        let told = serving.json(&format!("volume info ds/web1/{name}"));
        assert!(told["encryption"]["next_kek_id"].is_null(), "{told}");
        told["encryption"]["provider_key_id"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    volumes(scratch).into_iter().map(keys).collect()
}

/// Without its certificate and private key, the control plane still owns the VMs' keys.
#[test]
fn a_control_plane_that_lost_its_certificate_starts_its_vms() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    let first = key(&serving);
    serving.end();
    for lost in ["home/control/identity", "home/keyserver/local"] {
        std::fs::remove_dir_all(scratch.path(lost)).ok();
    }
    serving.start_again();
    let _place = serving.take_place();
    assert!(serving.runs("vm start web1").contains("web1 is running"));
    assert_eq!(key(&serving), first);
    serving.runs("vm key rotate web1");
    assert_ne!(key(&serving), first);
    serving.runs("vm stop web1 --force");
}
