//! VMs that move while they run, to hosts that do not reach their datastore: each order fails, each
//! is cancelled, the control plane is killed at every moment, and a host falls silent.

use std::collections::BTreeSet;
use std::time::Duration;

use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::PowerState;
use strongroom_control::engine::Control;
use strongroom_host::migration::Place;
use strongroom_host::protocol::VmGeneration;
use strongroom_types::VmId;

use crate::carried_moves::{apart, least_generation, of, place, stops, with};
use crate::live_moves::{failed, runs_on, until_stage};
use crate::moves::{ended, no_violations, start};
use crate::support::{Site, caller, killed_after, killed_at_each};

fn running() -> (Site, Control, VmId) {
    let (site, control) = apart();
    start(&site, &control, 1, "web1");
    let id = control.show_vm("web1").unwrap().summary.id;
    (site, control, id)
}

fn begun(control: &Control, request: u64, host: &str, datastore: &str) -> Task {
    control.move_to_host(&caller(request), "web1", &with(host, datastore)).unwrap()
}

/// It runs on this host, out of this datastore, and nothing of it is at the other one.
fn is_at(site: &Site, control: &Control, id: VmId, host: &str, datastore: &str) {
    runs_on(site, control, id, host);
    assert_eq!(place(control), of(host, datastore));
    for (name, there) in site.hosts() {
        let inside = there.lock();
        assert!(!inside.copies.contains(&id), "volumes are left on {name}");
        assert_eq!(inside.vms.contains_key(&id), name.as_str() == host, "on {name}");
        if let Some(vm) = inside.vms.get(&id) {
            assert!(vm.spec.datastore.ends_with(datastore), "{:?}", vm.spec.datastore);
        }
    }
}

#[test]
fn a_vm_that_runs_goes_on_where_its_volumes_have_come_and_nothing_of_it_stays() {
    let (site, control, id) = running();
    for (request, host, there) in [(2, "host2", "far"), (3, "host1", "near"), (4, "host2", "far")] {
        let before = least_generation(&control);
        let task = ended(&site, &control, &begun(&control, request, host, there));
        assert_eq!(task.state, TaskState::Done, "{task:?}");
        is_at(&site, &control, id, host, there);
        assert!(least_generation(&control) > before, "the former volumes are older");
    }
    let uses = site.keys.lock().uses.clone();
    assert_eq!(uses.len(), 6, "{uses:?}");
    assert_eq!(uses[0], "the volumes of VM web1 pass to host host2, by test");
    assert_eq!(uses[1], "the memory of VM web1 passes to host host2, by test");
    let text = crate::live_moves::events_of(&control);
    let moves = "it moves from host host1 to host host2, with its volumes to datastore far, while it runs";
    assert!(text.contains(moves), "{text}");
    // It is the same VM: off, it moves, too, and starts where it is.
    stops(&site, &control, 5);
    let task = ended(&site, &control, &begun(&control, 6, "host1", "near"));
    assert_eq!(task.state, TaskState::Done);
    start(&site, &control, 7, "web1");
    is_at(&site, &control, id, "host1", "near");
    control.remove_datastore(&caller(8), "far").unwrap();
}

#[test]
fn whatever_fails_leaves_the_guest_and_its_volumes_where_they_were() {
    for (order, at) in [("offer", 0), ("fetch_live", 1), ("receive", 1), ("send", 0), ("take_up", 1)] {
        let (site, control, id) = running();
        let before = least_generation(&control);
        let (_, host) = site.hosts().swap_remove(at);
        host.lock().live_orders_that_fail = vec![(order, "full")];
        let task = ended(&site, &control, &begun(&control, 2, "host2", "far"));
        assert!(failed(&task).contains("it does not"), "{order}: {task:?}");
        is_at(&site, &control, id, "host1", "near");
        assert_eq!(least_generation(&control), before, "{order}: the volumes here count");
        let voided = site.keys.lock().voided.contains(&(id, VmGeneration(2)));
        assert_eq!(voided, order != "offer", "{order}");
        let task = ended(&site, &control, &begun(&control, 3, "host2", "far"));
        assert_eq!(task.state, TaskState::Done, "{order}: {task:?}");
        is_at(&site, &control, id, "host2", "far");
    }
}

#[test]
fn a_way_that_breaks_off_is_tried_again_with_what_has_arrived() {
    let (site, control, id) = running();
    site.others[0].lock().fetches_that_fail = vec!["broke_off", "broke_off"];
    let task = ended(&site, &control, &begun(&control, 2, "host2", "far"));
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    is_at(&site, &control, id, "host2", "far");
    site.host.lock().fetches_that_fail = vec!["broke_off"; 20];
    let task = ended(&site, &control, &begun(&control, 3, "host1", "near"));
    assert!(failed(&task).contains("broke off"), "{task:?}");
    site.host.lock().fetches_that_fail.clear();
    is_at(&site, &control, id, "host2", "far");
}

#[test]
fn a_datastore_that_is_taken_away_meanwhile_leaves_the_guest_where_it_was() {
    let (site, control, id) = running();
    let task = begun(&control, 2, "host2", "far");
    until_stage(&site, &control, &task, "TakeUp");
    let refused = control.remove_datastore(&caller(3), "far").unwrap_err();
    assert!(refused.message.contains("web1"), "{refused}");
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    is_at(&site, &control, id, "host2", "far");
}

/// Long enough for a host that is down to be known as such.
fn minutes_pass(site: &Site, control: &Control, task: &Task) {
    for _ in 0..20 {
        for host in control.hosts() {
            let _ = control.observe(host, Duration::ZERO);
        }
        let _ = control.advance(task.id);
        site.work();
        site.pass(Duration::from_secs(60));
    }
}

/// A target that has volumes of its own cannot write to those of the source: nobody waits for it.
#[test]
fn a_target_that_falls_silent_is_not_waited_for() {
    let (site, control, id) = running();
    let task = begun(&control, 2, "host2", "far");
    until_stage(&site, &control, &task, "TakeUp");
    site.others[0].lock().down = true;
    minutes_pass(&site, &control, &task);
    assert!(site.host.lock().works(id), "the guest goes on");
    assert!(!site.others[0].lock().works(id));
    // Its copy is removed when it answers.
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Running);
    site.others[0].lock().down = false;
    let task = ended(&site, &control, &task);
    assert!(failed(&task).contains("host2"), "{task:?}");
    is_at(&site, &control, id, "host1", "near");
}

/// A source that is away when the guest goes on elsewhere: what it has is removed when it answers,
/// or stays if the task is cancelled, and an event says so.
#[test]
fn a_source_that_falls_silent_keeps_no_one_waiting_but_the_task() {
    for is_cancelled in [false, true] {
        let (site, control, id) = running();
        let task = begun(&control, 2, "host2", "far");
        until_stage(&site, &control, &task, "Keys");
        site.host.lock().down = true;
        minutes_pass(&site, &control, &task);
        assert!(site.others[0].lock().works(id), "the guest goes on");
        let waits = control.show_task(task.id).unwrap();
        assert!(waits.note.as_deref().unwrap().contains("cancel the task to leave it there"), "{waits:?}");
        if is_cancelled {
            control.cancel_task(&caller(3), task.id).unwrap();
            assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
            let text = crate::live_moves::events_of(&control);
            assert!(text.contains("may be left on host host1, in datastore near"), "{text}");
            assert_eq!(place(&control), of("host2", "far"));
            continue;
        }
        site.host.lock().down = false;
        assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
        is_at(&site, &control, id, "host2", "far");
    }
}

#[test]
fn a_move_with_volumes_that_is_cancelled_ends_on_one_host() {
    let mut ends = BTreeSet::new();
    for steps in 0..32 {
        for forgets in [false, true] {
            let (site, control, id) = running();
            let task = begun(&control, 2, "host2", "far");
            for _ in 0..steps {
                let _ = control.advance(task.id);
                site.work();
            }
            if forgets {
                site.hosts().iter().for_each(|(_, host)| host.restart());
            }
            let _ = control.cancel_task(&caller(3), task.id);
            let task = ended(&site, &control, &task);
            let (host, datastore) = at_end(&task);
            is_at(&site, &control, id, host, datastore);
            ends.insert(host);
        }
    }
    assert_eq!(ends.len(), 2, "cancelled too early and too late: {ends:?}");
}

fn at_end(task: &Task) -> (&'static str, &'static str) {
    if task.state == TaskState::Done { ("host2", "far") } else { ("host1", "near") }
}

/// The control plane is killed at each moment of the move, and hostd is restarted then.
#[test]
fn a_move_with_volumes_ends_whenever_the_control_plane_was_killed() {
    let (moments, ends) = killed_at_each(killed_at);
    println!("killed at each of the first {moments} moments of a live move with volumes: {ends:?}");
    assert!(moments > 50 && ends.len() == 2, "{moments} {ends:?}");
}

/// Where the VM runs then; `None` if the move was over before that moment.
fn killed_at(moments: i64) -> Option<&'static str> {
    let (site, control, id) = running();
    let task = begun(&control, 2, "host2", "far");
    let (control, killed) = killed_after(&site, control, moments);
    let task = ended(&site, &control, &task);
    let (host, datastore) = at_end(&task);
    is_at(&site, &control, id, host, datastore);
    killed.then_some(host)
}

/// A guest that was paused moves, and is paused.
#[test]
fn a_paused_vm_moves_with_its_volumes_and_is_paused() {
    let (site, control, id) = running();
    control.pause_vm(&caller(2), "web1").unwrap();
    assert!(crate::support::settle_down(&site, &control));
    let task = ended(&site, &control, &begun(&control, 3, "host2", "far"));
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Paused);
    assert_eq!(site.host.lock().residences[&id].place, Place::Left);
    no_violations(&site);
}
