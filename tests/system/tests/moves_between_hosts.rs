//! Two machines reach one datastore: a VM is placed, moves between them while it is off, and is
//! started on its host only, whatever is killed or cut off meanwhile.

use serde_json::Value;
use strongroom_system_tests::{Scratch, put_test_guest, take_place};

use super::machines_support::{Cables, Guests, Machine, WITHIN, qemus_of};

/// Waits until a task that was begun with `--no-wait` has ended. Returns it.
#[track_caller]
fn ended(machine: &Machine<'_>, task: &Value) -> Value {
    let show = format!("task show {}", task["id"].as_str().unwrap());
    machine.wait_until(&show, "has ended", |task| task["state"] != "running")
}

/// Waits until a task is done.
#[track_caller]
fn done(machine: &Machine<'_>, task: &Value) {
    let task = ended(machine, task);
    assert_eq!(task["state"], "done", "{task}");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_moves_between_two_machines_and_is_started_on_one_of_them() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let guest = put_test_guest(&scratch);
    first.takes_guests_kernel();
    let site = first.starts_site();
    let host = first.lets_join(&second);
    for name in ["shared", "copied"] {
        let path = scratch.make_directory(name);
        first.runs(&format!("datastore add {name} {} --host host1", path.display()));
    }
    // A directory without the mark is another one, and a copy of it with everything else shows when
    // a VM moves.
    let empty = scratch.make_directory("empty");
    let refused =
        first.is_refused(&format!("datastore add-host shared --host host2 --path {}", empty.display()));
    assert!(refused.contains("bears no mark"), "{refused}");
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    first.runs("datastore add-host shared --host host2");
    assert_eq!(first.json("datastore show shared")["hosts"].as_array().unwrap().len(), 2);
    let vm = "--memory 256M --net none";
    first.runs(&format!("vm create copied1 --datastore copied --host host1 {vm} --disk 16M --unencrypted"));
    let copy = scratch.path("copy").display().to_string();
    first.program.run_shell("cp -a copied copy").success();
    first.runs(&format!("datastore add-host copied --host host2 --path {copy}"));
    let refused = first.is_refused("vm migrate copied1 --to host2");
    assert!(refused.contains("but a copy of it"), "{refused}");
    assert_eq!(first.json("vm show copied1")["host"], "host1");
    first.runs("vm delete copied1 --yes");
    first.runs("datastore remove copied");

    // What cannot move while it runs moves once it is off.
    first.runs("vm create tpm1 --datastore shared --host host1 --memory 32M --net none --disk 1M --tpm");
    first.runs("vm start tpm1");
    let refused = first.is_refused("vm migrate tpm1 --to host2");
    assert!(refused.contains("it has a TPM"), "{refused}");
    first.runs("vm stop tpm1 --force");
    first.runs("vm migrate tpm1 --to host2");
    first.runs("vm migrate tpm1 --to host1");

    // A guest on the first machine, which gives it up once it is off.
    first.runs(&format!(
        "vm create web1 --datastore shared --host host1 {vm} --disk 64M --machine pc {guest}"
    ));
    let id = first.json("vm show web1")["id"].as_str().unwrap().to_owned();
    let runs_on = |run: &str| qemus_of(&scratch, run, &id).len();
    let _place = take_place();
    first.runs("vm start web1");
    first.runs("vm stop web1 --force");
    first.runs("vm migrate web1 --to host2");
    first.runs("vm start web1");
    let vm = first.json("vm show web1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host2")), "{vm}");
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));

    // The former host starts again, and finds the VM's directory. It is none of its VMs.
    site.kill();
    let site = first.starts_site();
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));

    // A machine that is cut off cannot confirm anything, so nothing of it moves.
    cables.cut(1);
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    let refused = first.is_refused("vm migrate web1 --to host1");
    assert!(refused.contains("host host2 does not answer, and VM web1 may run there"), "{refused}");
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));
    cables.mend(1);
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    first.runs("vm stop web1 --force");

    // Killed in the middle of moves: the whole first machine, and hostd of the second one.
    let task = first.json("vm migrate web1 --to host1 --no-wait");
    site.kill();
    let site = first.starts_site();
    done(&first, &task);
    let task = first.json("vm migrate web1 --to host2 --no-wait");
    host.kill();
    let host = second.starts_host("");
    done(&first, &task);
    assert_eq!(first.json("vm show web1")["host"], "host2");
    // The cable is cut after the request: the task waits, and goes on.
    let task = first.json("vm migrate web1 --to host1 --no-wait");
    cables.cut(1);
    first.wait_until("host show host2", "is away", |host| host["state"] == "disconnected");
    cables.mend(1);
    done(&first, &task);
    first.runs("vm start web1");
    assert_eq!((runs_on("first-run"), runs_on("run")), (1, 0));

    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");

    // The first machine is evacuated. The guest that does not move while it runs ignores the
    // button, and is powered off.
    first.runs("vm start tpm1");
    let task = first.json("host evacuate host1 --no-wait");
    let task = ended(&first, &task);
    assert!(task["error"]["message"].as_str().unwrap().contains("VM tpm1 does not move"), "{task}");
    assert!(first.runs("host list").contains("connected, in maintenance"));
    first.runs("host evacuate host1 --shut-down --timeout 2");
    for vm in ["web1", "tpm1"] {
        let vm = first.wait_until(&format!("vm show {vm}"), "runs", |vm| vm["power"] == "running");
        assert_eq!(vm["host"], "host2", "{vm}");
    }
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));
    let refused = first.is_refused("vm create web2 --datastore shared --host host1 --memory 256M --disk 16M");
    assert!(refused.contains("host host1 is in maintenance"), "{refused}");
    for vm in ["web1", "tpm1"] {
        first.runs(&format!("vm stop {vm} --force"));
        first.runs(&format!("vm delete {vm} --yes"));
    }
    first.runs("host maintenance host1 off");
    first.runs("datastore remove-host shared --host host2");
    first.runs("host remove host2");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
