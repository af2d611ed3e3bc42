//! Disks are added, grown and removed while a VM runs or is off, whatever is killed meanwhile.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-hot-plug-marker-6d21";

fn write(device: &str) -> String {
    format!("echo {MARKER} > text; dd if=text of=/dev/{device} bs=4096 conv=sync,fsync 2>&1")
}

fn read(device: &str) -> String {
    format!("dd if=/dev/{device} bs=4096 count=1 2>/dev/null | tr -d '\\000'")
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_disk_comes_grows_and_goes_while_its_vm_runs() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    std::fs::write(scratch.path("user-data"), "#cloud-config\n").unwrap();
    serving
        .runs(&format!("vm create web1 --memory 256M --net none --disk 64M --user-data user-data {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();

    // The seed is /dev/vdb, and stays there.
    let added = serving.runs("vm disk add web1 --size 32M");
    assert!(added.contains("web1 has one more disk, disk1: 32M"), "{added}");
    console.session.wait_until("test -b /dev/vdc");
    console.session.run(&write("vdc"));
    assert_eq!(serving.workers_of(&id).len(), 3, "two disks and the seed");
    let refused = serving.is_refused("vm suspend web1");
    assert!(refused.contains("plugged in or out"), "{refused}");

    // A supervisor that takes over serves it too, at the same socket.
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(&read("vdc")).contains(MARKER));
    for worker in serving.workers_of(&id) {
        kill_process(worker, Signal::KILL).unwrap();
    }
    assert!(console.session.run(&read("vdc")).contains(MARKER));

    // It moves to another key with all others, and cannot be removed while the VM is suspended.
    serving.runs("vm key rotate web1");
    let key = |volume: &str| {
        serving.json(&format!("volume info ds/web1/{volume}"))["encryption"]["provider_key_id"].clone()
    };
    assert_eq!(key("disk1"), key("disk0"));
    serving.runs("vm pause web1");
    let refused = serving.is_refused("vm disk remove web1 disk1 --yes");
    assert!(refused.contains("stands still"), "{refused}");
    serving.runs("vm resume web1");

    serving.runs("vm disk resize web1 disk1 --size 48M");
    console.session.wait_until(&format!("[ $(cat /sys/block/vdc/size) = {} ]", 48 << 11));
    let refused = serving.is_refused("vm disk resize web1 disk1 --size 32M");
    assert!(refused.contains("a disk only grows"), "{refused}");
    let refused = serving.is_refused("vm disk remove web1 disk0 --yes");
    assert!(refused.contains("the first disk of VM web1"), "{refused}");

    drop(console);
    serving.runs("vm stop web1 --force");
    let listed = serving.runs("vm disk list web1");
    assert!(listed.contains("disk1  48M"), "{listed}");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run(&read("vdb")).contains(MARKER));
    assert_eq!(console.session.run("cat /sys/block/vdb/size").trim(), (48 << 11).to_string());

    // One of the initial disks, and one that was plugged in.
    serving.runs("vm disk add web1 --size 16M --frontend nbd");
    console.session.wait_until("test -b /dev/vdd");
    for (disk, device) in [("disk1", "vdb"), ("disk2", "vdd")] {
        serving.runs(&format!("vm disk remove web1 {disk} --yes"));
        console.session.wait_until(&format!("! test -b /dev/{device}"));
        assert!(!scratch.path(&format!("ds/web1/{disk}")).exists(), "{disk}");
    }
    assert_eq!(serving.workers_of(&id).len(), 2, "a disk and the seed");
    console.session.run(&write("vda"));
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    assert!(console.session.run(&read("vda")).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_disk_that_is_wished_for_comes_and_goes_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    serving.console("web1").wait_until_ready();
    let disks_are = |count: usize| {
        serving.wait_until("web1", "has its disks and is let be", |vm| {
            vm["disks"].as_array().is_some_and(|disks| disks.len() == count) && vm["task"].is_null()
        });
    };
    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for victim in everybody {
        serving.runs("vm disk add web1 --size 16M --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        disks_are(2);
        let mut console = serving.console_when_taken_over("web1", &id);
        console.session.wait_until("test -b /dev/vdb");
        console.session.run(&write("vdb"));
        assert!(console.session.run(&read("vdb")).contains(MARKER));
        drop(console);
        serving.runs("vm disk remove web1 disk1 --yes --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        disks_are(1);
        let mut console = serving.console_when_taken_over("web1", &id);
        console.session.wait_until("! test -b /dev/vdb");
        assert!(!scratch.path("ds/web1/disk1").exists());
    }
    serving.runs("vm stop web1 --force");
}

#[test]
fn a_disk_comes_grows_and_goes_while_its_vm_is_off() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 256M --net none --disk 64M");
    serving.runs("vm create plain --memory 256M --net none --disk 64M --unencrypted");
    serving.runs("vm create bare --memory 256M --net none");
    std::fs::write(scratch.path("data.img"), MARKER.repeat(1024)).unwrap();
    serving.runs("vm disk add web1 --size 16M --image data.img --format raw");
    serving.runs("vm disk add web1 --size 16M --swap");
    let added = serving.runs("vm disk add plain --size 16M");
    assert!(added.contains("NOT encrypted"), "{added}");
    let refused = serving.is_refused("vm disk add bare --size 16M");
    assert!(refused.contains("has no disk"), "{refused}");
    let disks = serving.json("vm disk list web1")["items"].clone();
    let names: Vec<_> = disks.as_array().unwrap().iter().map(|disk| disk["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["disk0", "disk1", "swap0"]);
    assert!(disks.as_array().unwrap().iter().all(|disk| disk["key"] == disks[0]["key"]), "{disks}");
    assert_eq!(datastore::occurrences(&scratch.path("ds/web1"), MARKER.as_bytes()), 0);

    serving.runs("vm disk resize web1 disk1 --size 32M");
    serving.runs("vm disk resize web1 swap0 --size 32M");
    let info = serving.json("volume info ds/web1/disk1");
    assert_eq!(info["size_bytes"], 32 << 20, "{info}");
    // The inventory is lost: the datastore has the disks.
    serving.runs("vm unregister web1");
    serving.runs("vm register web1");
    assert!(serving.runs("vm disk list web1").contains("swap0  32M"));

    // An existing volume that is not a disk of the VM is not taken over.
    serving.runs("volume create ds/web1/disk2 --size 1M --unencrypted");
    let refused = serving.is_refused("vm disk add web1 --size 16M");
    assert!(refused.contains("strongroom volume delete"), "{refused}");
    assert_eq!(serving.json("vm disk list web1")["items"].as_array().unwrap().len(), 3);
    assert!(scratch.path("ds/web1/disk2/descriptor").exists());
    serving.runs("volume delete ds/web1/disk2 --yes");

    for disk in ["disk1", "swap0"] {
        serving.runs(&format!("vm disk remove web1 {disk} --yes"));
        assert!(!scratch.path(&format!("ds/web1/{disk}")).exists());
    }
    let refused = serving.is_refused("vm disk remove web1 disk1 --yes");
    assert!(refused.contains("VM web1 has no disk disk1"), "{refused}");
    serving.runs("vm disk add web1 --size 16M");
    assert!(scratch.path("ds/web1/disk1/descriptor").exists());
    serving.end();
}
