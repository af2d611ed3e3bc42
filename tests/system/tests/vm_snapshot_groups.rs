//! Several VMs, and a disk that no VM has, get a snapshot of one instant, or none of them does.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use strongroom_system_tests::{Scratch, Serving};

/// The snapshots of web1, db1 and data1.
fn snapshots(serving: &Serving<'_>) -> [Vec<Value>; 3] {
    let of = |told: Value, field: &str| told[field].as_array().unwrap().clone();
    [
        of(serving.json("vm snapshot list web1"), "items"),
        of(serving.json("vm snapshot list db1"), "items"),
        of(serving.json("disk show data1"), "snapshots"),
    ]
}

/// The names of the snapshots, which must be those of all three.
#[track_caller]
fn names(serving: &Serving<'_>) -> Vec<String> {
    let all = snapshots(serving).map(|all| {
        let id_and_name = |one: &Value| (one["id"].clone(), one["name"].as_str().unwrap().to_owned());
        all.iter().map(id_and_name).collect::<Vec<_>>()
    });
    assert!(all[0] == all[1] && all[1] == all[2], "one has what another has not: {all:?}");
    let [names, ..] = all;
    names.into_iter().map(|(_, name)| name).collect()
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_snapshot_of_several_vms_is_of_all_or_of_none_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let _place = serving.take_place();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    for vm in ["web1", "db1"] {
        // Its firmware finds nothing to boot, which is enough to run.
        serving.runs(&format!("vm create {vm} --memory 64M --net none --disk 16M --disk 16M"));
    }
    serving.runs("disk create data1 --size 16M");
    for vm in ["web1", "db1"] {
        serving.runs(&format!("vm start {vm}"));
    }
    let id = |vm: &str| serving.vm(vm)["id"].as_str().unwrap().to_owned();
    let (web1, db1) = (id("web1"), id("db1"));
    let make = |name: &str| format!("vm snapshot create web1 {name} --with db1 --with data1");
    let said = serving.runs(&make("first"));
    assert!(said.contains("made snapshot first of web1, db1, data1, of one instant"), "{said}");
    assert_eq!(names(&serving), ["first"]);
    let shown = serving.runs("vm snapshot show db1 first");
    assert!(shown.contains("with        web1, data1"), "{shown}");
    for disk in ["web1/disk0", "web1/disk1", "db1/disk0", "db1/disk1", "data1/disk0"] {
        let of_volume = &serving.json(&format!("volume snapshot list ds/{disk}"))["snapshots"][0];
        assert_eq!(of_volume["snapshot_id"], snapshots(&serving)[0][0]["id"], "{disk}");
    }
    let refused = serving.is_refused(&make("first"));
    assert!(refused.contains("has a snapshot first already"), "{refused}");
    let refused = serving.is_refused("vm snapshot create web1 none --with nobody");
    assert!(refused.contains("nobody"), "{refused}");

    let is_let_be = || {
        for vm in ["web1", "db1"] {
            serving.wait_until(vm, "is let be", |vm| vm["task"].is_null() && vm["power"] == "running");
        }
    };
    let supervisor = || serving.processes_of(&db1)[0];
    let worker = || serving.workers_of(&web1)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> Pid; 4] = [&supervisor, &worker, &host, &control];
    for (round, victim) in everybody.iter().enumerate() {
        let name = format!("round-{round}");
        serving.runs(&format!("{} --no-wait", make(&name)));
        // A worker may have been replaced by the snapshot itself.
        let _ = kill_process(victim(), Signal::KILL);
        is_let_be();
        // Those who were left have done the task again, or it has failed and there is none.
        if names(&serving) == ["first"] {
            serving.wait_until_told(&make(&name), "made snapshot");
        }
        assert_eq!(names(&serving), ["first", name.as_str()]);
        for (at, part) in [("vm", "web1"), ("vm", "db1"), ("disk", "data1")] {
            serving.wait_until_told(&format!("{at} snapshot delete {part} {name} --yes"), "deleted");
        }
        assert_eq!(names(&serving), ["first"]);
    }

    // Each part goes its own way.
    serving.runs("vm snapshot delete web1 first --yes");
    let told = serving.json("vm snapshot show db1 first");
    assert_eq!(told["group"], json!({ "with": ["data1"], "deleted": ["web1"] }));
    serving.runs("vm stop db1 --force");
    serving.runs("vm snapshot revert db1 first --discard --yes");
    for vm in ["web1", "db1"] {
        serving.runs(&format!("vm stop {vm} --force"));
    }
}
