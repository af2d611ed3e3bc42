//! Disks of VMs move to other datastores: what is refused, what is recorded before the host deletes
//! the former volume, or may decide where a disk is, and what becomes of a task that fails or is
//! cancelled.

use std::time::Duration;

use strongroom_api::policy::PolicyRule;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{
    AddDisk, MoveDisk, PowerState, RegisterVm, StartVm, StopVm, TemplateVm, VmListQuery,
};
use strongroom_api::volume::{ChangeVolumes, VolumeListQuery};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_control::records::Work;
use strongroom_host::protocol::PowerState as HostPowerState;

use strongroom_types::Redundancy;

use crate::clusters::on_a_cluster;
use crate::moves::no_violations;
use crate::placement::datastore;
use crate::support::{Site, caller, copy, settle_down, with_vms};

fn to(datastore: &str) -> MoveDisk {
    serde_json::from_value(serde_json::json!({ "datastore": datastore })).unwrap()
}

fn ended(site: &Site, control: &Control, task: &Task) -> Task {
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

fn moved(site: &Site, control: &Control, request: u64, disk: &str, datastore: &str) -> Task {
    let task = control.move_disk(&caller(request), "web1", disk, &to(datastore)).unwrap();
    ended(site, control, &task)
}

/// The names of the datastores of the VM's disks.
fn places(control: &Control) -> Vec<String> {
    control.show_vm("web1").unwrap().disks.into_iter().map(|disk| disk.datastore).collect()
}

fn starts(site: &Site, control: &Control, request: u64) {
    control.start_vm(&caller(request), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(site, control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    no_violations(site);
}

fn stops(site: &Site, control: &Control, request: u64) {
    control.stop_vm(&caller(request), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(site, control));
}

fn code<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ErrorCode {
    answer.unwrap_err().code
}

/// The encrypted VM `web1` with two disks in `ds1`, and another datastore `fast`.
fn with_fast() -> (Site, Control) {
    let (site, control) = with_vms(&["web1"]);
    let fast = serde_json::from_str(r#"{"name":"fast","path":"/srv/fast"}"#).unwrap();
    control.add_datastore(&caller(901), &fast).unwrap();
    let more: AddDisk = serde_json::from_str(r#"{"size_bytes":2097152}"#).unwrap();
    control.add_disk(&caller(902), "web1", &more).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

#[test]
fn a_disk_moves_there_and_back_and_its_vm_counts_in_both_datastores() {
    let (site, control) = with_fast();
    assert_eq!(places(&control), ["ds1", "ds1"]);
    let there = moved(&site, &control, 1, "disk1", "fast");
    assert_eq!(there.state, TaskState::Done, "{there:?}");
    assert_eq!(places(&control), ["ds1", "fast"]);
    starts(&site, &control, 2);
    let id = control.show_vm("web1").unwrap().summary.id;
    {
        let inside = site.host.lock();
        let place = inside.vms[&id].spec.disks[1].place.as_ref().unwrap();
        assert_eq!(place.path, std::path::Path::new("/srv/fast"));
    }
    let found = |datastore: &str| {
        let datastore = Some(datastore.to_owned());
        let vms = control.list_vms(&VmListQuery { datastore: datastore.clone(), ..VmListQuery::default() });
        let volumes = control.list_volumes(&VolumeListQuery { datastore, ..VolumeListQuery::default() });
        (vms.unwrap().items.len(), volumes.unwrap().items.len())
    };
    assert_eq!((found("ds1"), found("fast")), ((1, 1), (1, 1)));
    let provisioned = |name: &str| {
        let index = control.inventory.read();
        let datastore = index.datastores.iter().find(|row| row.name.as_str() == name).unwrap().id;
        index.sums(&strongroom_control::inventory::Facet::Datastore(datastore)).disk_bytes
    };
    assert_eq!((provisioned("ds1"), provisioned("fast")), (1 << 20, 2 << 20));
    let used = control.remove_datastore(&caller(3), "fast").unwrap_err();
    assert_eq!(used.code, ErrorCode::InUse, "{used}");

    stops(&site, &control, 4);
    assert_eq!(moved(&site, &control, 5, "disk0", "fast").state, TaskState::Done);
    assert_eq!(moved(&site, &control, 6, "disk1", "ds1").state, TaskState::Done);
    assert_eq!(places(&control), ["fast", "ds1"]);
    assert_eq!(moved(&site, &control, 7, "disk0", "ds1").state, TaskState::Done);
    control.remove_datastore(&caller(8), "fast").unwrap();
    starts(&site, &control, 9);
}

#[test]
fn a_vm_is_registered_with_the_places_of_its_disks() {
    let (site, control) = with_fast();
    assert_eq!(moved(&site, &control, 1, "disk1", "fast").state, TaskState::Done);
    control.unregister_vm(&caller(2), "web1").unwrap();
    assert!(settle_down(&site, &control));
    control.remove_datastore(&caller(3), "fast").unwrap();
    let wish: RegisterVm =
        serde_json::from_value(serde_json::json!({ "directory": "web1", "datastore": "ds1" })).unwrap();
    let missing = control.register_vm(&caller(4), &wish).unwrap_err();
    assert!(missing.message.contains("which is not in this inventory"), "{missing}");
    let fast = serde_json::from_str(r#"{"name":"quick","path":"/srv/fast"}"#).unwrap();
    control.add_datastore(&caller(5), &fast).unwrap();
    control.register_vm(&caller(6), &wish).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(places(&control), ["ds1", "quick"]);
    starts(&site, &control, 7);
}

#[test]
fn what_cannot_move_is_refused_by_name() {
    let (site, control) = with_fast();
    let ask = |request, disk: &str, datastore: &str| {
        control.move_disk(&caller(request), "web1", disk, &to(datastore))
    };
    assert_eq!(code(ask(1, "disk7", "fast")), ErrorCode::NotFound);
    assert_eq!(code(ask(2, "disk1", "slow")), ErrorCode::NotFound);
    let here = ask(3, "disk1", "ds1").unwrap_err();
    assert!(here.message.contains("is in datastore ds1 already"), "{here}");

    // A host of an earlier version has all disks of a VM in one datastore, also while it is off.
    site.host.lock().is_old = true;
    starts(&site, &control, 4);
    let runs = ask(5, "disk1", "fast").unwrap_err();
    assert!(runs.message.contains("only while its VM is off"), "{runs}");
    stops(&site, &control, 6);
    let old = ask(7, "disk1", "fast").unwrap_err();
    assert!(old.message.contains("all disks of a VM are in one datastore"), "{old}");
    site.host.lock().is_old = false;
    assert!(settle_down(&site, &control));

    let swap: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576,"kind":"swap"}"#).unwrap();
    control.add_disk(&caller(8), "web1", &swap).unwrap();
    assert!(settle_down(&site, &control));
    let swap = ask(9, "swap0", "fast").unwrap_err();
    assert!(swap.message.contains("is a swap disk"), "{swap}");
    control.remove_disk(&caller(10), "web1", "swap0").unwrap();
    assert!(settle_down(&site, &control));

    // What is elsewhere is no volume of its own, and shares no layers.
    assert_eq!(moved(&site, &control, 11, "disk1", "fast").state, TaskState::Done);
    let unbind =
        serde_json::json!({ "changes": [{ "change": "unbind", "volume": "web1/disk1", "name": "data1" }] });
    let unbind: ChangeVolumes = serde_json::from_value(unbind).unwrap();
    let answer = serde_json::to_string(&control.change_volumes(&caller(12), &unbind).unwrap()).unwrap();
    assert!(answer.contains("is in another datastore"), "{answer}");
    let linked = strongroom_api::vm::CloneVm { linked: true, ..copy("web2") };
    let shared = control.clone_vm(&caller(13), "web1", &linked).unwrap_err();
    assert!(shared.message.contains("a clone shares nothing"), "{shared}");
    let full = control.clone_vm(&caller(14), "web1", &copy("web2")).unwrap();
    assert_eq!(ended(&site, &control, &full).state, TaskState::Done);
    let clone = control.show_vm("web2").unwrap();
    assert!(clone.disks.iter().all(|disk| disk.datastore == "ds1"), "{:?}", clone.disks);

    let template = control.template_vm(&caller(15), "web1", &TemplateVm::default()).unwrap();
    assert_eq!(ended(&site, &control, &template).state, TaskState::Done);
    assert!(ask(16, "disk1", "ds1").unwrap_err().message.contains("is a template"));
    no_violations(&site);
}

#[test]
fn what_fails_or_is_cancelled_before_the_decision_leaves_the_disk_where_it_was() {
    let (site, control) = with_fast();
    site.host.lock().disk_changes_that_fail = vec!["no_space"];
    let failed = moved(&site, &control, 1, "disk1", "fast");
    assert_eq!(failed.error.unwrap().code, ErrorCode::DatastoreFull);
    assert_eq!(places(&control), ["ds1", "ds1"]);
    starts(&site, &control, 2);
    stops(&site, &control, 3);

    // One failure of the host is no failure of the move.
    site.host.lock().disk_changes_that_fail = vec!["job_died"];
    assert_eq!(moved(&site, &control, 4, "disk1", "fast").state, TaskState::Done);
    assert_eq!(moved(&site, &control, 5, "disk1", "ds1").state, TaskState::Done);

    let task = control.move_disk(&caller(6), "web1", "disk1", &to("fast")).unwrap();
    control.advance(task.id).unwrap();
    control.advance(task.id).unwrap();
    control.cancel_task(&caller(7), task.id).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
    assert_eq!(places(&control), ["ds1", "ds1"]);
    starts(&site, &control, 8);
}

#[test]
fn after_the_decision_the_disk_only_arrives() {
    let (site, control) = with_fast();
    let task = control.move_disk(&caller(1), "web1", "disk1", &to("fast")).unwrap();
    let decided = || {
        let index = control.inventory.read();
        matches!(index.task(task.id).unwrap().work, Work::TakeDisk { .. })
    };
    for _ in 0..100 {
        if decided() {
            break;
        }
        control.advance(task.id).unwrap();
        site.work();
    }
    assert!(decided());
    assert_eq!(places(&control), ["ds1", "fast"]);
    // A cancellation comes too late, and the host fails for good.
    control.cancel_task(&caller(2), task.id).unwrap();
    site.host.lock().disk_changes_that_fail = vec!["job_died"; 20];
    let failed = ended(&site, &control, &task);
    assert_eq!(failed.state, TaskState::Failed);
    let error = failed.error.unwrap();
    assert!(error.message.contains("disk1 of VM web1 has not arrived"), "{error}");
    assert!(error.next_step.unwrap().contains("strongroom vm disk move web1 disk1 --to fast"));

    // Until it has arrived, the VM does not start, and neither datastore goes away.
    let kept = control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap_err();
    assert!(kept.message.contains("has not arrived"), "{kept}");
    let back = control.move_disk(&caller(4), "web1", "disk1", &to("ds1")).unwrap_err();
    assert!(back.message.contains("has not arrived"), "{back}");
    assert_eq!(code(control.remove_datastore(&caller(5), "fast")), ErrorCode::InUse);
    site.host.lock().disk_changes_that_fail.clear();
    assert_eq!(moved(&site, &control, 6, "disk1", "fast").state, TaskState::Done);
    starts(&site, &control, 7);
}

#[test]
fn a_move_waits_for_a_host_that_is_away_and_for_a_datastore_that_is_taken_away() {
    let (site, control) = with_fast();
    let task = control.move_disk(&caller(1), "web1", "disk1", &to("fast")).unwrap();
    control.advance(task.id).unwrap();
    site.host.lock().down = true;
    control.advance(task.id).unwrap();
    let waits = control.show_task(task.id).unwrap();
    assert!(waits.note.as_deref().unwrap().starts_with("waiting for host host1"), "{waits:?}");
    let used = control.remove_datastore(&caller(2), "fast").unwrap_err();
    assert!(used.message.contains("a disk of VM web1 moves to datastore fast"), "{used}");
    site.host.lock().down = false;
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    starts(&site, &control, 3);
}

/// What a policy demands holds for the datastore of each disk, and applying it moves disks, also
/// under a guest.
#[test]
fn a_policy_that_is_applied_moves_disks_to_where_they_are_kept() {
    for runs in [false, true] {
        policy_is_applied(runs);
    }
}

fn policy_is_applied(runs: bool) {
    let (site, control) = on_a_cluster(0);
    site.host.lock().redundancy = Some(Redundancy { losses_survived: 2, losses_served: 1 });
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(1), &datastore("ds1", "host1")).unwrap();
    let gold = serde_json::from_str(r#"{"name":"gold","rules":{}}"#).unwrap();
    control.create_policy(&caller(2), &gold).unwrap();
    let wish = serde_json::json!({ "name": "web1", "datastore": "big", "policy": "gold", "memory_bytes": 64 << 20,
        "disks": [{ "size_bytes": 1 << 20 }, { "size_bytes": 1 << 20 }] });
    control.create_vm(&caller(3), &serde_json::from_value(wish).unwrap()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(moved(&site, &control, 4, "disk1", "ds1").state, TaskState::Done);
    assert!(control.show_vm("web1").unwrap().deviations.is_empty());
    if runs {
        starts(&site, &control, 9);
    }

    control
        .set_policy(
            &caller(5),
            "gold",
            &serde_json::from_value(serde_json::json!({
        "rules": { "losses_survived": 2 } }))
            .unwrap(),
        )
        .unwrap();
    let [deviation] = &control.show_vm("web1").unwrap().deviations[..] else { panic!("one deviates") };
    assert_eq!((deviation.rule, deviation.disk.as_deref()), (PolicyRule::Redundancy, Some("disk1")));
    assert!(deviation.next_step.contains("strongroom vm disk move web1 disk1 --to big"), "{deviation:?}");
    let other = control.move_disk(&caller(6), "web1", "disk0", &to("ds1")).unwrap_err();
    assert!(other.message.contains("policy gold: disk0 of VM web1 must outlive 2 losses"), "{other}");

    let applied = control.apply_policy(&caller(7), "gold").unwrap();
    assert_eq!(ended(&site, &control, &applied).state, TaskState::Done);
    assert_eq!(places(&control), ["big", "big"]);
    let vm = control.show_vm("web1").unwrap();
    assert!(vm.deviations.is_empty() && vm.summary.power.is_on() == runs);
    if runs {
        stops(&site, &control, 10);
    }
    starts(&site, &control, 8);
}

#[test]
fn a_disk_is_in_one_place_whenever_the_control_plane_was_killed() {
    for moment in 1..400 {
        let (site, control) = with_fast();
        site.fuse.set(moment);
        let asked = control.move_disk(&caller(1), "web1", "disk1", &to("fast"));
        if asked.is_ok() {
            settle_down(&site, &control);
        }
        let was_killed = site.fuse.is_burnt();
        drop(control);
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        assert!(settle_down(&site, &control));
        // The caller repeats what was not answered, with the same key.
        let task = control.move_disk(&caller(1), "web1", "disk1", &to("fast")).unwrap();
        assert_eq!(ended(&site, &control, &task).state, TaskState::Done, "moment {moment}");
        assert_eq!(places(&control), ["ds1", "fast"], "moment {moment}");
        starts(&site, &control, 2);
        if !was_killed {
            assert!(moment > 10, "it was killed at no moment");
            return;
        }
    }
    panic!("there are more moments");
}

/// What the inventory says of disk1 of `web1`: where it is, and where it may be.
fn inventory_says(control: &Control) -> (String, Option<String>) {
    let index = control.inventory.read();
    let vm = index.vms.iter().find(|vm| vm.name.as_str() == "web1").unwrap();
    let disk = vm.hardware.disk("disk1").unwrap();
    let name =
        |id: &strongroom_types::DatastoreId| index.datastores.get(&id.to_string()).unwrap().name.to_string();
    (name(&vm.datastore_of(disk)), disk.moves_to.as_ref().map(name))
}

fn advances_until(site: &Site, control: &Control, task: &Task, so: impl Fn(&Work) -> bool) {
    for _ in 0..200 {
        if so(&control.inventory.read().task(task.id).unwrap().work) {
            return;
        }
        control.advance(task.id).unwrap();
        site.work();
    }
    panic!("{:?}", control.show_task(task.id));
}

#[test]
fn a_disk_moves_there_and_back_while_its_vm_runs() {
    let (site, control) = with_fast();
    starts(&site, &control, 1);
    assert_eq!(moved(&site, &control, 2, "disk1", "fast").state, TaskState::Done);
    assert_eq!(places(&control), ["ds1", "fast"]);
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(moved(&site, &control, 3, "disk1", "ds1").state, TaskState::Done);
    assert_eq!(moved(&site, &control, 4, "disk0", "fast").state, TaskState::Done);
    assert_eq!(places(&control), ["fast", "ds1"]);
    control.pause_vm(&caller(5), "web1").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(moved(&site, &control, 6, "disk0", "ds1").state, TaskState::Done);
    stops(&site, &control, 7);
    starts(&site, &control, 8);
}

/// The host decides while its guest waits: the inventory has before that it may.
#[test]
fn before_its_host_may_decide_the_inventory_says_so() {
    let (site, control) = with_fast();
    starts(&site, &control, 1);
    let task = control.move_disk(&caller(2), "web1", "disk1", &to("fast")).unwrap();
    advances_until(&site, &control, &task, |work| matches!(work, Work::SwitchDisk { .. }));
    assert!(site.host.lock().vms.values().all(|vm| vm.switched.is_none()));
    assert_eq!(inventory_says(&control), ("ds1".to_owned(), Some("fast".to_owned())));
    // It decides, and cannot say so; a cancellation comes too late.
    site.host.lock().disk_changes_that_fail = vec!["answer_lost"];
    control.cancel_task(&caller(3), task.id).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(inventory_says(&control), ("fast".to_owned(), None));
    no_violations(&site);
}

#[test]
fn a_host_that_does_not_say_where_a_disk_is_is_asked_by_the_next_request() {
    let (site, control) = with_fast();
    starts(&site, &control, 1);
    let task = control.move_disk(&caller(2), "web1", "disk1", &to("fast")).unwrap();
    advances_until(&site, &control, &task, |work| matches!(work, Work::SwitchDisk { .. }));
    site.host.lock().disk_changes_that_fail = vec!["answer_lost"; 20];
    let failed = ended(&site, &control, &task);
    assert_eq!(failed.state, TaskState::Failed);
    let error = failed.error.unwrap();
    assert!(error.message.contains("has not said whether disk1 is in the datastore"), "{error}");
    assert!(error.next_step.unwrap().contains("strongroom vm disk move web1 disk1 --to fast"));
    // Whatever becomes of the VM, nothing opens the disk where it may be no more.
    stops(&site, &control, 3);
    let unknown = control.start_vm(&caller(4), "web1", &StartVm::default()).unwrap_err();
    assert!(unknown.message.contains("has not said"), "{unknown}");
    let other = control.move_disk(&caller(5), "web1", "disk0", &to("fast")).unwrap_err();
    assert!(other.message.contains("has not said"), "{other}");
    assert_eq!(code(control.remove_datastore(&caller(6), "fast")), ErrorCode::InUse);
    site.host.lock().disk_changes_that_fail.clear();
    assert_eq!(moved(&site, &control, 7, "disk1", "fast").state, TaskState::Done);
    assert_eq!(inventory_says(&control), ("fast".to_owned(), None));
    starts(&site, &control, 8);
}

#[test]
fn a_disk_that_stays_is_copied_again_and_one_that_is_cancelled_is_left_alone() {
    let (site, control) = with_fast();
    starts(&site, &control, 1);
    let task = control.move_disk(&caller(2), "web1", "disk1", &to("fast")).unwrap();
    advances_until(&site, &control, &task, |work| matches!(work, Work::SwitchDisk { .. }));
    // Its supervisor was replaced.
    site.host.lock().vms.values_mut().for_each(|vm| vm.copied = None);
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(moved(&site, &control, 3, "disk1", "ds1").state, TaskState::Done);

    for request in [4, 6] {
        let task = control.move_disk(&caller(request), "web1", "disk1", &to("fast")).unwrap();
        if request == 6 {
            advances_until(&site, &control, &task, |work| matches!(work, Work::SwitchDisk { .. }));
            site.host.lock().vms.values_mut().for_each(|vm| vm.copied = None);
        } else {
            control.advance(task.id).unwrap();
            control.advance(task.id).unwrap();
        }
        control.cancel_task(&caller(request + 1), task.id).unwrap();
        assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
        assert_eq!(inventory_says(&control), ("ds1".to_owned(), None));
    }
    // The VM has ended before the switch: the rest is done while it is off.
    let task = control.move_disk(&caller(8), "web1", "disk1", &to("fast")).unwrap();
    advances_until(&site, &control, &task, |work| matches!(work, Work::SwitchDisk { .. }));
    site.host.lock().vms.values_mut().for_each(|vm| vm.power = HostPowerState::Stopped);
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(inventory_says(&control), ("fast".to_owned(), None));
    no_violations(&site);
}

#[test]
fn a_running_vms_disk_is_in_one_place_whenever_the_control_plane_was_killed() {
    for moment in 1..400 {
        let (site, control) = with_fast();
        starts(&site, &control, 1);
        site.fuse.set(moment);
        let asked = control.move_disk(&caller(2), "web1", "disk1", &to("fast"));
        if asked.is_ok() {
            settle_down(&site, &control);
        }
        let was_killed = site.fuse.is_burnt();
        drop(control);
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        assert!(settle_down(&site, &control));
        let task = control.move_disk(&caller(2), "web1", "disk1", &to("fast")).unwrap();
        assert_eq!(ended(&site, &control, &task).state, TaskState::Done, "moment {moment}");
        assert_eq!(inventory_says(&control), ("fast".to_owned(), None), "moment {moment}");
        stops(&site, &control, 3);
        starts(&site, &control, 4);
        if !was_killed {
            assert!(moment > 14, "it was killed at no moment");
            return;
        }
    }
    panic!("there are more moments");
}
