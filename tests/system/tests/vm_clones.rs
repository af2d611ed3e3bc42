//! Linked clones and templates, as a user has them: with real guests, and whoever is killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-vm-clone-marker-90be";

/// How long a task may take whose processes were killed.
const ENDS_WITHIN: Duration = Duration::from_secs(120);

/// Writes a text that ends in `mark` to the first block of a disk.
fn write(device: &str, mark: &str) -> String {
    format!("echo {MARKER}-{mark} > text; dd if=text of=/dev/{device} bs=4096 conv=sync,fsync 2>&1")
}

fn read(device: &str) -> String {
    format!("dd if=/dev/{device} bs=4096 count=1 2>/dev/null | tr -d '\\000'")
}

/// A site with a VM of two disks.
fn with_vm<'scratch>(scratch: &'scratch Scratch, name: &str, more: &str) -> Serving<'scratch> {
    let serving = Serving::start(scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create {name} --memory 256M --net none --disk 64M --disk 32M {more} {guest}"));
    serving
}

/// The bytes of a directory and of all files below it, each file once, whatever names it has.
fn bytes_below(directory: &Path, found: &mut BTreeMap<u64, u64>) {
    let facts = fs::metadata(directory).unwrap();
    found.insert(facts.ino(), facts.blocks() * 512);
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let facts = entry.metadata().unwrap();
        match facts.is_dir() {
            true => bytes_below(&entry.path(), found),
            false => drop(found.insert(facts.ino(), facts.blocks() * 512)),
        }
    }
}

/// What `volume info` says of these VMs' disks adds up with the files' space, each counted once.
fn space_adds_up(serving: &Serving<'_>, scratch: &Scratch, vms: &[&str]) {
    for disk in ["disk0", "disk1"] {
        let (mut files, mut own, mut shared) = (BTreeMap::new(), 0, 0);
        for vm in vms {
            bytes_below(&scratch.path(&format!("ds/{vm}/{disk}")), &mut files);
            let info = serving.json(&format!("volume info ds/{vm}/{disk}"));
            let bytes = |name: &str| info[name].as_u64().unwrap();
            own += bytes("allocated_bytes") - bytes("shared_bytes");
            // All of them share the same.
            shared = bytes("shared_bytes");
            assert!(shared > 0, "{vm}: {info}");
        }
        assert_eq!(own + shared, files.values().sum::<u64>(), "{disk}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn linked_clones_of_a_template_go_their_own_ways() {
    let scratch = Scratch::new();
    let serving = with_vm(&scratch, "golden", "--integrity");
    let _place = serving.take_place();
    serving.runs("vm start golden");
    let mut console = serving.console("golden");
    console.wait_until_ready();
    console.session.run(&write("vdb", "first"));
    drop(console);
    let refused = serving.is_refused("vm template golden");
    assert!(refused.contains("a template is off"), "{refused}");
    serving.runs("vm stop golden --force");
    serving.runs("vm template golden");
    let refused = serving.is_refused("vm start golden");
    assert!(refused.contains("is a template") && refused.contains("--undo"), "{refused}");
    assert!(serving.runs("vm list").contains("template"));

    for clone in ["web1", "web2"] {
        serving.runs(&format!("vm clone golden {clone} --linked"));
        let origin = &serving.vm(clone)["origin"];
        assert_eq!((&origin["name"], &origin["linked"]), (&"golden".into(), &true.into()), "{origin}");
    }
    space_adds_up(&serving, &scratch, &["golden", "web1", "web2"]);
    let key = |vm: &str| {
        serving.json(&format!("volume info ds/{vm}/disk1"))["encryption"]["provider_key_id"].clone()
    };
    assert!(key("golden") != key("web1") && key("web1") != key("web2"));

    // The first one writes, and does not see what becomes of the others.
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-first")));
    console.session.run(&write("vdb", "web1"));
    drop(console);
    serving.runs("vm stop web1 --force");

    // The second one runs while its origin loses its snapshot, and goes.
    serving.runs("vm start web2");
    let mut console = serving.console("web2");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-first")));
    let refused = serving.is_refused("vm snapshot delete golden template --yes");
    assert!(refused.contains("is the content of template golden"), "{refused}");
    serving.runs("vm template golden --undo");
    serving.runs("vm snapshot delete golden template --yes");
    let info = serving.runs("volume info ds/golden/disk1");
    assert!(info.contains("wait until no other volume has them"), "{info}");
    let refused = serving.is_refused("vm delete golden --yes");
    assert!(refused.contains("web1, web2") && refused.contains("--leave-to-clones"), "{refused}");
    let of_golden = key("golden");
    let said = serving.runs("vm delete golden --yes --leave-to-clones");
    let destroy = format!("key destroy {} --reason 'golden is gone'", of_golden.as_str().unwrap());
    let refused = serving.is_refused(&destroy);
    assert!(refused.contains("ds/web1, ") && refused.contains("ds/web2"), "{refused}");
    assert!(said.contains("--leave-to-clones") && refused.contains("--leave-to-clones"), "{said}\n{refused}");
    serving.runs(&format!("{destroy} --leave-to-clones"));
    assert_eq!(serving.vm("web2")["origin"]["is_gone"], true);
    serving.runs("vm key rotate web2");
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-first")));
    console.session.run(&write("vdb", "web2"));
    serving.runs("vm snapshot create web2 own");
    console.session.run(&write("vdb", "later"));
    drop(console);
    serving.runs("vm stop web2 --force");
    serving.runs("vm snapshot revert web2 own --discard --yes");
    space_adds_up(&serving, &scratch, &["web1", "web2"]);

    for (vm, mark) in [("web1", "web1"), ("web2", "web2")] {
        serving.runs(&format!("vm check {vm} --data"));
        serving.runs(&format!("vm start {vm}"));
        let mut console = serving.console(vm);
        console.wait_until_ready();
        let text = console.session.run(&read("vdb"));
        assert!(text.contains(&format!("{MARKER}-{mark}")), "{vm}: {text}");
        drop(console);
        serving.runs(&format!("vm stop {vm} --force"));
    }
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_linked_clone_is_made_or_not_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = with_vm(&scratch, "web1", "--machine pc");
    let _place = serving.take_place();
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    serving.runs("vm start web1");
    serving.console("web1").wait_until_ready();
    let is_let_be = || drop(serving.wait_until("web1", "is let be", |vm| vm["task"].is_null()));
    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for (round, victim) in everybody.iter().enumerate() {
        let mut console = serving.console_when_taken_over("web1", &id);
        console.session.run(&write("vdb", &round.to_string()));
        drop(console);
        serving.runs("vm clone web1 web2 --linked --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        is_let_be();
        let mut console = serving.console_when_taken_over("web1", &id);
        let clone = || {
            let listed = serving.json("vm list");
            listed["items"].as_array().unwrap().iter().find(|vm| vm["name"] == "web2").cloned()
        };
        let until = Instant::now() + ENDS_WITHIN;
        while clone().is_some_and(|vm: Value| !vm["task"].is_null()) {
            assert!(Instant::now() < until, "round {round}: the task goes on");
        }
        // Those who were left have done the task again, or it has failed and nothing is there.
        if clone().is_none() {
            serving.wait_until_told("vm clone web1 web2 --linked", "is a linked clone");
        }
        console.session.run(&write("vdb", "its-origin-goes-on"));
        // Its origin loses the snapshot while it runs, and the clone is what it was.
        for snapshot in serving.json("vm snapshot list web1")["items"].as_array().unwrap() {
            serving.runs(&format!("vm snapshot delete web1 {} --yes", snapshot["name"].as_str().unwrap()));
        }
        assert!(console.session.run(&read("vdb")).contains("its-origin-goes-on"));
        drop(console);
        serving.runs("vm check web2 --data");
        let names = fs::read_dir(scratch.path("ds")).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name.to_string_lossy().starts_with(".strongroom-vm-new")).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        serving.runs("vm delete web2 --yes");
    }
    serving.runs("vm clone web1 web3 --linked");
    serving.runs("vm stop web1 --force");
    serving.runs("vm start web3");
    let mut console = serving.console("web3");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains("its-origin-goes-on"));
    drop(console);
    serving.runs("vm stop web3 --force");
}

/// The inventory is lost, and every VM is registered from what the datastore has of it.
#[test]
fn the_lineage_of_clones_is_found_again() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --net none --disk 8M --disk 8M");
    serving.runs("vm clone web1 web2 --linked");
    serving.runs("vm clone web2 web3 --linked");
    serving.runs("vm clone web1 full");
    serving.runs("disk clone web1/disk1 data1 --linked");
    let lineages = || {
        let of = |vm: &str| (serving.vm(vm)["origin"].clone(), serving.vm(vm)["linked_clones"].clone());
        ["web1", "web2", "web3", "full"].map(of)
    };
    let before = lineages();
    assert_eq!(before[0].1, serde_json::json!(["data1", "web2", "web3"]));
    assert_eq!(before[2].0["name"], "web2");
    for vm in ["web1", "web2", "web3", "full"] {
        serving.runs(&format!("vm unregister {vm}"));
    }
    serving.runs("datastore rebuild ds");
    assert_eq!(lineages(), before);
    let refused = serving.is_refused("vm delete web1 --yes");
    assert!(refused.contains("data1, web2, web3") && refused.contains("--leave-to-clones"), "{refused}");
    // It goes on: a clone of what was registered shares with them, too.
    serving.runs("vm clone web3 web4 --linked");
    assert_eq!(serving.vm("web1")["linked_clones"], serde_json::json!(["data1", "web2", "web3", "web4"]));
}

/// The names of a VM's snapshots.
fn snapshots(serving: &Serving<'_>, vm: &str) -> Vec<Value> {
    let listed = serving.json(&format!("vm snapshot list {vm}"));
    listed["items"].as_array().unwrap().iter().map(|one| one["name"].clone()).collect()
}

/// Whether a task is not over, or nobody says so.
fn tasks_are_open(serving: &Serving<'_>) -> bool {
    let Ok(listed) = serving.answer("task list") else { return true };
    let listed: Value = serde_json::from_str(&listed).unwrap();
    listed["items"].as_array().unwrap().iter().any(|task| task["state"] == "running")
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_copy_of_a_vm_that_runs_leaves_no_snapshot_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = with_vm(&scratch, "web1", "--machine pc");
    let _place = serving.take_place();
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write("vdb", "first"));
    serving.runs("vm clone web1 web2");
    assert_eq!(snapshots(&serving, "web1"), Vec::<Value>::new());
    console.session.run(&write("vdb", "second"));
    drop(console);

    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for (round, victim) in everybody.iter().enumerate() {
        serving.runs("vm clone web1 web3 --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        let until = Instant::now() + ENDS_WITHIN;
        while tasks_are_open(&serving) {
            assert!(Instant::now() < until, "round {round}: the task goes on");
        }
        drop(serving.console_when_taken_over("web1", &id));
        assert_eq!(snapshots(&serving, "web1"), Vec::<Value>::new(), "round {round}");
        let listed = serving.json("vm list");
        if listed["items"].as_array().unwrap().iter().any(|vm| vm["name"] == "web3") {
            serving.runs("vm delete web3 --yes");
        }
    }
    // The layer of the snapshot is merged while the guest runs, and loses nothing.
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-second")));
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs("vm check web2 --data");
    serving.runs("vm start web2");
    let mut console = serving.console("web2");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-first")));
    drop(console);
    serving.runs("vm stop web2 --force");
}
