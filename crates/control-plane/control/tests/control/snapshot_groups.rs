//! Snapshots of several VMs, and of volumes that no VM has: all have it from one moment on, or none
//! does, whatever is killed.

use crate::support::{Site, caller, create, settle_down};
use serde_json::{Value, json};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CreateSnapshot, RevertVm, Snapshot, StartVm};
use strongroom_api::volume::{ChangeAnswer, ChangeVolumes};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{NewVmSnapshot, SnapshotChange, VmSnapshots};

/// A control plane with a VM that runs, one that is off, and a volume that no VM has.
fn with_vms(site: &Site) -> Control {
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    control.create_vm(&caller(2), &create("web1", true)).unwrap();
    control.create_vm(&caller(3), &create("db1", true)).unwrap();
    let change = changes(json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20 }));
    control.change_volumes(&caller(4), &change).unwrap();
    assert!(settle_down(site, &control));
    control.start_vm(&caller(5), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(site, &control));
    control
}

fn changes(change: Value) -> ChangeVolumes {
    serde_json::from_value(json!({ "changes": [change] })).unwrap()
}

fn wish(name: &str, with: &[&str]) -> CreateSnapshot {
    serde_json::from_value(json!({ "name": name, "with": with })).unwrap()
}

fn ask(control: &Control, request: u64, name: &str, with: &[&str]) -> Result<Task, Problem> {
    control.create_snapshot(&caller(request), "web1", &wish(name, with))
}

fn ended(site: &Site, control: &Control, task: &Task) -> Task {
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

fn all_of(control: &Control) -> [Vec<Snapshot>; 3] {
    let of_volume = control.show_volume("data1").unwrap().snapshots;
    [control.list_snapshots("web1").unwrap(), control.list_snapshots("db1").unwrap(), of_volume]
}

fn names(control: &Control) -> [Vec<String>; 3] {
    all_of(control).map(|all| all.iter().map(|one| one.name.to_string()).collect())
}

/// What the hosts list, whatever the control plane makes of it.
fn of_host(site: &Site, name: &str) -> VmSnapshots {
    let inside = site.host.lock();
    let vm = inside.vms.values().find(|vm| vm.spec.name.as_str() == name).unwrap();
    vm.snapshots.clone()
}

#[test]
fn all_have_it_of_one_id_and_each_part_goes_its_own_way() {
    let site = Site::new();
    let control = with_vms(&site);
    let task = ask(&control, 10, "monday", &["db1", "data1"]).unwrap();
    assert_eq!(ask(&control, 10, "monday", &["db1", "data1"]).unwrap().id, task.id, "it was sent again");
    let busy = ask(&control, 11, "tuesday", &[]).unwrap_err();
    assert_eq!(busy.code, ErrorCode::Busy);
    let busy = control.create_snapshot(&caller(12), "db1", &wish("tuesday", &[])).unwrap_err();
    assert_eq!(busy.code, ErrorCode::Busy, "every VM of the group is worked on");
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    let all = all_of(&control);
    assert!(all.iter().all(|of_one| of_one.len() == 1 && of_one[0].id == all[0][0].id), "{all:?}");
    let with = |at: usize| {
        let group = all[at][0].group.clone().unwrap();
        assert!(group.deleted.is_empty());
        group.with.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!([with(0), with(1), with(2)], [["db1", "data1"], ["web1", "data1"], ["web1", "db1"]]);

    // Each part is reverted to and deleted as any other.
    control.revert_vm(&caller(13), "db1", "monday", &RevertVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.delete_snapshot(&caller(14), "web1", "monday").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(names(&control), [vec![], vec!["monday", "before-revert-1"], vec!["monday"]]);
    let group = all_of(&control)[1][0].group.clone().unwrap();
    assert_eq!((group.with[0].as_str(), group.deleted[0].as_str()), ("data1", "web1"));
    // The record goes with the last part.
    control.delete_snapshot(&caller(15), "db1", "monday").unwrap();
    control
        .change_volumes(
            &caller(16),
            &changes(json!({ "change": "delete_snapshot", "volume": "data1", "snapshot": "monday" })),
        )
        .unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.inventory.read().groups.len(), 0);

    // A volume is the first one, and a VM with it.
    let change =
        changes(json!({ "change": "snapshot", "volume": "data1", "name": "tuesday", "with": ["web1"] }));
    let ChangeAnswer::Task(task) = control.change_volumes(&caller(17), &change).unwrap().changes.remove(0)
    else {
        panic!()
    };
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(names(&control), [vec!["tuesday"], vec!["before-revert-1"], vec!["tuesday"]]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn requests_are_checked_before_anything_is_changed() {
    let site = Site::new();
    let control = with_vms(&site);
    let code = |answer: Result<Task, Problem>| answer.unwrap_err().code;
    assert_eq!(code(ask(&control, 10, "no", &["mail1"])), ErrorCode::NotFound);
    assert_eq!(code(ask(&control, 11, "no", &["db1", "db1"])), ErrorCode::Invalid);
    assert_eq!(code(ask(&control, 12, "no", &["web1"])), ErrorCode::Invalid);
    assert_eq!(code(ask(&control, 13, "no", &["db1"; 16])), ErrorCode::Invalid);
    let with_memory = CreateSnapshot { memory: true, ..wish("no", &["db1"]) };
    assert_eq!(code(control.create_snapshot(&caller(14), "web1", &with_memory)), ErrorCode::Invalid);
    control.create_snapshot(&caller(15), "db1", &wish("taken", &[])).unwrap();
    assert!(settle_down(&site, &control));
    let taken = ask(&control, 16, "taken", &["db1"]).unwrap_err();
    assert_eq!((taken.code, taken.message.starts_with("VM db1: ")), (ErrorCode::Conflict, true), "{taken}");
    assert_eq!(names(&control), [vec![], vec!["taken"], vec![]]);
    assert_eq!(control.inventory.read().groups.len(), 0);
}

#[test]
fn a_group_that_is_void_leaves_nothing_and_its_vms_go_on() {
    let site = Site::new();
    let control = with_vms(&site);
    // A lease ran out: the host is not asked again.
    site.host.lock().groups_that_fail = vec!["not_frozen"];
    let task = ask(&control, 10, "monday", &["db1", "data1"]).unwrap();
    let failed = ended(&site, &control, &task);
    assert_eq!((failed.state, failed.error.unwrap().code), (TaskState::Failed, ErrorCode::Conflict));
    assert_eq!(names(&control), [vec![""; 0], vec![], vec![]]);
    for name in ["web1", "db1", "data1"] {
        assert_eq!(of_host(&site, name).changing, None, "{name}");
    }
    assert_eq!(control.inventory.read().groups.len(), 0);
    // A supervisor was killed: it is made again.
    site.host.lock().groups_that_fail = vec!["supervisor_away"];
    let task = ask(&control, 11, "monday", &["db1", "data1"]).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(names(&control), [["monday"], ["monday"], ["monday"]]);
    // What one VM does not list at first, it lists later.
    site.host.lock().snapshot_changes_that_fail = vec!["supervisor_away"; 3];
    let task = ask(&control, 12, "tuesday", &["db1"]).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Done);
    assert_eq!(names(&control), [vec!["monday", "tuesday"], vec!["monday", "tuesday"], vec!["monday"]]);
    // A task that is cancelled in time makes nothing.
    let task = ask(&control, 13, "wednesday", &["db1"]).unwrap();
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert_eq!(ended(&site, &control, &task).state, TaskState::Cancelled);
    assert_eq!(names(&control)[0], ["monday", "tuesday"]);
    // The next changes work, and nothing is left of the group.
    control.create_snapshot(&caller(14), "db1", &wish("after", &[])).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(names(&control)[1], ["monday", "tuesday", "after"]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

/// An attacker with the datastore has a VM list its part before the group is made, and after it is
/// void.
#[test]
fn a_part_that_a_host_lists_is_none_before_the_group_is_made() {
    let site = Site::new();
    let control = with_vms(&site);
    site.host.lock().groups_that_fail = vec!["not_frozen"];
    let task = ask(&control, 10, "monday", &["db1"]).unwrap();
    let forge = |snapshot: &NewVmSnapshot| {
        site.host.guest("web1", |vm| {
            if vm.snapshots.get(snapshot.id).is_none() {
                vm.snapshots.add(snapshot, Vec::new(), strongroom_host::protocol::Contents::default());
            }
        });
    };
    let id = control.inventory.read().groups.iter().next().unwrap().snapshot;
    let snapshot = NewVmSnapshot::of_disks(id, "monday".parse().unwrap());
    forge(&snapshot);
    for host in control.hosts() {
        control.observe(host, std::time::Duration::ZERO).unwrap();
    }
    assert_eq!(of_host(&site, "web1").list.len(), 1, "the attack has an effect");
    assert_eq!(names(&control), [vec![""; 0], vec![], vec![]]);
    let refused = control.show_vm("web1").unwrap().snapshots;
    assert!(refused.is_empty(), "{refused:?}");
    // The removal of its part fails for good: what the host lists is still none.
    site.host.lock().snapshot_changes_that_fail = vec!["volume"; 20];
    assert_eq!(ended(&site, &control, &task).state, TaskState::Failed);
    forge(&snapshot);
    for host in control.hosts() {
        control.observe(host, std::time::Duration::ZERO).unwrap();
    }
    assert_eq!(names(&control), [vec![""; 0], vec![], vec![]]);
    assert_eq!(control.inventory.read().groups.len(), 1, "it is remembered as void");
    let none = control.revert_vm(&caller(11), "db1", "monday", &RevertVm::default()).unwrap_err();
    assert_eq!(none.code, ErrorCode::NotFound);
    // The next change removes what was left, and then the group is forgotten.
    site.host.lock().snapshot_changes_that_fail.clear();
    site.host.guest("web1", |vm| {
        vm.snapshots.remove(id);
        vm.snapshots.changing = None;
    });
    assert!(settle_down(&site, &control));
    assert_eq!(control.inventory.read().groups.len(), 0);
}

/// Kills the control plane at this moment of the making of a group, of which the host fails once.
/// Returns whether it was killed.
fn lives_through(moment: i64, failure: Option<&'static str>, restarts: bool) -> bool {
    let site = Site::new();
    drop(with_vms(&site));
    site.host.lock().groups_that_fail = failure.into_iter().collect();
    let mut control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    site.fuse.set(moment);
    let mut killed = false;
    let mut rise = |control: &mut Control| {
        killed = true;
        if restarts {
            site.host.restart();
        }
        site.fuse.set(i64::MAX);
        *control = site.control().unwrap();
    };
    let task = loop {
        let answer = ask(&control, 10, "monday", &["db1", "data1"]);
        if !site.fuse.is_burnt() {
            break answer.unwrap();
        }
        rise(&mut control);
        assert!(settle_down(&site, &control));
    };
    while !settle_down(&site, &control) {
        rise(&mut control);
    }
    let told = names(&control);
    let index = control.inventory.read();
    assert_eq!(index.open_tasks_count(), 0, "moment {moment}");
    assert!(index.vms.iter().all(|vm| vm.task.is_none()), "moment {moment}");
    let is_made = index.task(task.id).unwrap().task.state == TaskState::Done;
    drop(index);
    let expected = if is_made { vec!["monday"] } else { Vec::new() };
    assert_eq!(told, [expected.clone(), expected.clone(), expected], "moment {moment}");
    for name in ["web1", "db1", "data1"] {
        let all = of_host(&site, name);
        assert_eq!((all.list.len(), all.changing), (usize::from(is_made), None), "moment {moment}: {name}");
    }
    // A host that has forgotten that it has failed makes the group.
    assert!(is_made == (failure != Some("not_frozen")) || restarts, "moment {moment}");
    assert_eq!(control.inventory.read().groups.len(), usize::from(is_made), "moment {moment}");
    assert_eq!(site.host.lock().violations, [""; 0], "moment {moment}");
    killed
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn there_is_no_moment_at_which_a_kill_makes_a_part_of_a_group() {
    for failure in [None, Some("not_frozen"), Some("supervisor_away")] {
        for restarts in [false, true] {
            let mut moment = 1;
            while lives_through(moment, failure, restarts) {
                moment += 1;
            }
            assert!(moment > 20, "only {moment} moments");
        }
    }
}

#[test]
fn what_a_host_reports_of_a_group_is_read_again() {
    let snapshot = NewVmSnapshot::of_disks(strongroom_types::SnapshotId::random(), "s".parse().unwrap());
    let mut all =
        VmSnapshots { changing: Some(SnapshotChange::Prepare { snapshot }), ..VmSnapshots::default() };
    let read: VmSnapshots = serde_json::from_value(serde_json::to_value(&all).unwrap()).unwrap();
    assert_eq!(read, all);
    all.changing = None;
    assert!(all.is_empty());
}
