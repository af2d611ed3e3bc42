//! VMs that move with their volumes, to hosts that do not reach their datastore.

use std::collections::BTreeSet;
use std::time::Duration;

use strongroom_api::host::EvacuateHost;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CreateVm, MoveToHost, PowerState, StopVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::migration::Place;
use strongroom_types::Bandwidth;

use crate::live_moves::events_of;
use crate::moves::{ended, no_violations, start, stays_on, to};
use crate::placement::{datastore, host_of, maintenance, on};
use crate::support::{Site, caller, copy, killed_after, settle_down};

/// Two hosts, each with a datastore that the other one does not reach, and the VM `web1`.
pub fn apart() -> (Site, Control) {
    let site = Site::with_others(1);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(900), &datastore("near", "host1")).unwrap();
    control.add_datastore(&caller(901), &datastore("far", "host2")).unwrap();
    control.create_vm(&caller(902), &in_near("web1")).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

fn in_near(name: &str) -> CreateVm {
    CreateVm { datastore: Some("near".to_owned()), ..on(name, "host1") }
}

pub fn with(host: &str, datastore: &str) -> MoveToHost {
    MoveToHost { datastore: Some(datastore.to_owned()), ..to(host) }
}

pub fn place(control: &Control) -> (String, String) {
    (host_of(control, "web1"), control.show_vm("web1").unwrap().summary.datastore)
}

pub fn least_generation(control: &Control) -> u64 {
    let index = control.inventory.read();
    index.find_vm("web1").unwrap().hardware.disks[0].least_generation
}

pub fn stops(site: &Site, control: &Control, request: u64) {
    control.stop_vm(&caller(request), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(site, control));
}

pub fn of(host: &str, datastore: &str) -> (String, String) {
    (host.to_owned(), datastore.to_owned())
}

#[test]
fn a_vm_moves_there_and_back_with_its_volumes_and_nothing_of_it_stays() {
    let (site, control) = apart();
    start(&site, &control, 1, "web1");
    stops(&site, &control, 2);
    let id = control.show_vm("web1").unwrap().summary.id;
    for (request, host, there) in [(3, "host2", "far"), (4, "host1", "near"), (5, "host2", "far")] {
        let before = least_generation(&control);
        let task = control.move_to_host(&caller(request), "web1", &with(host, there)).unwrap();
        let task = ended(&site, &control, &task);
        assert_eq!(task.state, TaskState::Done, "{task:?}");
        assert_eq!(place(&control), of(host, there));
        assert!(least_generation(&control) > before, "the former volumes are older");
        let former = if host == "host2" { &site.host } else { &site.others[0] };
        assert!(!former.lock().vms.contains_key(&id), "its former host has nothing of it");
    }
    start(&site, &control, 6, "web1");
    assert!(site.others[0].lock().vms[&id].spec.datastore.ends_with("far"));
    control.remove_datastore(&caller(7), "near").unwrap();
    assert_eq!(control.remove_datastore(&caller(8), "far").unwrap_err().code, ErrorCode::InUse);
    no_violations(&site);
}

#[test]
fn what_does_not_move_so_is_refused_before_anything_is_done() {
    let (site, control) = apart();
    let ask =
        |request, vm: &str, wish: &MoveToHost| control.move_to_host(&caller(request), vm, wish).unwrap_err();
    let says = |problem: Problem, code: ErrorCode, part: &str| {
        assert_eq!(problem.code, code, "{problem}");
        assert!(problem.message.contains(part), "{problem}");
    };
    // Without the name of a datastore none is chosen.
    says(ask(1, "web1", &to("host2")), ErrorCode::NoHost, "datastore near");
    let next = ask(1, "web1", &to("host2")).next_step.unwrap();
    assert!(next.ends_with("`strongroom vm migrate web1 --to HOST --datastore DATASTORE`"), "{next}");
    says(ask(2, "web1", &with("host2", "gone")), ErrorCode::NotFound, "gone");
    says(ask(3, "web1", &with("host1", "far")), ErrorCode::NoHost, "datastore far");
    let tpm = CreateVm { datastore: Some("near".to_owned()), ..stays_on("safe1", "host1") };
    control.create_vm(&caller(7), &tpm).unwrap();
    assert!(settle_down(&site, &control));
    says(ask(8, "safe1", &with("host2", "far")), ErrorCode::Conflict, "has a TPM");
    let linked = strongroom_api::vm::CloneVm { linked: true, ..copy("link1") };
    control.clone_vm(&caller(9), "web1", &linked).unwrap();
    assert!(settle_down(&site, &control));
    says(ask(10, "web1", &with("host2", "far")), ErrorCode::InUse, "shares layers");
    says(ask(11, "link1", &with("host2", "far")), ErrorCode::InUse, "shares layers");
    site.others[0].lock().is_old = true;
    assert!(settle_down(&site, &control));
    control.create_vm(&caller(12), &in_near("web2")).unwrap();
    assert!(settle_down(&site, &control));
    says(ask(13, "web2", &with("host2", "far")), ErrorCode::NoHost, "no VM moves between hosts");
    assert!(site.host.lock().residences.is_empty() && site.others[0].lock().vms.is_empty());
    no_violations(&site);
}

#[test]
fn what_fails_on_the_way_is_tried_again_and_then_leaves_the_vm_where_it_was() {
    // The way is broken, twice: what has arrived is used.
    let (site, control) = apart();
    site.others[0].lock().fetches_that_fail = vec!["broke_off", "broke_off"];
    let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(place(&control), of("host2", "far"));
    start(&site, &control, 2, "web1");
    no_violations(&site);

    for (fails, at_next) in [("full", true), ("left", true), ("left", false)] {
        let (site, control) = apart();
        let before = least_generation(&control);
        {
            let mut inside = if at_next { site.others[0].lock() } else { site.host.lock() };
            match fails {
                "full" => inside.fetches_that_fail = vec!["full"],
                _ => inside.moves_that_fail = vec!["system"],
            }
        }
        let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
        let task = ended(&site, &control, &task);
        assert_eq!(task.state, TaskState::Failed, "{fails}: {task:?}");
        assert_eq!(place(&control), of("host1", "near"), "{fails}");
        assert_eq!(least_generation(&control), before, "{fails}: the volumes here count");
        assert!(site.others[0].lock().vms.is_empty(), "{fails}: the copy is removed");
        start(&site, &control, 2, "web1");
        no_violations(&site);
    }
}

#[test]
fn a_copy_that_cannot_be_removed_is_told() {
    let (site, control) = apart();
    site.host.lock().removals_that_fail = vec!["stranger"];
    let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    let events = events_of(&control);
    let left = events.lines().find(|line| line.contains("vm.copy_left")).expect("an event");
    assert!(left.contains("on host host1, in datastore near"), "{left}");
    start(&site, &control, 2, "web1");
    no_violations(&site);
}

/// A task gets no further, for minutes.
fn waits(site: &Site, control: &Control, task: &Task) {
    for _ in 0..10 {
        control.advance(task.id).unwrap();
        for (_, host) in site.hosts() {
            host.work();
        }
        site.pass(Duration::from_secs(60));
    }
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Running);
}

#[test]
fn a_host_that_is_away_is_waited_for_and_the_vm_is_on_one_of_the_two() {
    let (site, control) = apart();
    let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
    site.host.lock().down = true;
    waits(&site, &control, &task);
    let told = control.show_task(task.id).unwrap();
    assert!(told.note.as_deref().unwrap().contains("host1"), "{told:?}");
    control.cancel_task(&caller(2), task.id).unwrap();
    site.host.lock().down = false;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
    assert_eq!(place(&control), of("host1", "near"));
    // It is away when nothing but its copy is left to be done.
    maintenance(&control, "host1", true);
    let task = control.move_to_host(&caller(3), "web1", &with("host2", "far")).unwrap();
    while place(&control) != of("host2", "far") {
        let _ = control.advance(task.id);
        for (_, host) in site.hosts() {
            host.work();
        }
    }
    site.host.lock().down = true;
    waits(&site, &control, &task);
    control.cancel_task(&caller(4), task.id).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    start(&site, &control, 5, "web1");
    no_violations(&site);
}

/// The control plane is killed at each moment, and hosts are restarted then.
#[test]
fn a_move_completes_whenever_the_control_plane_was_killed() {
    let moments = (1_i64..).find(|moments| !is_killed_at(*moments)).unwrap();
    println!("killed at each of the first {moments} moments of a move");
    assert!(moments > 25, "{moments}");
}

/// Returns `false` if the move was over before that moment.
fn is_killed_at(moments: i64) -> bool {
    let (site, control) = apart();
    let id = control.show_vm("web1").unwrap().summary.id;
    let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
    let (control, killed) = killed_after(&site, control, moments);
    let task = ended(&site, &control, &task);
    assert_eq!(task.state, TaskState::Done, "killed at {moments}: {task:?}");
    assert_eq!(place(&control), of("host2", "far"), "killed at {moments}");
    let residences = [&site.host, &site.others[0]].map(|host| host.lock().residences[&id].place);
    assert_eq!(residences, [Place::Left, Place::Here], "killed at {moments}");
    assert!(!site.host.lock().vms.contains_key(&id), "killed at {moments}");
    start(&site, &control, 2, "web1");
    no_violations(&site);
    killed
}

#[test]
fn a_move_that_is_cancelled_leaves_the_vm_on_one_host_with_its_volumes() {
    let mut ends = BTreeSet::new();
    for steps in 0..20 {
        for forgets in [false, true] {
            let (site, control) = apart();
            let id = control.show_vm("web1").unwrap().summary.id;
            let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
            for _ in 0..steps {
                let _ = control.advance(task.id);
                for (_, host) in site.hosts() {
                    host.work();
                }
            }
            if forgets {
                site.hosts().iter().for_each(|(_, host)| host.restart());
            }
            // Too late for one that is over.
            let _ = control.cancel_task(&caller(2), task.id);
            let task = ended(&site, &control, &task);
            let is_done = task.state == TaskState::Done;
            let expected = if is_done { of("host2", "far") } else { of("host1", "near") };
            assert_eq!(place(&control), expected, "after {steps} steps: {task:?}");
            let other = if is_done { &site.host } else { &site.others[0] };
            assert!(!other.lock().vms.contains_key(&id), "after {steps} steps, forgetting: {forgets}");
            ends.insert(is_done);
            start(&site, &control, 3, "web1");
            assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
            no_violations(&site);
        }
    }
    assert_eq!(ends.len(), 2, "cancelled too early and too late");
}

/// What an earlier attempt has left there is not taken for the VM, which has changed since.
#[test]
fn a_copy_of_an_earlier_attempt_is_not_the_vm() {
    let (site, control) = apart();
    let id = control.show_vm("web1").unwrap().summary.id;
    {
        let mut next = site.others[0].lock();
        (next.moves_that_fail, next.removals_that_fail) = (vec!["system"], vec!["stranger"]);
    }
    let task = control.move_to_host(&caller(1), "web1", &with("host2", "far")).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Failed);
    assert!(site.others[0].lock().vms.contains_key(&id), "its copy is left");
    start(&site, &control, 2, "web1");
    stops(&site, &control, 3);
    let generation = site.host.lock().vms[&id].generation;
    let task = control.move_to_host(&caller(4), "web1", &with("host2", "far")).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(site.others[0].lock().vms[&id].generation, generation, "it is as it was last");
    start(&site, &control, 5, "web1");
    no_violations(&site);
}

#[test]
fn what_passes_keeps_to_the_limit_of_the_move_and_memory_beside_volumes_to_half_of_it() {
    const LIMIT: u64 = 100 << 20;
    let (site, control) = apart();
    let limited = |host: &str, datastore: &str| MoveToHost {
        bytes_per_second: Some(Bandwidth::new(LIMIT).unwrap()),
        ..with(host, datastore)
    };
    let told = || site.hosts().iter().flat_map(|(_, host)| std::mem::take(&mut host.lock().limits)).collect();
    let moved = |request, wish: &MoveToHost| -> Vec<(&'static str, Option<u64>)> {
        let task = control.move_to_host(&caller(request), "web1", wish).unwrap();
        let task = ended(&site, &control, &task);
        assert_eq!(task.state, TaskState::Done, "{task:?}");
        told()
    };
    assert_eq!(moved(1, &limited("host2", "far")), [("fetch", Some(LIMIT))]);
    assert_eq!(moved(2, &with("host1", "near")), [("fetch", None)]);
    start(&site, &control, 3, "web1");
    let mut live = moved(4, &limited("host2", "far"));
    live.sort_unstable();
    let half = Some(LIMIT / 2);
    assert_eq!(live, [("fetch_live", Some(LIMIT)), ("receive", half), ("send", half)]);
}

/// Three hosts, each with a datastore of its own, and the VMs `web1`, which runs, `web2`, and
/// `safe1`, which has a TPM.
fn three_apart() -> (Site, Control) {
    let site = Site::with_others(2);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    for (request, name, host) in [(900, "near", "host1"), (901, "far", "host2"), (902, "farther", "host3")] {
        control.add_datastore(&caller(request), &datastore(name, host)).unwrap();
    }
    control.create_vm(&caller(903), &in_near("web1")).unwrap();
    control.create_vm(&caller(904), &in_near("web2")).unwrap();
    let tpm = CreateVm { datastore: Some("near".to_owned()), ..stays_on("safe1", "host1") };
    control.create_vm(&caller(905), &tpm).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 906, "web1");
    (site, control)
}

fn evacuated(site: &Site, control: &Control, request: u64, with_volumes: bool) -> Problem {
    let how = EvacuateHost { with_volumes, ..EvacuateHost::default() };
    let task = control.evacuate_host(&caller(request), "host1", &how).unwrap();
    ended(site, control, &task).error.unwrap()
}

#[test]
fn an_evacuation_takes_volumes_along_if_that_is_asked_for_to_where_the_most_is_free() {
    let (site, control) = three_apart();
    site.others[0].lock().free_bytes = 200 << 30;
    site.others[1].lock().free_bytes = 300 << 30;
    let problem = evacuated(&site, &control, 1, false);
    assert!(problem.message.contains("3 VMs could not be moved, and 0 were"), "{problem}");
    assert!(problem.next_step.as_ref().unwrap().contains("--with-volumes"), "{problem}");
    assert_eq!(place(&control), of("host1", "near"));
    let problem = evacuated(&site, &control, 2, true);
    assert!(problem.message.contains("1 VM could not be moved, and 2 were: VM safe1"), "{problem}");
    assert!(problem.message.contains("datastore farther: VM safe1 has a TPM"), "{problem}");
    assert_eq!(place(&control), of("host3", "farther"));
    let web1 = control.show_vm("web1").unwrap();
    assert_eq!(web1.summary.power, PowerState::Running);
    assert!(site.others[1].lock().works(web1.summary.id), "it was not shut down");
    no_violations(&site);
}

#[test]
fn volumes_go_where_they_are_expected_to_fit_and_hosts_have_the_memory() {
    let (site, control) = three_apart();
    let disk_bytes = control.show_vm("web1").unwrap().disks[0].size_bytes;
    // What is on its way to a datastore counts there: the second VM goes to the other one.
    site.others[0].lock().free_bytes = 2 * disk_bytes;
    site.others[1].lock().free_bytes = 2 * disk_bytes + 1;
    assert!(settle_down(&site, &control));
    evacuated(&site, &control, 1, true);
    let mut datastores = ["web1", "web2"].map(|name| control.show_vm(name).unwrap().summary.datastore);
    datastores.sort_unstable();
    assert_eq!(datastores, ["far", "farther"]);
    no_violations(&site);

    let (site, control) = three_apart();
    let gold = serde_json::from_str(r#"{"name":"gold","rules":{}}"#).unwrap();
    control.create_policy(&caller(1), &gold).unwrap();
    let kept = CreateVm { policy: Some("gold".to_owned()), ..in_near("kept1") };
    control.create_vm(&caller(2), &kept).unwrap();
    assert!(settle_down(&site, &control));
    let demands = serde_json::from_str(r#"{"rules":{"losses_survived":1}}"#).unwrap();
    control.set_policy(&caller(3), "gold", &demands).unwrap();
    let problem = evacuated(&site, &control, 4, true);
    for part in ["VM kept1: no host fits", "its volumes must outlive 1 losses of storage, and datastore far"]
    {
        assert!(problem.message.contains(part), "{part}: {problem}");
    }
    assert_eq!(host_of(&control, "kept1"), "host1");

    let (site, control) = three_apart();
    site.others[0].lock().free_bytes = 0;
    site.others[1].lock().memory_bytes = 0;
    assert!(settle_down(&site, &control));
    let problem = evacuated(&site, &control, 1, true);
    assert!(problem.message.contains("3 VMs could not be moved, and 0 were"), "{problem}");
    for part in ["datastore far: it has room for 0B", "datastore farther: host host3"] {
        assert!(problem.message.contains(part), "{part}: {problem}");
    }
    maintenance(&control, "host2", true);
    let problem = evacuated(&site, &control, 2, true);
    assert!(problem.message.contains("host2 is in maintenance"), "{problem}");
    assert_eq!(place(&control), of("host1", "near"));
}
