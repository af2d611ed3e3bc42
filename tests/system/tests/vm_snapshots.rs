//! A VM's disks are kept as they are at one instant, and restored, whatever is killed meanwhile.

use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-vm-snapshot-marker-17c4";

/// Writes a text that ends in `mark` to the first block of a disk.
fn write(device: &str, mark: &str) -> String {
    format!("echo {MARKER}-{mark} > text; dd if=text of=/dev/{device} bs=4096 conv=sync,fsync 2>&1")
}

fn read(device: &str) -> String {
    format!("dd if=/dev/{device} bs=4096 count=1 2>/dev/null | tr -d '\\000'")
}

fn snapshots(serving: &Serving) -> Vec<Value> {
    serving.json("vm snapshot list web1")["items"].as_array().unwrap().clone()
}

/// A site with a VM of two disks.
fn with_vm<'scratch>(scratch: &'scratch Scratch, more: &str) -> (Serving<'scratch>, String) {
    let serving = Serving::start(scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --disk 32M {more} {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    (serving, id)
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_goes_back_to_what_its_disks_were_while_it_ran() {
    let scratch = Scratch::new();
    let (serving, id) = with_vm(&scratch, "");
    let _place = serving.take_place();

    // One of a VM that was never started.
    serving.runs("vm disk add web1 --size 16M --frontend nbd");
    serving.runs("vm snapshot create web1 empty");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    for device in ["vda", "vdb", "vdc"] {
        console.session.run(&write(device, "first"));
    }
    serving.runs("vm snapshot create web1 before-upgrade");
    let refused = serving.is_refused("vm snapshot create web1 before-upgrade");
    assert!(refused.contains("has a snapshot before-upgrade already"), "{refused}");
    for device in ["vda", "vdb", "vdc"] {
        console.session.run(&write(device, "second"));
        assert!(console.session.run(&read(device)).contains("second"), "{device}");
    }
    let refused = serving.is_refused("vm snapshot revert web1 before-upgrade");
    assert!(refused.contains("cannot change under its guest"), "{refused}");
    let refused = serving.is_refused("vm disk remove web1 disk1 --yes");
    assert!(refused.contains("is part of snapshot"), "{refused}");

    // The volumes have the same snapshot, and a later supervisor knows it.
    let listed = snapshots(&serving);
    assert_eq!(listed.len(), 2);
    let (empty, made) = (&listed[0], &listed[1]);
    assert_eq!(
        (&made["name"], &made["volumes"]),
        (&json!("before-upgrade"), &json!(["disk0", "disk1", "disk2"]))
    );
    assert_eq!((&made["parent"], &made["is_current"]), (&empty["id"], &json!(true)));
    for disk in ["disk0", "disk1", "disk2"] {
        let of_volume = &serving.json(&format!("volume snapshot list ds/web1/{disk}"))["snapshots"][1];
        assert_eq!((&of_volume["snapshot_id"], &of_volume["name"]), (&made["id"], &made["name"]), "{disk}");
    }
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(&read("vdb")).contains("second"));
    assert_eq!(snapshots(&serving), listed);
    drop(console);

    serving.runs("vm stop web1 --force");
    serving.runs("vm disk resize web1 disk1 --size 48M");
    serving.runs("vm snapshot revert web1 before-upgrade --keep-as failed-upgrade");
    let sizes = serving.runs("vm disk list web1");
    assert!(sizes.contains("disk1  32M"), "{sizes}");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    for disk in ["vda", "vdb", "vdc"] {
        let text = console.session.run(&read(disk));
        assert!(text.contains(&format!("{MARKER}-first")), "{disk}: {text}");
    }
    assert_eq!(console.session.run("cat /sys/block/vdb/size").trim(), (32 << 11).to_string());
    drop(console);
    serving.runs("vm stop web1 --force");

    // What was left is still there, and one that nobody needs goes.
    serving.runs("vm snapshot delete web1 before-upgrade --yes");
    serving.runs("vm snapshot revert web1 failed-upgrade --discard --yes");
    let sizes = serving.runs("vm disk list web1");
    assert!(sizes.contains("disk1  48M"), "{sizes}");
    let names: Vec<_> = snapshots(&serving).iter().map(|snapshot| snapshot["name"].clone()).collect();
    assert_eq!(names, ["empty", "failed-upgrade"]);
    let shown = serving.runs("vm snapshot show web1 failed-upgrade");
    assert!(shown.contains("disk0, disk1, disk2") && shown.contains("current     yes"), "{shown}");
    serving.runs("vm key rotate web1");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    for disk in ["vda", "vdb", "vdc"] {
        assert!(console.session.run(&read(disk)).contains("second"), "{disk}");
    }
    serving.runs("vm snapshot delete web1 empty --yes");
    serving.runs("vm snapshot delete web1 failed-upgrade --yes");
    assert!(console.session.run(&read("vda")).contains("second"));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert_eq!(snapshots(&serving), Vec::<Value>::new());
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_goes_on_where_it_was_when_a_snapshot_had_its_memory() {
    let scratch = Scratch::new();
    let (serving, id) = with_vm(&scratch, "--machine pc");
    let _place = serving.take_place();
    let refused = serving.is_refused("vm snapshot create web1 off --memory");
    assert!(refused.contains("without memory"), "{refused}");
    serving.runs("vm disk add web1 --size 16M --frontend nbd");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write("vda", "first"));
    // It is only in the memory of the guest.
    console.session.run(&format!("only={MARKER}-in-memory; echo 3 > /proc/sys/vm/drop_caches"));
    let generation = || serving.vm("web1")["generation"].clone();
    let before = generation();
    serving.runs("vm snapshot create web1 in-the-middle --memory");
    assert_eq!(serving.vm("web1")["power"], "running");
    let made = &snapshots(&serving)[0];
    assert!(made["memory"]["bytes"].as_u64().unwrap() > 1 << 20, "{made}");
    let volume = format!("memory-{}", made["id"].as_str().unwrap());
    assert!(scratch.path("ds/web1").join(&volume).exists());
    for device in ["vda", "vdb", "vdc"] {
        console.session.run(&write(device, "second"));
    }
    console.session.run("only=changed");
    drop(console);

    // The supervisor dies, a key is rotated, and layers are merged; the memory still belongs to it.
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    drop(serving.console_when_taken_over("web1", &id));
    serving.runs("vm snapshot create web1 later --memory");
    serving.runs("vm stop web1 --force");
    serving.runs("vm key rotate web1");
    serving.runs("vm disk resize web1 disk1 --size 48M");
    for _ in 0..2 {
        serving.runs("vm snapshot revert web1 in-the-middle --discard --yes");
        assert_eq!(serving.vm("web1")["power"], "suspended");
        let refused = serving.is_refused("vm snapshot revert web1 later");
        assert!(refused.contains("--discard-memory"), "{refused}");
        serving.runs("vm start web1");
        let mut console = serving.console("web1");
        assert!(console.session.run("echo $only").contains(&format!("{MARKER}-in-memory")));
        assert!(console.session.run(&read("vda")).contains(&format!("{MARKER}-first")));
        assert!(!console.session.run(&read("vdc")).contains(MARKER), "it was written later");
        console.session.run(&write("vda", "third"));
        assert!(console.session.run(&read("vda")).contains("third"));
        drop(console);
        serving.runs("vm stop web1 --force");
    }
    assert_ne!(generation(), before);
    serving.runs("vm snapshot delete web1 in-the-middle --yes");
    assert!(!scratch.path("ds/web1").join(&volume).exists());

    // The memory fits its own snapshot alone, and a VM with its hardware alone.
    let later = snapshots(&serving)[0].clone();
    let place = scratch.path("ds/web1").join(format!("memory-{}", later["id"].as_str().unwrap()));
    std::fs::rename(&place, scratch.path("elsewhere")).unwrap();
    let refused = serving.is_refused("vm snapshot revert web1 later");
    assert!(refused.contains("--disks-only"), "{refused}");
    std::fs::rename(scratch.path("elsewhere"), &place).unwrap();
    serving.runs("vm set web1 --memory 320M");
    let refused = serving.is_refused("vm snapshot revert web1 later");
    assert!(refused.contains("configuration was changed"), "{refused}");
    serving.runs("vm snapshot revert web1 later --disks-only");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(&read("vda")).contains("second"));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

/// Writes a text that ends in `mark` to the last block of the swap disk, as the guest's kernel
/// would swap out a page.
fn swap_out(mark: &str) -> String {
    format!("echo {MARKER}-{mark} > text; dd if=text of=/dev/vdc bs=4096 seek=4095 conv=sync,fsync 2>&1")
}

const SWAPPED_OUT: &str = "dd if=/dev/vdc bs=4096 skip=4095 count=1 2>/dev/null | tr -d '\\000'";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_snapshot_with_memory_has_what_its_guest_has_swapped_out() {
    let scratch = Scratch::new();
    let (serving, id) = with_vm(&scratch, "--machine pc --swap 16M");
    let _place = serving.take_place();
    let swap = scratch.path("ds/web1/swap0");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&format!("only={MARKER}-in-memory"));
    console.session.run(&swap_out("first"));
    serving.runs("vm snapshot create web1 with --memory");
    serving.runs("vm snapshot create web1 without");
    let volumes = |at: usize| snapshots(&serving)[at]["volumes"].clone();
    assert_eq!(volumes(0), json!(["disk0", "disk1", "swap0"]));
    assert_eq!(volumes(1), json!(["disk0", "disk1"]));
    console.session.run(&swap_out("second"));
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(SWAPPED_OUT).contains("second"));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert!(swap.exists(), "a snapshot has a part of it");
    for refused in ["vm disk resize web1 swap0 --size 32M", "vm disk remove web1 swap0 --yes"] {
        let refused = serving.is_refused(refused);
        assert!(refused.contains("swap0 is part of snapshot with"), "{refused}");
    }
    serving.runs("vm key rotate web1");

    // It boots with an empty swap area, as ever.
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let label = "dd if=/dev/vdc bs=1 skip=1052 count=5 2>/dev/null";
    assert_eq!(console.session.run(label), "swap0");
    console.session.run("swapon /dev/vdc && swapoff /dev/vdc");
    console.session.run(&swap_out("third"));
    drop(console);
    serving.runs("vm stop web1 --force");

    for _ in 0..2 {
        serving.runs("vm snapshot revert web1 with --discard --yes");
        assert_eq!(serving.vm("web1")["power"], "suspended");
        serving.runs("vm start web1");
        let mut console = serving.console("web1");
        assert!(console.session.run("echo $only").contains(&format!("{MARKER}-in-memory")));
        assert!(console.session.run(SWAPPED_OUT).contains(&format!("{MARKER}-first")));
        console.session.run(&swap_out("fourth"));
        drop(console);
        serving.runs("vm stop web1 --force");
    }
    serving.runs("vm snapshot revert web1 with --disks-only --discard --yes");
    serving.runs("vm snapshot delete web1 with --yes");
    assert!(!swap.exists(), "no snapshot has it any more");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

/// A merge puts another top on a disk at any time, and a snapshot does while the VM is suspended.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_suspended_guest_goes_on_over_disks_with_other_layers() {
    let scratch = Scratch::new();
    let (serving, _) = with_vm(&scratch, "--machine pc");
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&format!("only={MARKER}-in-memory"));
    serving.runs("vm snapshot create web1 gone");
    console.session.run(&write("vda", "first"));
    drop(console);
    serving.runs("vm snapshot delete web1 gone --yes");
    serving.runs("vm suspend web1");
    serving.runs("vm snapshot create web1 while-suspended");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run("echo $only").contains(&format!("{MARKER}-in-memory")));
    assert!(console.session.run(&read("vda")).contains(&format!("{MARKER}-first")));
    drop(console);
    serving.runs("vm stop web1 --force");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_snapshot_is_of_all_disks_or_of_none_whoever_is_killed() {
    let scratch = Scratch::new();
    let (serving, id) = with_vm(&scratch, "--machine pc");
    let _place = serving.take_place();
    serving.runs("vm start web1");
    serving.console("web1").wait_until_ready();
    let is_let_be = || drop(serving.wait_until("web1", "is let be", |vm| vm["task"].is_null()));
    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for (round, victim) in everybody.iter().enumerate() {
        serving.runs(&format!("vm snapshot create web1 round-{round} --no-wait"));
        kill_process(victim(), Signal::KILL).unwrap();
        is_let_be();
        let mut console = serving.console_when_taken_over("web1", &id);
        console.session.run(&write("vdb", &round.to_string()));
        assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-{round}")));
        drop(console);
        // Those who were left have done the task again, or it has failed and there is none.
        if snapshots(&serving).is_empty() {
            serving.wait_until_told(&format!("vm snapshot create web1 round-{round}"), "made snapshot");
        }
        let of_vm = snapshots(&serving);
        assert_eq!(of_vm.last().unwrap()["name"], format!("round-{round}"));
        for disk in ["disk0", "disk1"] {
            let of_volume = serving.json(&format!("volume snapshot list ds/web1/{disk}"));
            let ids: Vec<_> =
                of_volume["snapshots"].as_array().unwrap().iter().map(|one| &one["snapshot_id"]).collect();
            assert_eq!(ids, of_vm.iter().map(|one| &one["id"]).collect::<Vec<_>>(), "{disk}");
        }
        serving.runs(&format!("vm snapshot delete web1 round-{round} --yes --no-wait"));
        kill_process(victim(), Signal::KILL).unwrap();
        is_let_be();
        drop(serving.console_when_taken_over("web1", &id));
        if !snapshots(&serving).is_empty() {
            serving.runs(&format!("vm snapshot delete web1 round-{round} --yes"));
        }
        assert_eq!(snapshots(&serving), Vec::<Value>::new());
    }
    serving.runs("vm stop web1 --force");

    // A revert of which a part is done: the VM does not start until it is done again.
    serving.runs("vm snapshot create web1 good");
    serving.runs("vm snapshot revert web1 good --keep-as left --no-wait");
    kill_process(host(), Signal::KILL).unwrap();
    is_let_be();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-2")));
    drop(console);
    serving.runs("vm stop web1 --force");
}

/// Gives web1 a schedule. The first snapshot is due within five minutes, at a time that depends on
/// the VM's id: the VM is made again until that is soon, but not before it can run.
fn soon_due(serving: &Serving) {
    for _ in 0..8 {
        for minutes in 5..13 {
            serving.runs(&format!("vm snapshot schedule web1 --every {minutes}m --keep 1"));
        }
        let rules = serving.json("vm snapshot schedule web1")["rules"].clone();
        let due = rules.as_array().unwrap().iter().map(|rule| rule["next_unix_seconds"].as_u64().unwrap());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        if (now + 10..now + 40).contains(&due.min().unwrap()) {
            return;
        }
        serving.runs("vm delete web1 --yes");
        let guest = serving.test_guest();
        serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --disk 32M {guest}"));
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_schedule_makes_snapshots_of_a_running_vm_by_itself() {
    let scratch = Scratch::new();
    let (serving, _) = with_vm(&scratch, "");
    let _place = serving.take_place();
    let refused = serving.is_refused("vm snapshot schedule web1 --every 1m --keep 2");
    assert!(refused.contains("every 5m to 366d"), "{refused}");
    let refused = serving.is_refused("vm snapshot schedule web1 --every 1h --keep 27");
    assert!(refused.contains("26 is the most"), "{refused}");
    soon_due(&serving);
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write("vdb", "first"));
    let control = || serving.process(&["serve", "--role control"]);
    kill_process(control(), Signal::KILL).unwrap();
    let until = Instant::now() + Duration::from_secs(600);
    let by_itself = loop {
        let told = serving.wait_until("web1", "answers", |_| true);
        if let Some(made) = told["snapshots"].as_array().unwrap().first() {
            break made["name"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < until, "no snapshot: {}", serving.runs("vm snapshot schedule web1"));
    };
    assert!(by_itself.starts_with("every-") && by_itself.ends_with('Z'), "{by_itself}");
    serving.wait_until_told("vm snapshot schedule web1", &by_itself);
    let tasks = serving.json("task list");
    let by = |task: &&Value| task["kind"] == "vm_snapshot_create" && task["by"] == "strongroom-schedule";
    assert!(tasks["items"].as_array().unwrap().iter().any(|task| by(&task)), "{tasks}");
    serving.runs("vm snapshot schedule web1 --none");
    let told = serving.runs("vm snapshot schedule web1");
    assert!(told.contains("no snapshots are made automatically"), "{told}");

    // It is a snapshot as any other.
    serving.wait_until("web1", "is let be", |vm| vm["task"].is_null());
    console.session.run(&write("vdb", "second"));
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs(&format!("vm snapshot revert web1 {by_itself}"));
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(&format!("{MARKER}-first")));
    drop(console);
    serving.runs("vm stop web1 --force");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_clone_has_what_its_origin_had_under_a_key_of_its_own() {
    let scratch = Scratch::new();
    let (serving, _) = with_vm(&scratch, "--integrity");
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write("vdb", "first"));
    serving.runs("vm snapshot create web1 first");
    console.session.run(&write("vdb", "second"));
    // Its origin runs and goes on writing.
    serving.runs("vm clone web1 web2 --snapshot first");
    assert!(console.session.run(&read("vdb")).contains("second"));
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs("vm clone web1 web3");
    let key = |vm: &str| {
        serving.json(&format!("volume info ds/{vm}/disk1"))["encryption"]["provider_key_id"].clone()
    };
    let (origin, clone, other) = (key("web1"), key("web2"), key("web3"));
    assert!(origin != clone && clone != other && origin != other);
    // Its origin and its snapshots are not needed any more.
    serving.runs("vm delete web1 --yes");
    for (vm, mark) in [("web2", "first"), ("web3", "second")] {
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
