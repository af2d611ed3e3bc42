//! Copies of VMs that run: each is of a snapshot that its task makes, and deletes before it ends.

use crate::support::{Site, caller, copy, create, settle_down};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CloneVm, DeleteVm, PowerState, QuiesceWithin, StartVm, StopVm};
use strongroom_api::volume::{ChangeAnswer, ChangeVolumes};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_control::records::{TaskRecord, Work};

/// A site with a VM that runs.
fn with_vm() -> (Site, Control) {
    let site = Site::new();
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(900), &datastore).unwrap();
    control.create_vm(&caller(901), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(902), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

fn record(control: &Control, task: &Task) -> TaskRecord {
    TaskRecord::clone(&control.inventory.read().task(task.id).unwrap().record)
}

/// Works on a task alone until its record is like that.
fn step_until(site: &Site, control: &Control, task: &Task, is_there: impl Fn(&TaskRecord) -> bool) {
    for _ in 0..200 {
        if is_there(&record(control, task)) {
            return;
        }
        let _ = control.advance(task.id);
        if !is_there(&record(control, task)) {
            site.host.work();
        }
    }
    panic!("it never is: {:#?}", record(control, task));
}

fn copies(task: &TaskRecord) -> bool {
    let made = |work: &Work| matches!(work, Work::Create { from: Some(of), .. } if of.new_snapshot.is_none());
    made(&task.work) && task.operation.is_some()
}

fn gives_back(task: &TaskRecord) -> bool {
    matches!(task.work, Work::DropSnapshot { .. })
}

/// The names of a VM's snapshots, at its host.
fn snapshots(control: &Control, vm: &str) -> Vec<String> {
    control.list_snapshots(vm).unwrap().into_iter().map(|one| one.name.to_string()).collect()
}

fn ended(control: &Control, task: &Task) -> (TaskState, Option<Problem>) {
    let task = control.show_task(task.id).unwrap();
    (task.state, task.error)
}

fn code<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ErrorCode {
    answer.unwrap_err().code
}

#[test]
fn a_copy_of_a_vm_that_runs_is_of_a_snapshot_that_goes_with_its_task() {
    let (site, control) = with_vm();
    let quiet = CloneVm { quiesce_within_s: Some(QuiesceWithin::default()), ..copy("web2") };
    let task = control.clone_vm(&caller(1), "web1", &quiet).unwrap();
    assert_eq!(code(control.stop_vm(&caller(2), "web1", &StopVm::default())), ErrorCode::Busy);
    step_until(&site, &control, &task, copies);
    // While it is copied, its origin is free.
    let made = &control.list_snapshots("web1").unwrap()[0];
    assert!(made.quiesced && made.name.as_str() == "clone-web2", "{made:?}");
    assert_eq!(control.show_vm("web1").unwrap().summary.task, None);
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    let (origin, clone) = (control.show_vm("web1").unwrap(), control.show_vm("web2").unwrap());
    assert_eq!((origin.summary.power, origin.summary.task), (PowerState::Running, None));
    assert!(!clone.summary.origin.unwrap().linked && clone.summary.task.is_none());
    assert_eq!((snapshots(&control, "web1"), origin.linked_clones), (Vec::new(), Vec::new()));

    // A paused guest is copied, too, and cannot become quiet.
    control.pause_vm(&caller(3), "web1").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(
        code(control.clone_vm(
            &caller(4),
            "web1",
            &CloneVm { quiesce_within_s: quiet.quiesce_within_s, ..copy("web3") }
        )),
        ErrorCode::Conflict
    );
    control.clone_vm(&caller(5), "web1", &copy("web3")).unwrap();
    assert!(settle_down(&site, &control));
    // One that is off needs no snapshot.
    control.stop_vm(&caller(6), "web1", &StopVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let task = control.clone_vm(&caller(7), "web1", &copy("web4")).unwrap();
    assert_eq!(record(&control, &task).temporary, None);
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task).0, TaskState::Done);
    assert_eq!(snapshots(&control, "web1"), [""; 0]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_disk_of_a_vm_that_runs_is_copied_in_the_same_way() {
    let (site, control) = with_vm();
    let wish =
        serde_json::json!({ "changes": [{ "change": "clone", "volume": "web1/disk0", "name": "data2" }] });
    let wish: ChangeVolumes = serde_json::from_value(wish).unwrap();
    let answer = control.change_volumes(&caller(1), &wish).unwrap().changes.remove(0);
    let ChangeAnswer::Task(task) = answer else { panic!("{answer:?}") };
    assert!(record(&control, &task).temporary.is_some());
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    assert_eq!(snapshots(&control, "web1"), [""; 0]);
}

#[test]
fn a_copy_that_is_cancelled_or_fails_leaves_no_snapshot() {
    let (site, control) = with_vm();
    // Before its key, and with it its snapshot, was there.
    site.keys.lock().unavailable = true;
    let task = control.clone_vm(&caller(1), "web1", &copy("web2")).unwrap();
    assert!(settle_down(&site, &control));
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task).0, TaskState::Cancelled);
    assert_eq!(control.show_vm("web1").unwrap().summary.task, None);
    site.keys.lock().unavailable = false;

    // While it is copied.
    let task = control.clone_vm(&caller(2), "web1", &copy("web2")).unwrap();
    step_until(&site, &control, &task, copies);
    assert_eq!(snapshots(&control, "web1"), ["clone-web2"]);
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task).0, TaskState::Cancelled);
    assert_eq!(code(control.show_vm("web2")), ErrorCode::NotFound);
    assert_eq!(snapshots(&control, "web1"), [""; 0]);

    // While the layers of its origin are merged, it waits; other failures are the end of it.
    site.host.lock().creations_that_fail = vec!["merging"; 5];
    let task = control.clone_vm(&caller(20), "web1", &copy("web2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    control.delete_vm(&caller(21), "web2", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lock().creations_that_fail = vec!["no_space"];
    let task = control.clone_vm(&caller(22), "web1", &copy("web2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task).1.unwrap().code, ErrorCode::DatastoreFull);
    assert_eq!(
        (code(control.show_vm("web2")), snapshots(&control, "web1")),
        (ErrorCode::NotFound, Vec::new())
    );

    // Its snapshot is not made, whatever is left of it.
    site.host.lock().snapshot_changes_that_fail = vec!["volume_in_trouble"];
    let task = control.clone_vm(&caller(3), "web1", &copy("web2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task).0, TaskState::Failed);
    assert_eq!(code(control.show_vm("web2")), ErrorCode::NotFound);
    assert_eq!(control.show_vm("web1").unwrap().summary.task, None);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn the_snapshot_of_a_copy_waits_for_its_vm_and_never_holds_the_copy() {
    let (site, control) = with_vm();
    let task = control.clone_vm(&caller(1), "web1", &copy("web2")).unwrap();
    step_until(&site, &control, &task, gives_back);
    // The clone is there; another task is faster.
    assert_eq!(control.show_vm("web2").unwrap().summary.task, None);
    control.stop_vm(&caller(2), "web1", &StopVm::default()).unwrap();
    control.start_vm(&caller(3), "web2", &StartVm::default()).unwrap();
    let _ = control.advance(task.id);
    let note = control.show_task(task.id).unwrap().note.unwrap();
    assert!(note.contains("works on VM web1: Stop VM web1"), "{note}");
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    assert_eq!(snapshots(&control, "web1"), [""; 0]);

    // Its VM is deleted meanwhile.
    control.start_vm(&caller(4), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let task = control.clone_vm(&caller(5), "web1", &copy("web3")).unwrap();
    step_until(&site, &control, &task, copies);
    control.stop_vm(&caller(6), "web1", &StopVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    control.delete_vm(&caller(7), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_host_that_does_not_delete_the_snapshot_is_asked_again_and_then_told_of() {
    let (site, control) = with_vm();
    let task = control.clone_vm(&caller(1), "web1", &copy("web2")).unwrap();
    step_until(&site, &control, &task, copies);
    site.host.lock().snapshot_changes_that_fail = vec!["failed"; 3];
    assert!(settle_down(&site, &control));
    assert_eq!(ended(&control, &task), (TaskState::Done, None));
    assert_eq!(snapshots(&control, "web1"), [""; 0]);

    let task = control.clone_vm(&caller(2), "web1", &copy("web3")).unwrap();
    step_until(&site, &control, &task, copies);
    site.host.lock().snapshot_changes_that_fail = vec!["half_reverted"];
    assert!(settle_down(&site, &control));
    let (state, error) = ended(&control, &task);
    let error = error.unwrap();
    assert_eq!(state, TaskState::Failed);
    assert!(error.message.starts_with("web3 is there, and snapshot clone-web3 of VM web1"), "{error}");
    assert!(error.next_step.unwrap().contains("strongroom vm snapshot delete web1 clone-web3"));
    assert_eq!(control.show_vm("web3").unwrap().summary.task, None);
    assert_eq!(control.show_vm("web1").unwrap().summary.task, None);
}
