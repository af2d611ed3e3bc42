//! VMs from end to end: `serve`, a VM with a real guest on an encrypted disk, its console, and
//! every process killed in turn.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-vm-marker-6d1c";

#[test]
fn a_vm_lives_and_survives_whoever_dies() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let create = format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}");
    assert!(serving.runs(&create).contains("sealed under key"), "{}", serving.runs("vm show web1"));
    let vm = serving.vm("web1");
    assert_eq!((vm["power"].as_str(), vm["encrypted"].as_bool()), (Some("stopped"), Some(true)));
    // The key was made for this VM, and is granted to no other.
    let key = vm["key"]["key"].as_str().unwrap();
    let server = std::fs::read_to_string(scratch.path("home/keyserver/server.json")).unwrap();
    let server: serde_json::Value = serde_json::from_str(&server).unwrap();
    let other = serving.is_refused(&format!(
        "keyserver bind --identity home/control/identity --server {} --key-id {key} \
         --vm 00000000-0000-4000-8000-000000000001",
        server["listen_enrolment"].as_str().unwrap()
    ));
    assert!(other.contains("was made for another VM"), "{other}");
    // The same name is refused, with the next step.
    let refused = serving.is_refused(&create);
    assert!(refused.contains("web1"), "{refused}");

    let _place = serving.take_place();
    assert!(serving.runs("vm start web1").contains("web1 is running"));
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let write = format!("echo {MARKER} > text; dd if=text of=/dev/vda bs=4096 conv=sync,fsync count=1 2>&1");
    console.session.run(&write);
    let id = vm["id"].as_str().unwrap().to_owned();

    // Each of the daemons, and all of them at once: the guest notices nothing.
    for words in [["serve", "--role host"], ["serve", "--role control"], ["keyserver", "run"]] {
        kill_process(serving.process(&words), Signal::KILL).unwrap();
        assert!(console.session.run("dd if=/dev/vda bs=4096 count=1 2>/dev/null").contains(MARKER));
    }
    // `host list` shows the accelerator that this guest has.
    let qemu = serving.processes_of(&id)[1].as_raw_nonzero();
    let line = std::fs::read(format!("/proc/{qemu}/cmdline")).unwrap();
    let kvm = String::from_utf8_lossy(&line).contains("-accel\0kvm");
    serving.wait_until_told("host list", if kvm { "kvm" } else { "tcg" });

    // Then its volume's worker. All of these are among the events.
    kill_process(serving.workers_of(&id)[0], Signal::KILL).unwrap();
    assert!(console.session.run("dd if=/dev/vda bs=4096 count=1 2>/dev/null").contains(MARKER));
    serving.wait_until("web1", "is known to run", |vm| vm["power"] == "running");
    for part in [
        "process hostd ended (signal: 9",
        "process control ended (signal: 9",
        "process keyserver ended (signal: 9",
        "the worker of web1/disk0 was killed by signal 9, and was started again",
    ] {
        serving.wait_until_told("event list", part);
    }
    drop(console);
    serving.kill();
    serving.start_again();
    let vm = serving.wait_until("web1", "is found again", |vm| vm["power"] == "running");
    assert_eq!(vm["generation"], 1, "it was not started anew");
    let mut console = serving.console("web1");
    assert!(console.session.run("dd if=/dev/vda bs=4096 count=1 2>/dev/null").contains(MARKER));

    // Then its QEMU: the guest is gone, but its synced data is there.
    let processes = serving.processes_of(&id);
    assert_eq!(processes.len(), 2);
    kill_process(processes[1], Signal::KILL).unwrap();
    drop(console);
    serving.wait_until("web1", "is started again", |vm| vm["generation"] == 2 && vm["power"] == "running");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(console.session.run("dd if=/dev/vda bs=4096 count=1 2>/dev/null").contains(MARKER));
    drop(console);

    serving.runs("vm stop web1 --force");
    assert_eq!(serving.vm("web1")["power"], "stopped");
    serving.runs("vm delete web1 --yes");
    assert!(serving.is_refused("vm show web1").contains("web1"));
    let left = strongroom_system_tests::datastore::files_under(&scratch.path("ds"));
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("web1")), "{left:?}");
    serving.end();
}

#[test]
fn a_vm_whose_network_has_ended_says_so_until_it_starts_again() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net user --disk 16M --machine pc {guest}"));
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    assert_eq!(serving.vm("web1")["reason"], serde_json::Value::Null);

    kill_process(serving.passts_of(&id)[0], Signal::KILL).unwrap();
    serving.wait_until_told("event list", "the network of VM web1 ended");
    let vm = serving.wait_until("web1", "says what it lacks", |vm| !vm["reason"].is_null());
    assert_eq!(vm["power"], "running");
    assert!(vm["reason"].as_str().unwrap().contains("its guest reaches nothing"), "{vm}");
    serving.wait_until_told("event alarms", "passt has ended");

    serving.runs("vm restart web1 --force");
    let vm = serving.wait_until("web1", "has a network", |vm| vm["generation"] == 2);
    assert_eq!((&vm["reason"], serving.passts_of(&id).len()), (&serde_json::Value::Null, 1));
    serving.runs("vm stop web1 --force");
    serving.end();
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_suspended_vm_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M {guest}"));
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    // In the shell's memory, and not yet on its disk.
    console.session.run("half=strongroom-vm-; whole=${half}in-memory-6d1c");
    console.session.run("dd if=/dev/zero of=/dev/vda bs=4096 count=16 2>/dev/null");
    drop(console);
    assert!(serving.is_refused("vm start web1").contains("on already"));
    assert!(serving.runs("vm suspend web1").contains("web1 is suspended"));
    assert!(serving.runs("vm show web1").contains("of memory, sealed in volume"));
    assert!(serving.is_refused("vm set web1 --memory 512M").contains("suspended"));
    is_nowhere(&scratch, b"strongroom-vm-in-memory-6d1c");
    // It stays suspended across a restart of everything.
    serving.kill();
    serving.start_again();
    serving.wait_until("web1", "is suspended as before", |vm| vm["power"] == "suspended");
    assert!(serving.runs("vm start web1").contains("web1 is running"));
    let mut console = serving.console("web1");
    assert!(console.session.run("echo $whole").contains("strongroom-vm-in-memory-6d1c"));
    assert!(console.session.run("dd if=/dev/vda bs=4096 count=16 2>&1 | wc -c").contains("65"));
    // The output of both starts is kept, and is in no file in the clear.
    assert!(serving.runs("vm console web1 --history").contains("strongroom-vm-in-memory-6d1c"));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert!(serving.runs("vm console web1 --history").contains("strongroom-vm-in-memory-6d1c"));
    is_nowhere(&scratch, b"strongroom-vm-in-memory-6d1c");
    serving.end();
}

/// The text is in no file of a VM, nor of the processes that manage it.
fn is_nowhere(scratch: &Scratch, marker: &[u8]) {
    for place in ["ds", "home", "run"] {
        let found = strongroom_system_tests::datastore::occurrences(&scratch.path(place), marker);
        assert_eq!(found, 0, "in {place}");
    }
}
