//! Backups of the inventory, restored: everything is known again, and nothing that a backup says
//! about a VM is acted upon before its host has confirmed it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use strongroom_api::ErrorCode;
use strongroom_api::alarm::AlarmKind;
use strongroom_api::backup::MakeInventoryBackup;
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{AddDisk, DeleteVm, PowerState, RegisterVm, StartVm, StopVm};
use strongroom_control::backup::{AccessLogPart, ExportedEntry};
use strongroom_control::engine::Control;
use strongroom_control::inventory::{Inventory, RestoredFrom};
use strongroom_control::{Restoration, RestorationError};
use strongroom_host::protocol::PowerState as HostPower;
use strongroom_store::Engine;
use tempfile::TempDir;

use super::moves::to;
use super::placement::{host_of, on, shared};
use super::volume_changes::{done, places, with_vm};
use crate::support::backups::Shelf;
use crate::support::{Site, caller, create, settle_down, with_vms};

fn backed_up(control: &Control, access_log: AccessLogPart) -> Vec<ExportedEntry> {
    control.inventory.export(access_log).unwrap().entries().map(Result::unwrap).collect()
}

fn from() -> RestoredFrom {
    RestoredFrom { backup: "b1 of that day".to_owned(), now_unix_ms: 1_700_000_001_000 }
}

fn restored_into(directory: &std::path::Path, entries: &[ExportedEntry]) -> Result<(), RestorationError> {
    let mut restoration = Restoration::begin(directory)?;
    entries.iter().try_for_each(|entry| restoration.add(entry.clone()))?;
    restoration.finish(&from()).map(drop)
}

/// A control plane on another machine, with what was backed up. The hosts are the same.
fn restored(site: &mut Site, entries: &[ExportedEntry]) -> (TempDir, Control) {
    let machine = tempfile::tempdir().unwrap();
    restored_into(machine.path(), entries).unwrap();
    site.store = Arc::new(Engine::open(&machine.path().join("store.redb")).unwrap());
    let control = site.control().unwrap();
    (machine, control)
}

fn settled(site: &Site, control: &Control) {
    assert!(settle_down(site, control));
    control.review().unwrap();
}

fn alarms(control: &Control, kind: AlarmKind) -> Vec<String> {
    let index = control.inventory.read();
    index.alarms.iter().filter(|alarm| alarm.kind == kind).map(|alarm| alarm.message.clone()).collect()
}

fn register(control: &Control, request: u64, directory: &str) {
    let wish =
        RegisterVm { datastore: None, directory: directory.parse().unwrap(), accept_configuration: true };
    control.register_vm(&caller(request), &wish).unwrap();
}

fn power(control: &Control, vm: &str) -> (PowerState, u64) {
    let shown = control.show_vm(vm).unwrap();
    (shown.summary.power, shown.generation)
}

#[test]
fn a_restored_control_plane_knows_everything_and_goes_on_where_nothing_has_changed() {
    let (mut site, control) = with_vms(&["web1", "web2"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    settled(&site, &control);
    let entries = backed_up(&control, AccessLogPart::Included);
    let former = Arc::clone(&site.store);
    drop(control);
    // The clock of the new machine is behind.
    site.go_back(Duration::from_secs(1_000_000));

    let (_machine, control) = restored(&mut site, &entries);
    // The former one is started again, with a clock that is years ahead.
    let again = Inventory::open(former).unwrap().begin_term(9_000_000_000).unwrap();
    assert!(site.host.lock().term > again, "{again}");
    // Its host has not said anything yet.
    let refused = control.stop_vm(&caller(2), "web1", &StopVm { force: true, timeout_s: None }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("from a backup"), "{refused}");
    settled(&site, &control);
    assert_eq!(power(&control, "web1"), (PowerState::Running, 1), "neither ended nor started again");
    assert_eq!(power(&control, "web2").0, PowerState::Stopped);
    assert_eq!(alarms(&control, AlarmKind::VmOutdated), [""; 0]);
    control.start_vm(&caller(3), "web2", &StartVm::default()).unwrap();
    control.stop_vm(&caller(4), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    settled(&site, &control);
    assert_eq!(power(&control, "web1").0, PowerState::Stopped);
    assert_eq!(power(&control, "web2"), (PowerState::Running, 1));
    assert_eq!(control.look_at_access_log(&[]).unwrap().breaks.len(), 0);
}

#[test]
fn what_has_happened_since_an_old_backup_is_neither_undone_nor_done_again() {
    let (mut site, control) = with_vms(&["started", "ended", "grown", "deleted"]);
    control.start_vm(&caller(1), "ended", &StartVm::default()).unwrap();
    settled(&site, &control);
    let entries = backed_up(&control, AccessLogPart::Included);

    control.start_vm(&caller(2), "started", &StartVm::default()).unwrap();
    control.stop_vm(&caller(3), "ended", &StopVm { force: true, timeout_s: None }).unwrap();
    let disk: AddDisk = serde_json::from_value(serde_json::json!({ "size_bytes": 1 << 20 })).unwrap();
    control.add_disk(&caller(4), "grown", &disk).unwrap();
    control.delete_vm(&caller(5), "deleted", &DeleteVm::default()).unwrap();
    control.create_vm(&caller(6), &create("made", true)).unwrap();
    settled(&site, &control);
    control.start_vm(&caller(7), "made", &StartVm::default()).unwrap();
    settled(&site, &control);
    let keys = site.keys.lock().made.len();
    drop(control);

    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    settled(&site, &control);
    // What runs goes on, and what was ended stays so.
    let runs = |name: &str| {
        let inside = site.host.lock();
        inside.vms.values().any(|vm| vm.spec.name.as_str() == name && vm.power == HostPower::Running)
    };
    assert!(runs("started") && runs("made") && !runs("ended") && !runs("grown"));
    assert_eq!(site.keys.lock().made.len(), keys, "no key is made again");
    let mut outdated = alarms(&control, AlarmKind::VmOutdated);
    outdated.sort();
    assert_eq!(outdated.len(), 2, "{outdated:?}");
    assert!(outdated[0].contains("grown") && outdated[0].contains("another configuration"), "{outdated:?}");
    assert!(outdated[1].contains("start 1, and the backup knows of start 0"), "{outdated:?}");
    assert!(alarms(&control, AlarmKind::VmMissing)[0].contains("deleted"));
    assert!(alarms(&control, AlarmKind::Orphan)[0].contains("made"));
    for named in ["started", "grown", "deleted"] {
        let refused = control.start_vm(&caller(8), named, &StartVm::default()).unwrap_err();
        assert!(refused.message.contains("from a backup"), "{refused}");
    }
    assert_eq!(power(&control, "ended").0, PowerState::Stopped);

    // An administrator decides.
    for (request, directory) in [(10, "started"), (11, "grown"), (12, "made")] {
        register(&control, request, directory);
    }
    control.unregister_vm(&caller(13), "deleted").unwrap();
    settled(&site, &control);
    assert_eq!(power(&control, "started"), (PowerState::Running, 1));
    assert_eq!(power(&control, "made"), (PowerState::Running, 1));
    assert_eq!(control.show_vm("grown").unwrap().disks.len(), 2);
    for kind in [AlarmKind::VmOutdated, AlarmKind::VmMissing, AlarmKind::Orphan] {
        assert_eq!(alarms(&control, kind), [""; 0]);
    }
    control.start_vm(&caller(14), "grown", &StartVm::default()).unwrap();
    settled(&site, &control);
    assert_eq!(power(&control, "grown"), (PowerState::Running, 1));
}

#[test]
fn a_rebuild_registers_all_that_has_changed_since_a_backup() {
    let (mut site, control) = with_vms(&["web1", "web2"]);
    let entries = backed_up(&control, AccessLogPart::Included);
    for (request, vm) in [(1, "web1"), (2, "web2")] {
        control.start_vm(&caller(request), vm, &StartVm::default()).unwrap();
    }
    settled(&site, &control);
    drop(control);
    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    assert_eq!(alarms(&control, AlarmKind::VmOutdated).len(), 2);
    let wish = serde_json::from_str(r#"{"accept_configuration":true}"#).unwrap();
    control.rebuild_datastore(&caller(3), "ds1", &wish).unwrap();
    settled(&site, &control);
    assert_eq!(alarms(&control, AlarmKind::VmOutdated), [""; 0]);
    assert_eq!(power(&control, "web2"), (PowerState::Running, 1));
}

#[test]
fn a_task_that_was_open_in_the_backup_is_not_gone_on_with() {
    let (mut site, control) = with_vms(&["kept", "doomed"]);
    control.create_vm(&caller(1), &create("begun", true)).unwrap();
    control.delete_vm(&caller(2), "doomed", &DeleteVm::default()).unwrap();
    let entries = backed_up(&control, AccessLogPart::Included);
    drop(control);
    let (vms, keys) = (site.host.lock().vms.len(), site.keys.lock().made.len());
    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    assert_eq!((site.host.lock().vms.len(), site.keys.lock().made.len()), (vms, keys));
    let index = control.inventory.read();
    let is_failed = |task: &&Task| task.state == TaskState::Failed;
    let failed = index.tasks.iter().map(|task| &task.task).filter(is_failed).filter(|task| {
        task.error.as_ref().is_some_and(|error| error.message.contains("nothing says how far it went"))
    });
    assert_eq!((failed.count(), index.open_tasks_count()), (2, 0));
    drop(index);
    // It is there as it was, so it can be used, or deleted again.
    assert_eq!(power(&control, "doomed").0, PowerState::Stopped);
    control.delete_vm(&caller(3), "doomed", &DeleteVm::default()).unwrap();
    control.unregister_vm(&caller(4), "begun").unwrap();
    settled(&site, &control);
    assert_eq!(site.host.lock().vms.len(), vms - 1);
}

#[test]
fn a_vm_that_has_moved_since_is_not_ended_on_its_host() {
    let (mut site, control) = shared(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    settled(&site, &control);
    let entries = backed_up(&control, AccessLogPart::Included);
    control.move_to_host(&caller(2), "web1", &to("host2")).unwrap();
    settled(&site, &control);
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    settled(&site, &control);
    let (id, generation) = (control.show_vm("web1").unwrap().summary.id, power(&control, "web1").1);
    drop(control);
    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    assert_eq!(host_of(&control, "web1"), "host1", "as the backup says");
    assert!(alarms(&control, AlarmKind::VmOutdated)[0].contains("host2"));
    assert_eq!(site.others[0].lock().vms[&id].power, HostPower::Running);
    register(&control, 4, "web1");
    settled(&site, &control);
    assert_eq!(host_of(&control, "web1"), "host2");
    assert_eq!(power(&control, "web1"), (PowerState::Running, generation));
    site.nothing_runs_twice();
}

#[test]
fn a_volume_that_was_given_to_a_vm_since_is_registered_with_it() {
    let mut site = Site::new();
    let control = with_vm(&site);
    let wish = json!({ "change": "create", "name": "data1", "size_bytes": 1 << 20 });
    done(&site, &control, 10, wish);
    let entries = backed_up(&control, AccessLogPart::Included);
    done(&site, &control, 11, json!({ "change": "bind", "volume": "data1", "vm": "web1" }));
    drop(control);
    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    assert!(alarms(&control, AlarmKind::VmOutdated)[0].contains("web1"));
    assert!(alarms(&control, AlarmKind::VmMissing)[0].contains("data1"));
    let wish = RegisterVm { datastore: None, directory: "web1".parse().unwrap(), accept_configuration: true };
    let refused = control.register_vm(&caller(12), &wish).unwrap_err();
    assert_eq!(refused.code, ErrorCode::VolumeKnown, "{refused}");
    control.unregister_vm(&caller(13), "data1").unwrap();
    register(&control, 14, "web1");
    settled(&site, &control);
    assert_eq!(places(&control), ["web1/disk0", "web1/disk1"]);
    for kind in [AlarmKind::VmOutdated, AlarmKind::VmMissing, AlarmKind::Orphan] {
        assert_eq!(alarms(&control, kind), [""; 0]);
    }
}

#[test]
fn a_vm_of_a_host_that_is_away_waits_for_it() {
    let (mut site, control) = with_vms(&["web1"]);
    let entries = backed_up(&control, AccessLogPart::Included);
    drop(control);
    site.host.lock().down = true;
    let (_machine, control) = restored(&mut site, &entries);
    settled(&site, &control);
    let refused = control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap_err();
    assert!(refused.message.contains("from a backup"), "{refused}");
    drop(control);
    // It waits through a restart of the control plane, too.
    let control = site.control().unwrap();
    settled(&site, &control);
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap_err();
    site.host.lock().down = false;
    settled(&site, &control);
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    settled(&site, &control);
    assert_eq!(power(&control, "web1"), (PowerState::Running, 1));
}

#[test]
fn a_restore_is_whole_or_not_there_and_never_over_an_inventory() {
    let (_site, control) = with_vms(&["web1"]);
    let entries = backed_up(&control, AccessLogPart::Included);
    let machine = tempfile::tempdir().unwrap();
    let directory = machine.path().join("control");
    let files = || std::fs::read_dir(&directory).unwrap().count();
    let mut half = Restoration::begin(&directory).unwrap();
    half.add(entries[0].clone()).unwrap();
    drop(half);
    assert_eq!(files(), 0);
    let empty = Restoration::begin(&directory).unwrap().finish(&from()).unwrap_err();
    assert!(matches!(empty, RestorationError::Empty), "{empty}");
    let mut damaged = entries.clone();
    damaged
        .iter_mut()
        .filter(|entry| entry.key.starts_with(b"vm/"))
        .for_each(|entry| entry.value = b"{}".to_vec());
    assert!(matches!(restored_into(&directory, &damaged), Err(RestorationError::Inventory(_))));
    assert_eq!(files(), 0);
    // What a restore that was killed has left is no hindrance.
    std::fs::write(directory.join("store.redb.restoring"), "half").unwrap();
    restored_into(&directory, &entries).unwrap();
    assert_eq!(files(), 1);
    let before = std::fs::read(directory.join("store.redb")).unwrap();
    let again = restored_into(&directory, &entries).unwrap_err();
    assert!(matches!(again, RestorationError::Exists { .. }), "{again}");
    // An inventory that appears meanwhile stays, too.
    let elsewhere = machine.path().join("other");
    let mut late = Restoration::begin(&elsewhere).unwrap();
    entries.iter().for_each(|entry| late.add(entry.clone()).unwrap());
    std::fs::write(elsewhere.join("store.redb"), "another").unwrap();
    assert!(matches!(late.finish(&from()), Err(RestorationError::Exists { .. })));
    assert_eq!(std::fs::read(elsewhere.join("store.redb")).unwrap(), b"another");
    assert_eq!(std::fs::read(directory.join("store.redb")).unwrap(), before);
}

#[test]
fn the_access_log_goes_on_after_a_restore_or_begins_anew() {
    let (mut site, control) = with_vms(&["web1"]);
    let (head, whole) = {
        let log = control.inventory.access_log().unwrap();
        (log.head(), log.entries())
    };
    assert!(whole > 0);
    for (access_log, entries) in [(AccessLogPart::Included, whole + 1), (AccessLogPart::LeftOut, 1)] {
        let exported = backed_up(&control, access_log);
        let (_machine, control) = restored(&mut site, &exported);
        let log = control.inventory.access_log().unwrap();
        assert_eq!(log.entries(), entries);
        let kept: &[_] = if entries > 1 { std::slice::from_ref(&head) } else { &[] };
        assert_eq!(control.look_at_access_log(kept).unwrap().breaks.len(), 0);
        control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap_err();
    }
}

#[test]
fn backups_are_made_as_often_as_wanted_and_missing_ones_raise_an_alarm() {
    let (site, control) = with_vms(&[]);
    let shelf = Arc::new(Shelf { every: Some(Duration::from_secs(86_400)), ..Shelf::default() });
    control.back_up_with(Arc::clone(&shelf) as _);
    let day = |days: u64| {
        site.pass(Duration::from_secs(days * 86_400));
        *shelf.now_s.lock() = control.now_unix_ms() / 1000;
        control.make_due_backup();
        control.review().unwrap();
        alarms(&control, AlarmKind::InventoryUnbacked)
    };
    assert_eq!(day(40), [""; 0], "the first one is made before anything is raised");
    assert_eq!(shelf.made.lock().len(), 1);
    control.make_due_backup();
    assert_eq!(shelf.made.lock().len(), 1, "not before it is due");
    shelf.is_full.store(true, Ordering::SeqCst);
    assert_eq!(day(1), [""; 0]);
    let raised = day(2);
    assert!(raised[0].contains("no space left on device"), "{raised:?}");
    assert_eq!(control.backup_age_s(), Some(3 * 86_400));
    let asked = control.back_up(&caller(1), &MakeInventoryBackup::default()).unwrap_err();
    assert!(asked.message.contains("no space left on device"), "{asked}");
    shelf.is_full.store(false, Ordering::SeqCst);
    // It is not tried again at once.
    control.make_due_backup();
    assert_eq!(shelf.made.lock().len(), 1);
    let made = control.back_up(&caller(2), &MakeInventoryBackup { without_access_log: true }).unwrap();
    let whole = control.back_up(&caller(3), &MakeInventoryBackup::default()).unwrap();
    assert!(whole.entries > made.entries, "{} and {}", whole.entries, made.entries);
    control.review().unwrap();
    assert_eq!(alarms(&control, AlarmKind::InventoryUnbacked), [""; 0]);
}

#[test]
fn a_directory_that_is_away_raises_an_alarm_at_once() {
    let (_site, control) = with_vms(&[]);
    let shelf = Arc::new(Shelf::default());
    control.back_up_with(Arc::clone(&shelf) as _);
    let look = || {
        control.make_due_backup();
        control.review().unwrap();
        alarms(&control, AlarmKind::InventoryUnbacked)
    };
    assert_eq!(look(), [""; 0]);
    shelf.is_away.store(true, Ordering::SeqCst);
    let raised = look();
    assert!(raised[0].contains("/mnt/safe is not the directory that it was"), "{raised:?}");
    shelf.is_away.store(false, Ordering::SeqCst);
    assert_eq!(look(), [""; 0]);
}

#[test]
fn a_program_without_backups_says_so() {
    let (_site, control) = with_vms(&[]);
    let refused = control.back_up(&caller(1), &MakeInventoryBackup::default()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.next_step.unwrap().contains("backup-directory"));
}
