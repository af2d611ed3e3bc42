//! VMs that move to another host while they run. Each order fails, each is cancelled, the control
//! plane is killed at every moment, and hosts fall silent: the guest works on one host at a time,
//! and goes on with its memory.

use std::collections::BTreeSet;
use std::time::Duration;

use strongroom_api::host::{EvacuateHost, FenceHost};
use strongroom_api::policy::SetPolicy;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CreateVm, MoveToHost, PowerState, StopVm};
use strongroom_control::engine::{Control, Next};
use strongroom_control::keys::GrantFor;
use strongroom_host::migration::Place;
use strongroom_host::protocol::{PowerState as HostPower, VmGeneration};
use strongroom_types::{MigrationMode, Secrecy, VmId};

use super::boards::{gives, look_again};
use super::clusters::on_a_cluster;
use super::moves::{ended, moved, no_violations, start, stays_on, to};
use super::placement::{host_of, maintenance, on, shared};
use crate::support::{Site, caller, create, killed_after, killed_at_each, settle_down};

/// An encrypted VM that runs on the first of two hosts.
fn running() -> (Site, Control, VmId) {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 2, "web1");
    let id = control.show_vm("web1").unwrap().summary.id;
    (site, control, id)
}

/// It runs on this host alone, as it did before.
pub fn runs_on(site: &Site, control: &Control, id: VmId, host: &str) {
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.summary.host.as_deref()), (PowerState::Running, Some(host)));
    assert!(vm.summary.task.is_none(), "{vm:?}");
    for (name, there) in site.hosts() {
        let inside = there.lock();
        assert_eq!(inside.works(id), name.as_str() == host, "on {name}");
        let is_between = inside.residences.get(&id).is_some_and(|known| known.place.is_between());
        assert!(!is_between, "on {name}: {:?}", inside.residences.get(&id));
    }
    no_violations(site);
}

pub fn failed(task: &Task) -> &str {
    assert_eq!(task.state, TaskState::Failed, "{task:?}");
    &task.error.as_ref().unwrap().message
}

#[test]
fn a_vm_that_runs_goes_on_at_another_host_and_comes_back() {
    let (site, control, id) = running();
    let task = moved(&site, &control, 3, "web1", "host2");
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    runs_on(&site, &control, id, "host2");
    assert_eq!(site.host.lock().residences[&id].place, Place::Left);
    {
        let keys = site.keys.lock();
        let granted: Vec<_> = keys.standings.iter().map(|known| (known.1.0, known.2)).collect();
        assert_eq!(granted.last(), Some(&(2, GrantFor::Prepared)), "{granted:?}");
        assert!(keys.fenced.contains(&(id, VmGeneration(2))) && keys.voided.is_empty());
        let recorded = "the memory of VM web1 passes to host host2, by test";
        assert_eq!(keys.uses, [recorded]);
    }
    let text: String =
        control.inventory.read().events().iter().map(|event| format!("{}\n", event.message)).collect();
    assert!(text.contains("it moves from host host1 to host host2, while it runs"), "{text}");
    assert!(text.contains("is of host host2 from now on, where it goes on"), "{text}");

    assert_eq!(moved(&site, &control, 4, "web1", "host1").state, TaskState::Done);
    runs_on(&site, &control, id, "host1");
    // Paused, it moves, and is paused.
    control.pause_vm(&caller(5), "web1").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(moved(&site, &control, 6, "web1", "host2").state, TaskState::Done);
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.generation), (PowerState::Paused, 4));
    control.stop_vm(&caller(7), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 8, "web1");
    assert_eq!(control.show_vm("web1").unwrap().generation, 5);
    runs_on(&site, &control, id, "host2");
}

#[test]
fn limits_are_checked_and_what_does_not_move_says_why() {
    let (site, control, id) = running();
    for pause_ms in [0, 9, 60_001] {
        let wish = MoveToHost { pause_ms: Some(pause_ms), ..to("host2") };
        let refused = control.move_to_host(&caller(3), "web1", &wish).unwrap_err();
        assert!(refused.message.contains("10 to 60000 ms"), "{refused}");
    }
    for channels in [0, 9] {
        let wish = MoveToHost { channels: Some(channels), ..to("host2") };
        let refused = control.move_to_host(&caller(3), "web1", &wish).unwrap_err();
        assert!(refused.message.contains("1 to 8 channels"), "{refused}");
    }
    control.create_vm(&caller(4), &stays_on("web2", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 5, "web2");
    let refused = control.move_to_host(&caller(6), "web2", &to("host2")).unwrap_err();
    assert!(
        refused.message.contains("host host1 has version 0, in which no VM with a TPM does"),
        "{refused}"
    );
    assert!(refused.next_step.unwrap().contains("strongroom vm stop web2"));
    maintenance(&control, "host2", true);
    let refused = control.move_to_host(&caller(7), "web1", &to("host2")).unwrap_err();
    assert!(refused.message.contains("is in maintenance"), "{refused}");
    maintenance(&control, "host2", false);
    site.others[0].lock().is_old = true;
    site.pass(Duration::from_secs(10));
    assert!(settle_down(&site, &control));
    let refused = control.move_to_host(&caller(8), "web1", &to("host2")).unwrap_err();
    assert!(refused.message.contains("host host2 has version"), "{refused}");
    runs_on(&site, &control, id, "host1");
}

/// A host of an earlier version would refuse it once its memory is to pass.
#[test]
fn a_vm_with_a_tpm_moves_between_hosts_that_can() {
    let (site, control) = shared(1);
    control.create_vm(&caller(1), &stays_on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 2, "web1");
    let id = control.show_vm("web1").unwrap().summary.id;
    let seen = |number: usize, moves: bool, has_swtpm: bool| {
        let (_, host) = site.hosts().swap_remove(number);
        let mut inside = host.lock();
        inside.moves_live_tpms = moves;
        let mut programs = inside.programs.clone().unwrap();
        programs.swtpm = has_swtpm.then(|| "/usr/bin/swtpm".into());
        inside.programs = Some(programs);
        drop(inside);
        site.pass(Duration::from_secs(60));
        assert!(settle_down(&site, &control));
    };
    seen(0, true, true);
    let refused = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap_err();
    assert!(refused.message.contains("host host2 has version"), "{refused}");
    seen(1, true, false);
    let refused = control.move_to_host(&caller(4), "web1", &to("host2")).unwrap_err();
    assert!(refused.message.contains("host host2 has no swtpm"), "{refused}");
    assert!(refused.next_step.unwrap().contains("strongroom vm stop web1"));
    seen(1, true, true);
    assert_eq!(moved(&site, &control, 5, "web1", "host2").state, TaskState::Done);
    runs_on(&site, &control, id, "host2");
    seen(0, false, true);
    let refused = control.move_to_host(&caller(6), "web1", &to("host1")).unwrap_err();
    assert!(refused.message.contains("host host1 has version"), "{refused}");
    runs_on(&site, &control, id, "host2");
}

#[test]
fn whatever_fails_leaves_the_guest_where_it_was() {
    for (order, at) in [("offer", 0), ("receive", 1), ("send", 0), ("take_up", 1)] {
        let (site, control, id) = running();
        let (_, host) = site.hosts().swap_remove(at);
        host.lock().live_orders_that_fail = vec![(order, "system")];
        let task = moved(&site, &control, 3, "web1", "host2");
        assert!(failed(&task).contains("it does not"), "{order}: {task:?}");
        runs_on(&site, &control, id, "host1");
        assert_eq!(control.show_vm("web1").unwrap().generation, 1, "{order}");
        let voided = site.keys.lock().voided.contains(&(id, VmGeneration(2)));
        assert_eq!(voided, order != "offer", "{order}");
        // The next attempt has a generation of its own.
        assert_eq!(moved(&site, &control, 4, "web1", "host2").state, TaskState::Done, "{order}");
        assert_eq!(control.show_vm("web1").unwrap().generation, 3, "{order}");
        runs_on(&site, &control, id, "host2");
    }
}

#[test]
fn what_is_decided_is_ordered_until_it_is_done() {
    for at in [0, 1] {
        let (site, control, id) = running();
        let (_, host) = site.hosts().swap_remove(at);
        host.lock().live_orders_that_fail = vec![("settle", "start_timeout"); 3];
        assert_eq!(moved(&site, &control, 3, "web1", "host2").state, TaskState::Done);
        runs_on(&site, &control, id, "host2");
    }
    // Also if it goes back.
    let (site, control, id) = running();
    site.others[0].lock().live_orders_that_fail =
        vec![("settle", "system"), ("settle", "system"), ("take_up", "volume_unreadable")];
    site.host.lock().live_orders_that_fail = vec![("settle", "start_timeout")];
    failed(&moved(&site, &control, 3, "web1", "host2"));
    runs_on(&site, &control, id, "host1");
}

/// Steps on until the task's record has this, and the hosts have done what they were asked for.
pub fn until_stage(site: &Site, control: &Control, task: &Task, stage: &str) {
    for _ in 0..200 {
        let known = control.inventory.read().task(task.id).map(|task| format!("{:?}", task.work)).unwrap();
        if known.contains(&format!("stage: {stage}")) {
            return;
        }
        if !matches!(control.advance(task.id), Ok(Next::Again)) {
            site.work();
        }
    }
    panic!("it does not come to {stage}");
}

#[test]
fn a_target_that_falls_silent_is_waited_for_as_long_as_it_may_have_the_volumes() {
    let (site, control, id) = running();
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    until_stage(&site, &control, &task, "TakeUp");
    site.others[0].lock().down = true;
    for _ in 0..10 {
        site.work();
        for host in control.hosts() {
            let _ = control.observe(host, Duration::ZERO);
        }
        assert!(!matches!(control.advance(task.id), Ok(Next::Over)));
        site.pass(Duration::from_secs(60));
    }
    let waits = control.show_task(task.id).unwrap().note.unwrap();
    assert!(waits.contains("stands still") && waits.contains("host fence host2"), "{waits}");
    assert!(!site.host.lock().works(id) && !site.others[0].lock().works(id));
    site.others[0].lock().down = false;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    runs_on(&site, &control, id, "host2");
}

#[test]
fn what_a_silent_host_has_kept_is_ended_when_it_answers_and_nobody_waits_for_it() {
    // The source, after the VM has gone on elsewhere.
    let (site, control, id) = running();
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    until_stage(&site, &control, &task, "Keys");
    site.host.lock().down = true;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(site.host.lock().residences[&id].place, Place::Leaving);
    site.host.lock().down = false;
    assert!(settle_down(&site, &control));
    runs_on(&site, &control, id, "host2");

    // The target of an attempt that was given up.
    let (site, control, id) = running();
    site.host.lock().live_orders_that_fail = vec![("send", "relay")];
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    until_stage(&site, &control, &task, "Settle { end: Source }");
    site.others[0].lock().down = true;
    failed(&ended(&site, &control, &task));
    assert_eq!(site.others[0].lock().residences[&id].place, Place::Coming);
    assert!(site.host.lock().works(id));
    site.others[0].lock().down = false;
    assert!(settle_down(&site, &control));
    assert!(!site.others[0].lock().vms.contains_key(&id));
    runs_on(&site, &control, id, "host1");
    assert!(control.inventory.read().alarms.iter().all(|alarm| !alarm.message.contains("runs on host")));
}

/// A move that has not begun waits for the key server, too, and ends without it when it is
/// cancelled.
#[test]
fn a_move_that_waits_for_its_keys_is_cancelled() {
    for steps in 1..=5 {
        let (site, control, id) = running();
        let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
        for _ in 0..steps {
            let _ = control.advance(task.id);
            site.work();
        }
        site.keys.lock().unavailable = true;
        assert!(settle_down(&site, &control));
        let _ = control.cancel_task(&caller(4), task.id);
        for _ in 0..3 {
            assert!(settle_down(&site, &control));
        }
        let task = control.show_task(task.id).unwrap();
        assert!(task.state.is_over(), "after {steps} steps: {task:?}");
        site.keys.lock().unavailable = false;
        let host = if task.state == TaskState::Done { "host2" } else { "host1" };
        runs_on(&site, &control, id, host);
    }
}

#[test]
fn a_move_waits_for_the_key_server_and_does_without_it_when_it_is_cancelled() {
    let (site, control, id) = running();
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    until_stage(&site, &control, &task, "Keys");
    site.keys.lock().unavailable = true;
    assert!(settle_down(&site, &control));
    let waits = control.show_task(task.id).unwrap().note.unwrap();
    assert!(waits.contains("waiting for the key server"), "{waits}");
    assert!(site.others[0].lock().works(id), "the guest goes on meanwhile");
    site.keys.lock().unavailable = false;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert!(site.keys.lock().fenced.contains(&(id, VmGeneration(2))));
    runs_on(&site, &control, id, "host2");
}

/// It is cancelled after each number of steps: it ends on one host, and the guest works there.
#[test]
fn a_live_move_that_is_cancelled_ends_on_one_host() {
    let mut ends = BTreeSet::new();
    for steps in 0..24 {
        for forgets in [false, true] {
            let (site, control, id) = running();
            let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
            for _ in 0..steps {
                let _ = control.advance(task.id);
                site.work();
            }
            if forgets {
                site.hosts().iter().for_each(|(_, host)| host.restart());
            }
            let _ = control.cancel_task(&caller(4), task.id);
            let task = ended(&site, &control, &task);
            let host = host_of(&control, "web1");
            let expected = if task.state == TaskState::Done { "host2" } else { "host1" };
            assert_eq!(host, expected, "after {steps} steps, {forgets}: {task:?}");
            runs_on(&site, &control, id, expected);
            ends.insert(host);
        }
    }
    assert_eq!(ends.len(), 2, "cancelled too early and too late: {ends:?}");
}

/// The control plane is killed at each moment of a live move, and hostd is restarted then.
#[test]
fn a_live_move_ends_whenever_the_control_plane_was_killed() {
    let (moments, ends) = killed_at_each(killed_at);
    println!("killed at each of the first {moments} moments of a live move: {ends:?}");
    assert!(moments > 40 && ends.len() == 2, "{moments} {ends:?}");
}

/// Where the VM runs then; `None` if the move was over before that moment.
fn killed_at(moments: i64) -> Option<String> {
    let (site, control, id) = running();
    let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
    let (control, killed) = killed_after(&site, control, moments);
    let task = ended(&site, &control, &task);
    let expected = if task.state == TaskState::Done { "host2" } else { "host1" };
    runs_on(&site, &control, id, expected);
    killed.then(|| expected.to_owned())
}

#[test]
fn an_evacuation_moves_what_runs_and_shuts_down_only_what_cannot() {
    let (site, control) = shared(2);
    for number in 1..=3 {
        control.create_vm(&caller(number), &on(&format!("web{number}"), "host1")).unwrap();
    }
    control.create_vm(&caller(4), &stays_on("tpm1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    for (number, name) in ["web1", "web2", "tpm1"].into_iter().enumerate() {
        start(&site, &control, 10 + number as u64, name);
    }
    let evacuated = |request, shut_down| {
        let how = EvacuateHost { shut_down, timeout_s: Some(5), ..EvacuateHost::default() };
        let task = control.evacuate_host(&caller(request), "host1", &how).unwrap();
        ended(&site, &control, &task)
    };
    let task = evacuated(20, false);
    assert!(failed(&task).contains("1 VM could not be moved, and 3 were"), "{task:?}");
    for name in ["web1", "web2"] {
        let vm = control.show_vm(name).unwrap();
        assert_eq!((vm.summary.power, vm.generation), (PowerState::Running, 2), "{name} was not restarted");
        assert_ne!(vm.summary.host.as_deref(), Some("host1"));
    }
    let stays = control.show_vm("tpm1").unwrap();
    assert_eq!((stays.summary.power, stays.generation), (PowerState::Running, 1));
    assert_eq!(evacuated(21, true).state, TaskState::Done);
    assert_eq!(control.show_vm("tpm1").unwrap().summary.power, PowerState::Running);
    assert!(site.host.lock().vms.values().all(|vm| vm.power == HostPower::Stopped));
    no_violations(&site);
}

fn fence(control: &Control, request: u64, host: &str) {
    let wish = FenceHost { confirm: host.to_owned(), even_if_it_answers: false };
    control.fence_host(&caller(request), host, &wish).unwrap();
}

/// A host is lost while a VM is between two of them: the guest goes on at the other one, and with
/// its memory if that is there.
#[test]
fn a_vm_between_two_hosts_outlives_the_loss_of_either() {
    for (stage, lost, power) in [
        ("Send", 0, "restarted"),
        ("TakeUp", 0, "restarted"),
        ("Send", 1, "goes on"),
        ("TakeUp", 1, "goes on"),
        ("Settle { end: Target }", 1, "restarted"),
    ] {
        let (site, control) = on_a_cluster(1);
        control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
        assert!(settle_down(&site, &control));
        start(&site, &control, 2, "web1");
        let id = control.show_vm("web1").unwrap().summary.id;
        let task = control.move_to_host(&caller(3), "web1", &to("host2")).unwrap();
        until_stage(&site, &control, &task, stage);
        let (_, host) = site.hosts().swap_remove(lost);
        host.lose();
        for _ in 0..5 {
            for host in control.hosts() {
                let _ = control.observe(host, Duration::ZERO);
            }
            let _ = control.advance(task.id);
            site.pass(Duration::from_secs(60));
        }
        fence(&control, 4, if lost == 0 { "host1" } else { "host2" });
        assert!(settle_down(&site, &control));
        let (stays, generation) =
            (if lost == 0 { "host2" } else { "host1" }, control.show_vm("web1").unwrap().generation);
        assert_eq!(generation == 1, power == "goes on", "{stage} {lost}: start {generation}");
        let (_, other) = site.hosts().swap_remove(1 - lost);
        assert!(other.lock().works(id), "{stage} {lost}");
        assert_eq!(host_of(&control, "web1"), stays, "{stage} {lost}");
        no_violations(&site);
    }
}

/// Moves that are asked for at once take turns, and all are done.
#[test]
fn a_host_has_four_live_moves_at_once() {
    let (site, control) = shared(1);
    for number in 1..=7 {
        let name = format!("web{number}");
        control.create_vm(&caller(number), &on(&name, "host1")).unwrap();
        assert!(settle_down(&site, &control));
        start(&site, &control, 10 + number, &name);
    }
    let asked = |number: u64| {
        control.move_to_host(&caller(20 + number), &format!("web{number}"), &to("host2")).unwrap()
    };
    let tasks: Vec<Task> = (1..=7).map(asked).collect();
    let mut most = 0;
    for _ in 0..200 {
        for task in &tasks {
            let _ = control.advance(task.id);
        }
        let coming = |inside: &crate::support::site::HostInside| {
            inside.residences.values().filter(|known| known.place == Place::Coming).count()
        };
        most = most.max(coming(&site.others[0].lock()));
        if most == 4 {
            let waits = tasks.iter().filter_map(|task| control.show_task(task.id).unwrap().note);
            assert!(waits.into_iter().all(|note| note.contains("4 VMs move from or to host")));
        }
        site.work();
    }
    assert_eq!(most, 4);
    for task in &tasks {
        assert_eq!(ended(&site, &control, task).state, TaskState::Done);
    }
    no_violations(&site);
}

fn policy(control: &Control, request: u64, name: &str, migration: &str) {
    let wish = serde_json::json!({ "name": name, "rules": { "migration": migration } });
    control.create_policy(&caller(request), &serde_json::from_value(wish).unwrap()).unwrap();
}

/// A VM on the first host, under a policy.
fn under(policy: Option<&str>, name: &str, encrypted: bool) -> CreateVm {
    let board = serde_json::json!({ "processor": "x86-64-v2" });
    CreateVm {
        host: Some("host1".to_owned()),
        policy: policy.map(str::to_owned),
        board: serde_json::from_value(board).unwrap(),
        ..create(name, encrypted)
    }
}

/// Creates and starts it.
fn made(site: &Site, control: &Control, request: u64, wish: &CreateVm) {
    control.create_vm(&caller(request), wish).unwrap();
    assert!(settle_down(site, control));
    start(site, control, request + 1, wish.name.as_str());
}

/// How its memory passed to the other host.
fn passed(site: &Site, control: &Control, request: u64, vm: &str) -> Secrecy {
    let to = if host_of(control, vm) == "host1" { "host2" } else { "host1" };
    let task = moved(site, control, request, vm, to);
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    let (id, secrecy) = *site.keys.lock().permitted.last().unwrap();
    assert_eq!(id, control.show_vm(vm).unwrap().summary.id);
    let recorded = site.keys.lock().uses.last().unwrap().clone();
    assert_eq!(recorded.contains(" in plain text"), secrecy == Secrecy::Plain, "{recorded}");
    secrecy
}

pub fn events_of(control: &Control) -> String {
    let index = control.inventory.read();
    index.events().iter().map(|event| format!("{}: {}\n", event.kind, event.message)).collect()
}

#[test]
fn memory_passes_in_plain_text_if_a_policy_says_so_of_a_vm_that_was_never_encrypted() {
    let (site, control) = shared(1);
    for (number, mode) in ["required", "opportunistic", "disabled"].into_iter().enumerate() {
        policy(&control, 800 + number as u64, mode, mode);
    }
    let wish = serde_json::json!({ "name": "gold", "rules": {} });
    control.create_policy(&caller(804), &serde_json::from_value(wish).unwrap()).unwrap();
    let mut request = 0;
    for (policy, encrypted, secrecy) in [
        (None, false, Secrecy::Encrypted),
        (Some("gold"), false, Secrecy::Encrypted),
        (Some("required"), false, Secrecy::Encrypted),
        // Hosts that do not say what they have are taken for such that have it.
        (Some("opportunistic"), false, Secrecy::Encrypted),
        (Some("disabled"), false, Secrecy::Plain),
        (Some("disabled"), true, Secrecy::Encrypted),
    ] {
        request += 10;
        let name = format!("vm{request}");
        made(&site, &control, request, &under(policy, &name, encrypted));
        assert_eq!(passed(&site, &control, request + 2, &name), secrecy, "{policy:?} {encrypted}");
    }
    let events = events_of(&control);
    for says in [
        "the memory of VM vm50 passes to host host2 in plain text: policy disabled has it so (`disabled`)",
        "it was on host host1; its memory passed in plain text",
        "the memory of VM vm60 passes to host host2: it is encrypted, although policy disabled says `disabled`",
    ] {
        assert!(events.contains(says), "{says}: {events}");
    }
    assert_eq!(events.matches("its memory passed in plain text").count(), 1);
    let shown = |name: &str| {
        let vm = control.show_vm(name).unwrap();
        (vm.migration, vm.migration_overruled)
    };
    assert_eq!(shown("vm10"), (MigrationMode::Required, None));
    assert_eq!(shown("vm40"), (MigrationMode::Opportunistic, None));
    assert_eq!(shown("vm50"), (MigrationMode::Disabled, None));
    assert_eq!(shown("vm60"), (MigrationMode::Required, Some(MigrationMode::Disabled)));
    // No VM deviates, and another rule holds from the next attempt on.
    assert!(control.show_vm("vm60").unwrap().deviations.is_empty());
    let rules = serde_json::json!({ "rules": { "migration": "required" } });
    let set: SetPolicy = serde_json::from_value(rules).unwrap();
    assert_eq!(control.set_policy(&caller(805), "disabled", &set).unwrap().deviating, []);
    assert_eq!(passed(&site, &control, 806, "vm50"), Secrecy::Encrypted);
    no_violations(&site);
}

#[test]
fn a_vm_that_was_encrypted_is_never_in_plain_text_on_the_wire() {
    let (site, control) = shared(1);
    policy(&control, 800, "lab", "disabled");
    let stop = |request, name: &str| {
        let how = StopVm { force: true, timeout_s: None };
        control.stop_vm(&caller(request), name, &how).unwrap();
        assert!(settle_down(&site, &control));
    };
    let ends = |task: Task| assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    // Decrypted; a copy of that; and an unencrypted copy of what is encrypted.
    control.create_vm(&caller(1), &under(Some("lab"), "web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let copy = |name: &str| {
        let wish = serde_json::json!({ "name": name, "encrypted": false });
        serde_json::from_value(wish).unwrap()
    };
    ends(control.clone_vm(&caller(2), "web1", &copy("web2")).unwrap());
    ends(control.decrypt_disk(&caller(3), "web1", "disk0").unwrap());
    ends(control.clone_vm(&caller(4), "web1", &copy("web3")).unwrap());
    // Encrypted in a part, for a while.
    made(&site, &control, 10, &under(Some("lab"), "web4", false));
    assert_eq!(passed(&site, &control, 12, "web4"), Secrecy::Plain);
    stop(13, "web4");
    let disk = serde_json::json!({ "size_bytes": 1 << 20 });
    ends(control.add_disk(&caller(14), "web4", &serde_json::from_value(disk).unwrap()).unwrap());
    let wish = serde_json::from_str("{}").unwrap();
    ends(control.encrypt_disk(&caller(15), "web4", "disk1", &wish).unwrap());
    ends(control.decrypt_disk(&caller(16), "web4", "disk1").unwrap());
    // It outlives the control plane.
    drop(control);
    let control = site.control().unwrap();
    for (number, name) in ["web1", "web2", "web3", "web4"].into_iter().enumerate() {
        let request = 100 + 10 * number as u64;
        let vm = control.show_vm(name).unwrap();
        assert!(!vm.summary.encrypted, "{name}");
        assert_eq!(vm.migration_overruled, Some(MigrationMode::Disabled), "{name}");
        start(&site, &control, request, name);
        assert_eq!(passed(&site, &control, request + 1, name), Secrecy::Encrypted, "{name}");
    }
    no_violations(&site);
}

#[test]
fn opportunistic_is_plain_only_if_a_host_says_that_it_has_no_instructions_for_encryption() {
    let both: &[&str] = &["aes", "pclmulqdq", "sse2"];
    let (no_aes, no_multiplication): (&[&str], &[&str]) = (&["pclmulqdq", "sse2"], &["aes", "sse2"]);
    // Whose list is no list of what a processor has.
    let silent: &[&str] = &[];
    for (source, target, secrecy) in [
        (Some(both), Some(both), Secrecy::Encrypted),
        (Some(no_aes), Some(both), Secrecy::Plain),
        (Some(both), Some(no_aes), Secrecy::Plain),
        (Some(both), Some(no_multiplication), Secrecy::Plain),
        (Some(both), Some(silent), Secrecy::Encrypted),
        (Some(both), None, Secrecy::Encrypted),
        (None, Some(no_aes), Secrecy::Plain),
    ] {
        let (site, control) = shared(1);
        policy(&control, 800, "lab", "opportunistic");
        for ((_, host), has) in site.hosts().into_iter().zip([source, target]) {
            host.lock().capabilities =
                has.and_then(|features| gives(&["pc-q35-7.2"], &["x86-64-v2"], features));
        }
        look_again(&site, &control);
        made(&site, &control, 1, &under(Some("lab"), "web1", false));
        assert_eq!(passed(&site, &control, 3, "web1"), secrecy, "{source:?} {target:?}");
        let why = "has no instructions for encryption";
        assert_eq!(events_of(&control).contains(why), secrecy == Secrecy::Plain);
        made(&site, &control, 4, &under(Some("lab"), "web2", true));
        assert_eq!(passed(&site, &control, 6, "web2"), Secrecy::Encrypted);
    }
}
