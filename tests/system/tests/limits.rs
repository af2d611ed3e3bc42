//! Limits of requests: of a volume whose worker dies and is upgraded under load, and of a VM while
//! its guest runs.

use crate::worker_support::Worker;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Until};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Serving, Volume};

/// So many that the load is held back, and the test is not.
const LIMITED: [&str; 4] = ["--iops", "5000", "--iops-burst", "1"];
const OPERATIONS: u64 = 300;
const ROUNDS: usize = 3;

#[test]
fn a_limited_volume_loses_nothing_when_its_worker_is_killed_or_upgraded() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user_with(&LIMITED);
    let front_end = FrontEnd::connect(exposure.socket(), Settings::new(2, 32)).unwrap();
    let config = LoadConfig { area_bytes: 16 << 20, ..LoadConfig::new(0x10f5) };
    let mut load = Load::new(front_end, config).unwrap();
    let strongroom = CommandLine::new(&scratch);
    let path = volume.path().to_str().unwrap().to_owned();
    let limited = || {
        let told = strongroom.json(&["volume", "info", &path])["statistics"]["throttled_requests"].as_u64();
        told.unwrap()
    };
    let mut before = 0;
    for round in 0..ROUNDS {
        load.run(Until::Operations(OPERATIONS)).unwrap();
        // Requests wait, in the worker that dies too.
        Worker::of(&volume).kill();
        load.await_end().unwrap();
        load.reconnect().unwrap();
        load.run(Until::Operations(OPERATIONS)).unwrap();
        let now = limited();
        assert!(now >= before + OPERATIONS / 2, "round {round}: {now} after {before} have waited");
        before = now;
        strongroom.json(&["volume", "upgrade", &path]);
        load.run(Until::Operations(OPERATIONS)).unwrap();
        let now = limited();
        assert!(now >= before + OPERATIONS / 2, "round {round}: {now} after {before} have waited");
        before = now;
    }
    let report = load.finish().unwrap();
    assert_eq!(report.reconnects as usize, ROUNDS, "{report}");
    assert!(exposure.close().success());
}

/// Requests of a disk that have waited since the VM's start, or since a supervisor took over.
fn waited(serving: &Serving<'_>, disk: usize) -> u64 {
    let told = serving.json("vm stats web1 --once")["disks"][disk]["throttled_requests"].clone();
    told.as_u64().unwrap_or(0)
}

/// The limits of the VM, and of one of its disks.
fn shown(serving: &Serving<'_>, vm: &str, disk: usize) -> (Value, Value) {
    let vm = serving.json(&format!("vm show {vm}"));
    (vm["limits"].clone(), vm["disks"][disk]["limits"].clone())
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn limits_of_a_vm_change_while_its_guest_runs_and_outlive_its_supervisor() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --disk 64M {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let read = |device: &str, count: u32| {
        format!("dd if=/dev/{device} of=/dev/null bs=4k count={count} iflag=direct 2>&1 && echo whole")
    };
    let burst = json!({ "iops": { "per_second": 100, "burst": 1 } });

    // While it is off.
    serving.runs("vm disk limit web1 disk1 --iops 100 --iops-burst 1");
    let refused = serving.is_refused("vm disk limit web1 disk1");
    assert!(refused.contains("--none"), "{refused}");
    for (wrong, range) in [("--iops 15", "from 16 to 10000000"), ("--bandwidth 1K", "from 1M to 64G")] {
        let refused = serving.is_refused(&format!("vm disk limit web1 disk1 {wrong}"));
        assert!(refused.contains(range), "{refused}");
    }
    let refused = serving.is_refused("vm disk limit web1 disk7 --iops 100");
    assert!(refused.contains("has no disk disk7"), "{refused}");
    assert_eq!(shown(&serving, "web1", 1), (Value::Null, burst.clone()));

    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let first = waited(&serving, 1);
    assert!(console.session.run(&read("vdb", 100)).contains("whole"));
    let second = waited(&serving, 1);
    assert!(second >= first + 90, "{second} after {first}");
    assert_eq!(waited(&serving, 0), 0, "the other disk has no limit");

    // While it runs. What waits goes on with the new limit.
    serving.runs("vm disk limit web1 disk1 --none");
    let third = waited(&serving, 1);
    assert!(console.session.run(&read("vdb", 2000)).contains("whole"));
    assert_eq!(waited(&serving, 1), third);
    serving.runs("vm limit web1 --iops 100 --iops-burst 1");
    assert_eq!(shown(&serving, "web1", 1), (burst.clone(), Value::Null));
    let told = serving.runs("vm show web1");
    assert!(told.contains("limits      100 IOPS (burst 1) of all disks together"), "{told}");
    let both = format!("{} & {}; wait", read("vda", 60), read("vdb", 60));
    assert!(console.session.run(&both).contains("whole"));
    assert!(waited(&serving, 0) > 0 && waited(&serving, 1) > third);

    // A supervisor that takes over keeps them, and so do workers that follow.
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    for worker in serving.workers_of(&id) {
        kill_process(worker, Signal::KILL).unwrap();
    }
    assert!(console.session.run(&read("vdb", 300)).contains("whole"));
    let last = waited(&serving, 1);
    assert!(last >= 250, "{last} have waited");

    // The present ones stay at a revert, and a clone has them.
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs("vm disk limit web1 disk0 --iops 200");
    serving.runs("vm snapshot create web1 before");
    serving.runs("vm disk limit web1 disk0 --iops 300 --bandwidth 10M");
    serving.runs("vm snapshot revert web1 before --discard --yes");
    let present = json!({ "iops": { "per_second": 300 }, "bandwidth": { "bytes_per_second": 10 << 20 } });
    assert_eq!(shown(&serving, "web1", 0), (burst.clone(), present.clone()));
    serving.runs("vm clone web1 web2 --linked");
    assert_eq!(shown(&serving, "web2", 0), (burst.clone(), present.clone()));
    let written = std::fs::read_to_string(scratch.path("ds/web1/vm.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let spec = [&written, &written["spec"]].into_iter().find(|spec| spec["disks"].is_array()).unwrap();
    assert_eq!((&spec["limits"], &spec["disks"][0]["limits"]), (&burst, &present));

    // One that is not named ends.
    serving.runs("vm limit web1 --none");
    assert_eq!(shown(&serving, "web1", 0), (Value::Null, present));
}
