//! All data of a VM is re-encrypted, running or off, whoever is killed, and its guest finds it.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-data-marker-6d0e";
/// What the guest writes after its snapshot.
const LATER: &str = "strongroom-data-marker-later";
const READ: &str = "dd if=/dev/vda bs=4096 count=1 2>/dev/null | tr -d '\\000'";
const READ_LAST: &str = "dd if=/dev/vda bs=4096 skip=4000 count=1 2>/dev/null | tr -d '\\000'";

fn write(text: &str, block: u32) -> String {
    format!("echo {text} > text; dd if=text of=/dev/vda bs=4096 seek={block} conv=sync,fsync 2>&1")
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_is_re_encrypted_while_it_is_off_and_is_what_it_was() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    make_vm(&serving, &scratch);
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write(MARKER, 0));
    // Most of the disk has content, so that its re-encryption takes a while.
    console.session.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=20 count=40 conv=fsync 2>&1");
    serving.runs("vm snapshot create web1 first --memory");
    console.session.run(&write(LATER, 0));
    console.session.run(&write(MARKER, 4000));
    serving.runs("vm dump create web1");
    drop(console);
    serving.runs("vm suspend web1");
    let refused = serving.is_refused("vm key rotate web1 --data");
    assert!(
        refused.contains("web1 is suspended") && refused.contains("strongroom vm start web1"),
        "{refused}"
    );
    serving.runs("vm start web1");
    serving.runs("vm stop web1 --force");

    let first = key(&serving);
    let ids = ids_of_volumes(&serving, &scratch);
    let said = serving.runs("vm key rotate web1 --data");
    let second = key(&serving);
    assert!(said.contains(&format!("web1 is under key {second} of embedded")), "{said}");
    assert_ne!(first, second);
    assert_eq!(ids_of_volumes(&serving, &scratch), ids, "the volumes stay what they are");
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([second]));
    assert!(serving.runs("event list").contains("all data of VM web1 is under new data keys"));

    // Killed at any moment, the task goes on by itself, or the same command does.
    for role in ["serve --role host", "serve --role control", "vm-supervisor"] {
        let (before, task) = (key(&serving), serving.json("vm key rotate web1 --data --no-wait"));
        let task = task["id"].as_str().unwrap().to_owned();
        kill_when_half_done(&serving, &scratch, role);
        serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
        let done = serving.json(&format!("task show {task}"));
        if done["state"] != "done" {
            println!("{role}: {done}");
            serving.runs("vm key rotate web1 --data");
        }
        assert_ne!(key(&serving), before, "{role}");
        assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]), "{role}");
    }

    // Its guest finds its data, and so does one that goes back to the snapshot.
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(READ).contains(LATER));
    assert!(console.session.run(READ_LAST).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs("vm check web1");
    assert!(serving.runs("vm console web1 --history").contains(MARKER));
    serving.runs("vm dump open web1 1 --to opened");
    let opened = std::fs::read(scratch.path("opened")).unwrap();
    assert!(opened.windows(MARKER.len()).any(|window| window == MARKER.as_bytes()));
    serving.runs("vm snapshot revert web1 first --discard --yes");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run(READ).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn disks_are_decrypted_and_encrypted_and_their_guest_finds_its_data() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    make_vm(&serving, &scratch);
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write(MARKER, 0));
    assert!(console.session.run(READ).contains(MARKER));
    console.session.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=20 count=40 conv=fsync 2>&1");
    serving.runs("vm snapshot create web1 first --memory");
    console.session.run(&write(LATER, 0));
    drop(console);

    let first = key(&serving);
    serving.runs("vm disk decrypt web1 disk1");
    let refused = serving.is_refused("vm disk decrypt web1 disk0");
    assert!(refused.contains("web1 is running: its own volumes"), "{refused}");
    assert!(refused.contains("strongroom vm stop web1"), "{refused}");
    serving.runs("vm stop web1 --force");
    assert!(serving.runs("vm list").contains("PARTLY CLEAR"));
    assert_eq!(datastore::occurrences(&scratch.path("ds"), LATER.as_bytes()), 0);
    serving.runs("vm disk decrypt web1 disk0");
    assert!(serving.runs("vm show web1").contains("none: NOT encrypted"));
    assert!(datastore::occurrences(&scratch.path("ds"), LATER.as_bytes()) > 0);
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(READ).contains(LATER));
    drop(console);
    serving.runs("vm stop web1 --force");

    // Killed at any moment, the task goes on by itself.
    for (disk, role) in [("disk0", "vm-supervisor"), ("disk1", "serve --role host")] {
        serving.runs(&format!("vm disk encrypt web1 {disk} --no-wait"));
        kill_when_half_done(&serving, &scratch, role);
        serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
        assert!(!is_half_done(&scratch), "{role}");
    }
    let second = key(&serving);
    assert_ne!(first, second);
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([second]));
    for text in [MARKER, LATER] {
        assert_eq!(datastore::occurrences(&scratch.path("ds"), text.as_bytes()), 0, "{text}");
    }
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(READ).contains(LATER));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert!(serving.runs("vm console web1 --history").contains(MARKER));
    serving.runs("vm snapshot revert web1 first --discard --yes");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run(READ).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
}

/// In the guest: writes numbered blocks of the second disk in turn, reads each back, and notes the
/// number of the last one and each that was not what it had written.
const JOURNAL: &str = "journal() { i=0; while [ ! -e /stop ]; do printf '%-4096d' $i > /block; \
dd if=/block of=/dev/vdb bs=4096 seek=$((i%64)) conv=notrunc,fsync 2>/dev/null || echo failed $i >> /wrong; \
echo 1 > /proc/sys/vm/drop_caches; \
[ \"$(dd if=/dev/vdb bs=4096 skip=$((i%64)) count=1 2>/dev/null)\" = \"$(cat /block)\" ] || echo other $i >> /wrong; \
i=$((i+1)); echo $i > /count; done; }; journal >/dev/null 2>&1 &";

/// As [`JOURNAL`], on the first disk.
fn journal_of_first_disk() -> String {
    JOURNAL.replace("/dev/vdb", "/dev/vda").replace("$((i%64))", "$((300+i%64))")
}

/// In the guest: the sum of most of the first disk, as it lies there.
const SUM: &str = "echo 3 > /proc/sys/vm/drop_caches; \
dd if=/dev/vda bs=1M skip=20 count=40 2>/dev/null | sha256sum";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_disk_is_decrypted_and_encrypted_while_its_guest_reads_and_writes_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    make_vm(&serving, &scratch);
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write(MARKER, 0));
    console.session.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=20 count=40 conv=fsync 2>&1");
    serving.runs("vm snapshot create web1 first --memory");
    console.session.run(&write(LATER, 0));
    let sum = console.session.run(SUM);
    console.session.run(&journal_of_first_disk());

    let victims = ["worker", "vm-supervisor", "serve --role host", "serve --role control"];
    for (round, victim) in victims.iter().enumerate() {
        for command in ["decrypt", "encrypt"] {
            let task = serving.json(&format!("vm disk {command} web1 disk0 --no-wait"));
            wait_until_half_done(&serving, &scratch);
            if command == "encrypt" {
                console.session.run(&write(&format!("{LATER}-{round}"), 1));
            }
            let pid = match *victim {
                "worker" => serving.workers_of(&id)[0],
                "vm-supervisor" => serving.processes_of(&id)[0],
                role => serving.process(&["serve", role.trim_start_matches("serve ")]),
            };
            let _ = kill_process(pid, Signal::KILL);
            println!("{victim}: half done: {}", is_half_done(&scratch));
            if *victim == "vm-supervisor" {
                console = serving.console_when_taken_over("web1", &id);
            }
            serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
            let done = serving.json(&format!("task show {}", task["id"].as_str().unwrap()));
            assert_eq!(done["state"], "done", "{victim}: {done}");
            assert!(!is_half_done(&scratch), "{victim}");
            assert!(console.session.run(READ).contains(LATER), "{victim}");
            assert_eq!(console.session.run("cat /wrong 2>/dev/null; true").trim(), "", "{victim}");
            let found = datastore::occurrences(&scratch.path("ds"), LATER.as_bytes());
            assert_eq!(found == 0, command == "encrypt", "{victim}: {command}");
        }
    }

    // Cancelled, it is taken back.
    let task = serving.json("vm disk decrypt web1 disk0 --no-wait")["id"].as_str().unwrap().to_owned();
    wait_until_half_done(&serving, &scratch);
    serving.runs(&format!("task cancel {task}"));
    serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
    assert!(!is_half_done(&scratch));
    assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]));
    console.session.run("touch /stop; wait");
    println!("the guest has written {} blocks", console.session.run("cat /count"));
    assert_eq!(console.session.run("cat /wrong 2>/dev/null; true").trim(), "");
    assert_eq!(console.session.run(SUM), sum);
    drop(console);

    // The VM ends meanwhile: the task goes on, and then the VM is started again.
    serving.runs("vm disk decrypt web1 disk0 --no-wait");
    wait_until_half_done(&serving, &scratch);
    let _ = kill_process(serving.processes_of(&id)[1], Signal::KILL);
    serving.wait_until("web1", "runs again", |vm| vm["task"].is_null() && vm["power"] == "running");
    assert!(!is_half_done(&scratch));
    assert!(datastore::occurrences(&scratch.path("ds"), LATER.as_bytes()) > 0);
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(READ).contains(LATER));
    assert_eq!(console.session.run(SUM), sum);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_running_vm_is_re_encrypted_while_its_guest_reads_and_writes_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    make_vm(&serving, &scratch);
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(&write(MARKER, 0));
    console.session.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=20 count=40 conv=fsync 2>&1");
    serving.runs("vm snapshot create web1 first --memory");
    console.session.run(&write(LATER, 0));
    let sum = console.session.run(SUM);
    console.session.run(JOURNAL);

    let ids = ids_of_volumes(&serving, &scratch);
    for victim in ["nobody", "worker", "vm-supervisor", "serve --role host", "serve --role control"] {
        let (before, task) = (key(&serving), serving.json("vm key rotate web1 --data --no-wait"));
        wait_until_half_done(&serving, &scratch);
        if victim == "nobody" {
            let busy = serving.is_refused("vm snapshot create web1 meanwhile");
            assert!(busy.contains("works on VM web1"), "{busy}");
        } else {
            let pid = match victim {
                "worker" => serving.workers_of(&id)[0],
                "vm-supervisor" => serving.processes_of(&id)[0],
                role => serving.process(&["serve", role.trim_start_matches("serve ")]),
            };
            let _ = kill_process(pid, Signal::KILL);
        }
        println!("{victim}: half done: {}", is_half_done(&scratch));
        if victim == "vm-supervisor" {
            console = serving.console_when_taken_over("web1", &id);
        }
        serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
        let done = serving.json(&format!("task show {}", task["id"].as_str().unwrap()));
        if done["state"] != "done" {
            println!("{victim}: {done}");
            serving.runs("vm key rotate web1 --data");
        }
        assert_ne!(key(&serving), before, "{victim}");
        assert_eq!(keys_of_volumes(&serving, &scratch), BTreeSet::from([key(&serving)]), "{victim}");
        assert!(console.session.run(READ).contains(LATER), "{victim}");
        assert_eq!(console.session.run("cat /wrong 2>/dev/null; true").trim(), "", "{victim}");
    }
    assert_eq!(ids_of_volumes(&serving, &scratch), ids, "the volumes stay what they are");

    // Cancelled, it stays whole, and the same command goes on.
    let task = serving.json("vm key rotate web1 --data --no-wait")["id"].as_str().unwrap().to_owned();
    wait_until_half_done(&serving, &scratch);
    serving.runs(&format!("task cancel {task}"));
    serving.wait_until("web1", "has no task", |vm| vm["task"].is_null());
    assert!(!is_half_done(&scratch));
    serving.runs("vm key rotate web1 --data");
    console.session.run("touch /stop; wait");
    let count = console.session.run("cat /count");
    println!("the guest has written {count} blocks");
    assert_eq!(console.session.run("cat /wrong 2>/dev/null; true").trim(), "");
    assert_eq!(console.session.run(SUM), sum);
    drop(console);

    serving.runs("vm snapshot create web1 after");
    serving.runs("vm stop web1 --force");
    serving.runs("vm check web1 --data");
    assert!(serving.runs("vm console web1 --history").contains(LATER));
    serving.runs("vm snapshot revert web1 first --discard --yes");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run(READ).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

/// Makes the VM `web1` with two disks and a seed, in a new datastore.
fn make_vm(serving: &Serving<'_>, scratch: &Scratch) {
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    std::fs::write(scratch.path("user-data"), "#cloud-config\n").unwrap();
    let create =
        "vm create web1 --memory 256M --net none --disk 64M --disk 32M --machine pc --user-data user-data";
    serving.runs(&format!("{create} {guest}"));
}

/// Waits until a volume is half done, or the VM's task is over.
fn wait_until_half_done(serving: &Serving<'_>, scratch: &Scratch) {
    while !serving.vm("web1")["task"].is_null() && !is_half_done(scratch) {}
}

/// Kills a process that has this in its command line, when a volume is half done.
fn kill_when_half_done(serving: &Serving<'_>, scratch: &Scratch, role: &str) {
    wait_until_half_done(serving, scratch);
    let found = serving.processes().into_iter().find(|(_, line)| line.contains(role));
    if let Some(victim) = found.and_then(|(pid, _)| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(victim, Signal::KILL);
    }
    println!("{role} is killed when a volume is half done: {}", is_half_done(scratch));
}

/// The VM's key in the inventory.
fn key(serving: &Serving<'_>) -> String {
    let told = serving.json("vm key status web1");
    let keys = told["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 1, "{told}");
    keys[0]["key"].as_str().unwrap().to_owned()
}

/// Whether the descriptor of a volume of the VM says that it is being re-encrypted.
fn is_half_done(scratch: &Scratch) -> bool {
    const MARK: &[u8] = br#""reencrypting":{"#;
    let entries = std::fs::read_dir(scratch.path("ds/web1")).unwrap().map(|entry| entry.unwrap().path());
    let descriptors = entries.filter_map(|path| std::fs::read(path.join("descriptor")).ok());
    descriptors.into_iter().any(|bytes| bytes.windows(MARK.len()).any(|window| window == MARK))
}

/// What is told of each volume of the VM.
fn volumes(serving: &Serving<'_>, scratch: &Scratch) -> Vec<serde_json::Value> {
    let entries = std::fs::read_dir(scratch.path("ds/web1")).unwrap().map(|entry| entry.unwrap().path());
    let mut volumes: Vec<_> = entries.filter(|path| path.join("descriptor").exists()).collect();
    volumes.sort();
    let told = volumes.iter().map(|path| serving.json(&format!("volume info '{}'", path.display())));
    told.collect()
}

fn ids_of_volumes(serving: &Serving<'_>, scratch: &Scratch) -> Vec<String> {
    let ids = volumes(serving, scratch);
    ids.iter().map(|told| told["volume_id"].as_str().unwrap().to_owned()).collect()
}

/// The keys of its volumes, none of which is being re-encrypted.
fn keys_of_volumes(serving: &Serving<'_>, scratch: &Scratch) -> BTreeSet<String> {
    let key = |told: serde_json::Value| {
        assert!(told["encryption"]["next_kek_id"].is_null(), "{told}");
        assert!(told["reencrypting"].is_null(), "{told}");
        told["encryption"]["provider_key_id"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    volumes(serving, scratch).into_iter().map(key).collect()
}
