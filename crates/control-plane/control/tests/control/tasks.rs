//! Tasks and the inventory with the embedded store, and a host and key providers in memory.

use std::time::Duration;

use crate::support::{Site, caller, copy, create, settle_down, with_vms};
use strongroom_api::access::AccessLogQuery;
use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::datastore::{RebuildDatastore, Standing};
use strongroom_api::task::TaskState;
use strongroom_api::vm::{
    AddDisk, Cdrom, CloneVm, CreateSnapshot, CreateVm, DeleteVm, DesiredPower, DumpVm, IoLimits, IopsLimit,
    Nic, NicBackend, PatchVm, PowerState, QuiesceWithin, RegisterVm, ResizeDisk, RevertVm, RotateKey,
    SetLimits, StartVm, StopVm, TemplateVm, TicketUse,
};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{
    CryptoSafe, CryptoSafeState, DiskKey, OffReason, PowerState as HostPower, Programs, TicketRequest,
    WaitingFor,
};
use strongroom_types::{Iops, VmId, VolumeId};

fn alarms(control: &Control) -> Vec<AlarmKind> {
    control.inventory.read().alarms.iter().map(|alarm| alarm.kind).collect()
}

fn code<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ErrorCode {
    answer.unwrap_err().code
}

#[test]
fn a_start_waits_for_its_key_and_goes_on_by_itself() {
    let (site, control) = with_vms(&["web1"]);
    site.keys.lock().unavailable = true;
    let task = control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let waiting = control.show_task(task.id).unwrap();
    assert_eq!(waiting.state, TaskState::Running);
    assert!(waiting.note.unwrap().starts_with("waiting for key provider embedded, key key-0"));
    assert_eq!(alarms(&control), [AlarmKind::KeyUnavailable]);
    assert_eq!(code(control.delete_vm(&caller(2), "web1", &DeleteVm::default())), ErrorCode::Busy);
    site.keys.lock().unavailable = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(alarms(&control), []);
}

/// The alarm names the provider that is down, which may be another one than the key's own, and
/// follows if it is another one then.
#[test]
fn the_alarm_of_a_missing_key_names_what_is_down_and_what_to_do() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let id = control.show_vm("web1").unwrap().summary.id;
    let waits = |reason: &str, upstream: Option<&str>, grant_wanted: bool| {
        let key = control.inventory.read().vm(id).unwrap().hardware.keys().remove(0);
        let upstream = upstream.map(|name| name.parse().unwrap());
        let waiting = WaitingFor { key, reason: reason.to_owned(), upstream, grant_wanted };
        site.host.guest("web1", |vm| {
            (vm.power, vm.waiting_for) = (HostPower::KeyUnavailable, vec![waiting.clone()]);
        });
        assert!(settle_down(&site, &control));
        let index = control.inventory.read();
        index.alarms.iter().map(|alarm| Alarm::clone(alarm)).collect::<Vec<_>>()
    };
    let away = "it comes from key provider corp, which is unavailable: key 4711: kms1 is silent";
    let alarms = waits(away, Some("corp"), false);
    let [alarm] = alarms.as_slice() else { panic!("{alarms:?}") };
    assert_eq!((alarm.kind, alarm.severity), (AlarmKind::KeyUnavailable, Severity::Critical));
    assert!(alarm.message.starts_with("VM web1 waits for key provider embedded, key key-0"), "{alarm:?}");
    assert!(alarm.message.ends_with(away), "{alarm:?}");
    assert_eq!(alarm.next_step, "`strongroom key-provider test corp`; the VM goes on by itself");
    // It has its grant, and is sent no other.
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::KeyUnavailable);
    // Then it is the key server that is down.
    let since = alarm.since_unix_ms;
    let alarms = waits("no connection", None, false);
    let [alarm] = alarms.as_slice() else { panic!("{alarms:?}") };
    assert_eq!(alarm.next_step, "`strongroom key-provider test embedded`; the VM goes on by itself");
    assert!(alarm.message.ends_with("no connection"), "{alarm:?}");
    assert_eq!(alarm.since_unix_ms, since, "it has waited since then");
    // Without a grant it gets another one.
    assert_eq!(waits(away, Some("corp"), true), []);
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
}

#[test]
fn a_start_that_waits_can_be_cancelled() {
    let (site, control) = with_vms(&["web1"]);
    site.keys.lock().unavailable = true;
    let task = control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);
    let vm = control.show_vm("web1").unwrap().summary;
    assert_eq!((vm.power, vm.desired, vm.task), (PowerState::Stopped, DesiredPower::Stopped, None));
    control.delete_vm(&caller(2), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert!(site.host.lock().vms.is_empty());
}

#[test]
fn a_creation_that_is_cancelled_leaves_nothing() {
    let (site, control) = with_vms(&[]);
    site.keys.lock().unavailable = true;
    let task = control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);
    assert_eq!(code(control.show_vm("web1")), ErrorCode::NotFound);
    site.keys.lock().unavailable = false;
    control.create_vm(&caller(2), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(site.keys.lock().made.len(), 1);
}

#[test]
fn a_vm_that_crashes_is_started_again_and_not_for_ever() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let crash = || {
        site.host.guest("web1", |vm| {
            (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied));
        })
    };
    for _ in 0..3 {
        crash();
        assert!(settle_down(&site, &control));
        assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    }
    crash();
    assert!(settle_down(&site, &control));
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.summary.desired), (PowerState::Crashed, DesiredPower::Running));
    assert_eq!(alarms(&control), [AlarmKind::VmCrashed]);
    // A start on request resets the count, and clears the alarm.
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), []);
    assert_eq!(control.show_vm("web1").unwrap().generation, vm.generation + 1);
}

#[test]
fn a_vm_moves_to_a_new_key_and_the_old_one_is_retired() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let keys = || control.inventory.read().find_vm("web1").unwrap().hardware.keys();
    let names = || keys().iter().map(|key| key.key.to_string()).collect::<Vec<_>>();
    // After a failure both keys are known, so that every volume can be opened.
    site.host.lock().rekeys_that_fail = 6;
    let failed = control.rotate_key(&caller(2), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(failed.id).unwrap().state, TaskState::Failed);
    assert_eq!(names(), ["key-0", "key-1"]);
    assert!(site.keys.lock().retired.is_empty());
    // Another rotation continues with the existing new key, and retries by itself.
    site.host.lock().rekeys_that_fail = 2;
    let done = control.rotate_key(&caller(3), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(done.id).unwrap().state, TaskState::Done);
    assert_eq!((names(), site.keys.lock().made.len()), (vec!["key-1".to_owned()], 2));
    assert_eq!(site.keys.lock().retired.iter().collect::<Vec<_>>(), ["key-0"]);
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(site.host.lock().violations, Vec::<String>::new());
    // First nothing is due, and then everything.
    assert_eq!(control.rotate_due_keys(), 0);
    site.keys.lock().expires_unix_seconds = Some(1);
    assert_eq!(control.rotate_due_keys(), 1);
    assert!(settle_down(&site, &control));
    assert_eq!(names(), ["key-2"]);
}

#[test]
fn the_data_of_a_vm_that_runs_or_is_off_is_re_encrypted_by_a_rotation() {
    let (site, control) = with_vms(&["web1"]);
    let with_data = RotateKey { data: true, ..RotateKey::default() };
    let keys = || control.inventory.read().find_vm("web1").unwrap().hardware.keys().len();
    let state = |task: strongroom_api::task::Task| {
        assert!(settle_down(&site, &control));
        control.show_task(task.id).unwrap().state
    };
    // One that runs is busy until it is done; one that is suspended is refused with the next step.
    state(control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap());
    let running = control.rotate_key(&caller(2), "web1", &with_data).unwrap();
    let stop = control.stop_vm(&caller(3), "web1", &StopVm::default());
    assert_eq!(code(stop), ErrorCode::Busy);
    assert_eq!(state(running), TaskState::Done);
    assert_eq!((keys(), site.keys.lock().made.len()), (1, 2));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    site.host.guest("web1", |vm| {
        (vm.power, vm.reason) = (HostPower::Suspended, Some(OffReason::Suspended));
    });
    assert!(settle_down(&site, &control));
    let refused = control.rotate_key(&caller(4), "web1", &with_data).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.next_step.as_deref().unwrap().contains("strongroom vm start web1"), "{refused:?}");
    site.host.guest("web1", |vm| {
        (vm.power, vm.reason) = (HostPower::Stopped, Some(OffReason::Stopped));
    });
    assert!(settle_down(&site, &control));

    // After a failure both keys are known, and the request that goes on with it is named.
    site.host.lock().rekeys_that_fail = 6;
    let failed = control.rotate_key(&caller(7), "web1", &with_data).unwrap();
    assert_eq!(state(failed.clone()), TaskState::Failed);
    let error = control.show_task(failed.id).unwrap().error.unwrap();
    assert!(error.next_step.unwrap().contains("strongroom vm key rotate web1 --data"));
    assert_eq!((keys(), site.keys.lock().made.len()), (2, 3));
    site.host.lock().rekeys_that_fail = 1;
    let done = control.rotate_key(&caller(8), "web1", &with_data).unwrap();
    assert_eq!(state(done), TaskState::Done);
    assert_eq!((keys(), site.keys.lock().made.len()), (1, 3));

    // What a rotation without new data keys has begun has old ones under the new key.
    site.host.lock().rekeys_that_fail = 6;
    let failed = control.rotate_key(&caller(9), "web1", &RotateKey::default()).unwrap();
    assert_eq!(state(failed), TaskState::Failed);
    let refused = control.rotate_key(&caller(10), "web1", &with_data).unwrap_err();
    assert!(refused.next_step.unwrap().contains("finish it first: `strongroom vm key rotate web1`"));
    site.host.lock().rekeys_that_fail = 0;
    assert_eq!(
        state(control.rotate_key(&caller(11), "web1", &RotateKey::default()).unwrap()),
        TaskState::Done
    );
    assert_eq!(state(control.rotate_key(&caller(12), "web1", &with_data).unwrap()), TaskState::Done);

    // One that began with new data keys can end without.
    site.host.lock().rekeys_that_fail = 6;
    assert_eq!(state(control.rotate_key(&caller(13), "web1", &with_data).unwrap()), TaskState::Failed);
    site.host.lock().rekeys_that_fail = 0;
    assert_eq!(
        state(control.rotate_key(&caller(14), "web1", &RotateKey::default()).unwrap()),
        TaskState::Done
    );
    assert_eq!(state(control.rotate_key(&caller(15), "web1", &with_data).unwrap()), TaskState::Done);
    assert_eq!(site.host.lock().rekeys_of_data, [true, true, false, true, false, true]);
    assert_eq!(site.host.lock().violations, Vec::<String>::new());

    // Each is on the audit log, with what became of the data keys.
    let moves = site.keys.lock().moves.clone();
    assert_eq!(
        moves.iter().map(|moved| moved.renewed).collect::<Vec<_>>(),
        [true, true, false, true, false, true]
    );
    let vm = control.inventory.read().find_vm("web1").unwrap().record.clone();
    let volumes: Vec<_> = vm.hardware.disks.iter().filter_map(|disk| disk.volume).collect();
    for (number, moved) in moves.iter().enumerate() {
        let (from, to) = (format!("key-{number}"), format!("key-{}", number + 1));
        assert_eq!((moved.vm, moved.from.len(), moved.is_shared), (Some(vm.id), 1, false));
        assert_eq!(
            (moved.from[0].key.as_str(), moved.to.as_ref().unwrap().key.as_str()),
            (from.as_str(), to.as_str())
        );
        assert!(!volumes.is_empty() && volumes.iter().all(|volume| moved.volumes.contains(volume)));
    }
}

#[test]
fn a_move_is_over_when_it_is_on_the_audit_log() {
    let (site, control) = with_vms(&["web1"]);
    site.keys.lock().log_is_full = true;
    let task = control.rotate_key(&caller(1), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));
    let waits = control.show_task(task.id).unwrap();
    assert_eq!(waits.state, TaskState::Running);
    assert!(waits.note.unwrap().contains("waiting for the key server's audit log"));
    assert!(site.keys.lock().retired.is_empty());
    site.keys.lock().log_is_full = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    let on_record = || {
        let keys = site.keys.lock();
        (keys.moves.len(), keys.retired.len())
    };
    assert_eq!(on_record(), (1, 1));

    // A person who does not wait is told that it is missing.
    site.keys.lock().log_is_full = true;
    let task = control.rotate_key(&caller(2), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    assert_eq!(on_record(), (1, 2));
}

/// Old descriptors are refused by their generation, so the generation in the inventory never falls,
/// and every operation has it.
#[test]
fn the_least_generation_of_a_volume_rises_and_goes_with_every_operation() {
    let (site, control) = with_vms(&["web1"]);
    let told = || {
        let host = site.host.lock();
        host.vms
            .values()
            .next()
            .unwrap()
            .spec
            .disks
            .iter()
            .map(|disk| disk.least_generation)
            .collect::<Vec<_>>()
    };
    let asked = |request: u64, task: strongroom_api::task::Task| {
        assert!(settle_down(&site, &control));
        assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done, "request {request}");
    };
    asked(1, control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap());
    let first = told();
    assert!(!first.is_empty() && first.iter().all(|least| *least == 1), "as it was made: {first:?}");
    asked(2, control.rotate_key(&caller(2), "web1", &RotateKey::default()).unwrap());
    asked(3, control.stop_vm(&caller(3), "web1", &StopVm::default()).unwrap());
    asked(4, control.start_vm(&caller(4), "web1", &StartVm::default()).unwrap());
    assert!(told().iter().all(|least| *least == 3), "after a new key: {:?}", told());
    // A host may later report an old descriptor that an attacker has put back.
    let larger: ResizeDisk = serde_json::from_str(r#"{"size_bytes":1099511627776}"#).unwrap();
    let disk = control.show_vm("web1").unwrap().disks[0].name.clone();
    asked(5, control.resize_disk(&caller(5), "web1", &disk, &larger).unwrap());
    asked(6, control.stop_vm(&caller(6), "web1", &StopVm::default()).unwrap());
    asked(7, control.start_vm(&caller(7), "web1", &StartVm::default()).unwrap());
    assert!(told().iter().all(|least| *least == 3), "a host told of an older one: {:?}", told());
}

#[test]
fn a_dump_is_made_once_whoever_dies_and_the_history_says_who_opened_it() {
    let (site, control) = with_vms(&["web1"]);
    let wish = DumpVm { label: Some("it hangs".to_owned()) };
    assert_eq!(code(control.dump_vm(&caller(1), "web1", &wish)), ErrorCode::Conflict);
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    for label in ["", "a\nb", &"x".repeat(65)] {
        let wish = DumpVm { label: Some(label.to_owned()) };
        assert_eq!(code(control.dump_vm(&caller(3), "web1", &wish)), ErrorCode::Invalid, "{label:?}");
    }
    let task = control.dump_vm(&caller(4), "web1", &wish).unwrap();
    // The host has made it, and has forgotten the operation.
    control.advance(task.id).unwrap();
    control.advance(task.id).unwrap();
    assert!(site.host.work());
    site.host.restart();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    let dumps = control.list_dumps("web1").unwrap();
    assert_eq!((dumps.len(), dumps[0].number, dumps[0].label.as_deref()), (1, 1, Some("it hangs")));
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.dumps, vm.summary.desired), (dumps, DesiredPower::Running));

    assert_eq!(code(control.ticket(&caller(5), "web1", &TicketUse::Dump { number: 2 })), ErrorCode::NotFound);
    control.ticket(&caller(6), "web1", &TicketUse::Dump { number: 1 }).unwrap();
    assert_eq!(code(control.delete_dump(&caller(7), "web1", 2)), ErrorCode::NotFound);
    control.delete_dump(&caller(8), "web1", 1).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.list_dumps("web1").unwrap(), []);
    assert_eq!(control.show_vm("web1").unwrap().summary.desired, DesiredPower::Running);
    let index = control.inventory.read();
    let told: Vec<_> = index.events().iter().filter(|event| event.kind.starts_with("vm.dump")).collect();
    let kinds: Vec<_> = told.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["vm.dumped", "vm.dump_opened", "vm.dump_deleted"]);
    assert!(told[1].message.contains("dump 1 of VM web1 is opened, by "), "{:?}", told[1].message);
}

#[test]
fn what_could_lead_data_out_of_a_registered_vm_is_listed_and_takes_a_word() {
    let (site, control) = with_vms(&["web1"]);
    control.unregister_vm(&caller(1), "web1").unwrap();
    // An attacker who can write to the datastore puts a clear disk before the encrypted one, and
    // adds a network card.
    {
        let mut host = site.host.lock();
        let vm = host.vms.values_mut().next().unwrap();
        let mut clear = vm.spec.disks[0].clone();
        (clear.name, clear.key) = ("disk7".parse().unwrap(), DiskKey::Unencrypted);
        vm.volumes.insert("disk7".to_owned(), VolumeId::random());
        vm.spec.disks.insert(0, clear);
        assert!(!vm.spec.nics.is_empty() && vm.spec.is_encrypted());
    }
    site.host.restart();
    let mut register =
        RegisterVm { datastore: None, directory: "web1".parse().unwrap(), accept_configuration: false };
    let refused = control.register_vm(&caller(2), &register).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("it is not what was attested"), "{refused}");
    for way in ["disk7 is not encrypted, and the VM starts from it", "nic0 reaches"] {
        assert!(refused.message.contains(way), "{refused}");
    }
    assert!(refused.next_step.unwrap().contains("--accept-configuration"));
    control.rebuild_datastore(&caller(3), "ds1", &RebuildDatastore::default()).unwrap();
    assert_eq!(control.show_vm("web1").unwrap_err().code, ErrorCode::NotFound);
    register.accept_configuration = true;
    control.register_vm(&caller(4), &register).unwrap();
    let summary = control.show_vm("web1").unwrap().summary;
    assert!(summary.encrypted && summary.partly_clear);
}

#[test]
fn a_vm_whose_keys_vouch_for_it_is_registered_without_a_word() {
    let (site, control) = with_vms(&["web1"]);
    let vm = || site.host.lock().vms.values().next().unwrap().clone();
    assert!(!vm().spec.nics.is_empty() && vm().spec.is_encrypted());
    control.unregister_vm(&caller(1), "web1").unwrap();
    let register =
        RegisterVm { datastore: None, directory: "web1".parse().unwrap(), accept_configuration: false };
    control.register_vm(&caller(2), &register).unwrap();
    assert!(control.show_vm("web1").unwrap().summary.encrypted);
    let vouched = |message: &str| message.contains("as its keys vouch for it");
    assert!(control.inventory.read().events().iter().any(|event| vouched(&event.message)));
    // Its policy is no longer in the inventory.
    control.unregister_vm(&caller(3), "web1").unwrap();
    let policy = Some(uuid::Uuid::from_u128(7));
    for known in site.host.lock().vms.values_mut() {
        known.spec.policy = policy;
        known.attested = Some(known.spec.clone());
    }
    site.host.restart();
    let refused = control.register_vm(&caller(4), &register).unwrap_err();
    assert!(refused.message.contains("its policy 00000000-0000-0000-0000-000000000007 is not"), "{refused}");
}

#[test]
fn whoever_gets_at_what_a_guest_keeps_is_on_the_audit_log_first() {
    let (site, control) = with_vms(&["web1"]);
    control.ticket(&caller(1), "web1", &TicketUse::ConsoleLog {}).unwrap();
    control.ticket(&caller(2), "web1", &TicketUse::Console { read_only: true, take_over: false }).unwrap();
    let by = caller(1).name;
    let expected = [
        format!("the console's log of VM web1 is opened, by {by}"),
        format!("the console, to be read only, of VM web1 is opened, by {by}"),
    ];
    assert_eq!(site.keys.lock().uses, expected);
    // Without an audit record, an encrypted VM's screen stays closed, and no event claims
    // otherwise.
    site.keys.lock().unavailable = true;
    let refused = control.ticket(&caller(4), "web1", &TicketUse::Vnc { read_only: false }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::KeyUnavailable);
    assert!(refused.message.contains("cannot be put on record"), "{refused}");
    assert!(!control.inventory.read().events().iter().any(|event| event.kind == "vm.screen_opened"));
    // A removal needs no audit record.
    control.delete_vm(&caller(5), "web1", &DeleteVm::default()).unwrap();
}

#[test]
fn a_copy_of_a_volume_is_refused_and_an_orphan_is_named() {
    let (site, control) = with_vms(&["web1"]);
    let original = site.host.lock().vms.values().next().unwrap().clone();
    let mut copy = original.clone();
    (copy.spec.id, copy.spec.name) = (VmId::random(), "web2".parse().unwrap());
    site.host.lock().vms.insert(copy.spec.id, copy.clone());
    site.host.restart();
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), [AlarmKind::Orphan]);
    let found = control.datastore_contents("ds1").unwrap();
    let standings: Vec<_> = found.iter().map(|found| (found.directory.as_str(), found.standing)).collect();
    assert_eq!(standings, [("web1", Standing::Registered), ("web2", Standing::Duplicate)]);
    let register =
        RegisterVm { datastore: None, directory: "web2".parse().unwrap(), accept_configuration: true };
    assert_eq!(code(control.register_vm(&caller(1), &register)), ErrorCode::VolumeKnown);
    // With the original unregistered, the copy is the only VM with this id.
    control.unregister_vm(&caller(2), "web1").unwrap();
    control.register_vm(&caller(3), &register).unwrap();
    assert_eq!(control.show_vm("web2").unwrap().summary.id, copy.spec.id);
    let register =
        RegisterVm { datastore: None, directory: "web1".parse().unwrap(), accept_configuration: true };
    assert_eq!(code(control.register_vm(&caller(4), &register)), ErrorCode::VolumeKnown);
    site.host.lock().vms.remove(&copy.spec.id);
    site.host.restart();
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), [AlarmKind::Orphan, AlarmKind::VmMissing]);
}

#[test]
fn disks_come_grow_and_go_and_what_fails_is_taken_back() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let at_first = control.show_vm("web1").unwrap().disks.len();
    let disks = || control.show_vm("web1").unwrap().disks;
    let wish: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576}"#).unwrap();
    let larger: ResizeDisk = serde_json::from_str(r#"{"size_bytes":2097152}"#).unwrap();
    // After the death of a supervisor the addition is repeated. After a permanent error it is
    // undone.
    for (codes, state) in
        [(vec!["supervisor_away"], TaskState::Done), (vec!["no_port", "supervisor_away"], TaskState::Failed)]
    {
        site.host.lock().disk_changes_that_fail = codes;
        let number = disks().len() as u64;
        let task = control.add_disk(&caller(10 + number), "web1", &wish).unwrap();
        assert_eq!(code(control.add_disk(&caller(20 + number), "web1", &wish)), ErrorCode::Busy);
        assert!(settle_down(&site, &control));
        let told = control.show_task(task.id).unwrap();
        assert_eq!(told.state, state, "{told:?}");
    }
    let added = disks();
    assert_eq!(added.len(), at_first + 1);
    let (first, last) = (&added[0], &added[at_first]);
    assert!(last.volume.is_some() && last.key.is_some() && last.key == first.key, "{added:?}");
    assert_eq!(code(control.remove_disk(&caller(30), "web1", &first.name)), ErrorCode::Conflict);
    assert_eq!(code(control.remove_disk(&caller(31), "web1", "disk9")), ErrorCode::NotFound);
    control.resize_disk(&caller(32), "web1", &last.name, &larger).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(disks()[at_first].size_bytes, 2 << 20);
    assert_eq!(code(control.resize_disk(&caller(33), "web1", &last.name, &larger)), ErrorCode::Conflict);
    control.remove_disk(&caller(34), "web1", &last.name).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(disks().len(), at_first);
    assert_eq!(site.host.lock().violations, Vec::<String>::new());
}

#[test]
fn a_vm_has_a_network_unless_none_is_asked_for_or_its_host_has_none() {
    let (site, control) = with_vms(&[]);
    let made = |number: u64, name: &str, nics: Option<Vec<Nic>>| {
        control.create_vm(&caller(number), &CreateVm { nics, ..create(name, true) })?;
        assert!(settle_down(&site, &control));
        Ok(control.show_vm(name)?.nics)
    };
    let user = || Some(vec![Nic::on(NicBackend::User {})]);
    let nics = made(1, "web1", None).unwrap();
    assert_eq!((nics.len(), &nics[0].backend), (1, &NicBackend::User {}));
    assert!(nics[0].mac.unwrap().to_string().starts_with("52:54:00:"));
    assert_eq!(made(2, "web2", Some(Vec::new())).unwrap(), []);

    // On a host without the network's program, no card is added by default, and a card that could
    // reach nothing is refused.
    site.host.lock().programs = Some(Programs::default());
    site.pass(Duration::from_secs(6));
    assert!(settle_down(&site, &control));
    assert_eq!(made(3, "web3", None).unwrap(), []);
    let refused: Problem = made(4, "web4", user()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoHost);
    assert!(refused.next_step.as_ref().unwrap().contains("Debian: passt"), "{refused:?}");
    let patch = PatchVm { nics: user(), ..PatchVm::default() };
    assert_eq!(code(control.set_vm(&caller(5), "web3", &patch, None)), ErrorCode::NoHost);
    // A host that does not report its programs gets the request.
    site.host.lock().programs = None;
    site.pass(Duration::from_secs(6));
    assert!(settle_down(&site, &control));
    control.set_vm(&caller(6), "web3", &patch, None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web3").unwrap().nics.len(), 1);
}

#[test]
fn a_cdrom_comes_and_goes_and_its_vm_is_found_with_it() {
    let (site, control) = with_vms(&[]);
    let cdrom = Cdrom::Image { path: "/boot/debian.iso".into() };
    control.create_vm(&caller(1), &CreateVm { cdrom: cdrom.clone(), ..create("web1", true) }).unwrap();
    assert!(settle_down(&site, &control));
    let told = || site.host.lock().vms.values().map(|vm| vm.spec.cdrom.clone()).collect::<Vec<_>>();
    assert_eq!(
        (control.show_vm("web1").unwrap().cdrom, told()),
        (cdrom, vec![Some("/boot/debian.iso".into())])
    );
    let patch = PatchVm { cdrom: Some(Cdrom::Absent), ..PatchVm::default() };
    control.set_vm(&caller(2), "web1", &patch, None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((control.show_vm("web1").unwrap().cdrom, told()), (Cdrom::Absent, vec![None]));
}

#[test]
fn a_console_is_taken_over_in_a_name_and_a_screen_is_shown_to_look_at() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let taken_over = TicketUse::Console { read_only: false, take_over: true };
    let looked_at = TicketUse::Vnc { read_only: true };
    control.ticket(&caller(2), "web1", &taken_over).unwrap();
    control.ticket(&caller(3), "web1", &looked_at).unwrap();
    let by = TicketRequest::Console { read_only: false, taken_by: Some("test".to_owned()) };
    assert_eq!(site.host.lock().tickets, [by, TicketRequest::VncToLook]);
    let nothing = TicketUse::Console { read_only: true, take_over: true };
    assert_eq!(control.ticket(&caller(4), "web1", &nothing).unwrap_err().code, ErrorCode::Invalid);
    let log = control.access_log(&caller(7), &AccessLogQuery::default()).unwrap();
    let told: Vec<&str> = log.items.iter().map(|entry| entry.message.as_str()).collect();
    for said in [
        "the console of VM web1 is taken over from who writes",
        "the screen, to be looked at only, of VM web1 is opened",
    ] {
        assert!(told.iter().any(|told| told.contains(said)), "{told:?}");
    }
    // A host of an earlier version would refuse it without a reason that anybody understands.
    site.host.lock().consoles_change_hands = false;
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    for wanted in [&taken_over, &looked_at] {
        let refused = control.ticket(&caller(5), "web1", wanted).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NoHost, "{refused:?}");
    }
    assert_eq!(site.host.lock().tickets.len(), 2);
    control.ticket(&caller(6), "web1", &TicketUse::Vnc { read_only: false }).unwrap();
}

#[test]
fn who_opens_a_console_or_a_screen_is_in_the_history_before_they_can() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let uses = [
        TicketUse::Console { read_only: true, take_over: false },
        TicketUse::ConsoleLog {},
        TicketUse::Vnc { read_only: false },
    ];
    for (number, wanted) in (2..).zip(&uses) {
        control.ticket(&caller(number), "web1", wanted).unwrap();
    }
    let index = control.inventory.read();
    let told = index.events().iter().filter(|event| event.kind.ends_with("_opened"));
    let told: Vec<_> = told.map(|event| (event.kind.as_str(), event.message.as_str())).collect();
    assert_eq!(
        told,
        [
            ("vm.console_opened", "the console, to be read only, of VM web1 is opened, by test"),
            ("vm.console_opened", "the console's log of VM web1 is opened, by test"),
            ("vm.screen_opened", "the screen of VM web1 is opened, by test"),
        ]
    );
}

#[test]
fn a_lost_inventory_comes_back_from_the_datastore_alone() {
    let (site, control) = with_vms(&["web1", "db1", "mail1"]);
    control.start_vm(&caller(1), "db1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let before: Vec<_> = ["web1", "db1", "mail1"].map(|name| control.show_vm(name).unwrap()).into();
    drop(control);
    // Another, empty store: only the host and the datastore's content remain.
    let mut other = Site::new();
    (other.host, other.keys) = (site.host, site.keys);
    let control = other.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    control.rebuild_datastore(&caller(2), "ds1", &RebuildDatastore { accept_configuration: true }).unwrap();
    assert!(settle_down(&other, &control));
    for before in before {
        let after = control.show_vm(before.summary.name.as_str()).unwrap();
        assert_eq!((after.summary.id, after.summary.power), (before.summary.id, before.summary.power));
        assert_eq!((after.disks, after.key, after.nics), (before.disks, before.key, before.nics));
        assert_eq!((after.generation, after.summary.desired), (before.generation, before.summary.desired));
    }
    assert_eq!(alarms(&control), []);
    // It continues with the next start's number, which the host has not seen.
    control.stop_vm(&caller(3), "db1", &StopVm::default()).unwrap();
    assert!(settle_down(&other, &control));
    control.start_vm(&caller(4), "db1", &StartVm::default()).unwrap();
    assert!(settle_down(&other, &control));
    assert_eq!(control.show_vm("db1").unwrap().summary.power, PowerState::Running);
}

#[test]
fn many_who_want_the_same_name_are_answered_once() {
    let (site, control) = with_vms(&[]);
    let wins = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (control, wins) = (&control, &wins);
            scope.spawn(move || match control.create_vm(&caller(number), &create("web1", false)) {
                Ok(_) => drop(wins.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                Err(problem) => assert_eq!(problem.code, ErrorCode::NameTaken),
            });
        }
    });
    assert_eq!(wins.into_inner(), 1);
    assert!(settle_down(&site, &control));
    assert_eq!(site.host.lock().vms.len(), 1);
    // The numbers of events are strictly increasing.
    let index = control.inventory.read();
    let numbers: Vec<u64> = index.events().iter().map(|event| event.id).collect();
    assert!(numbers.windows(2).all(|two| two[0] < two[1]));
}

#[test]
fn expiry_and_a_missing_backup_are_told_before_they_hurt() {
    let (site, control) = with_vms(&["web1"]);
    {
        let mut keys = site.keys.lock();
        keys.expires_unix_seconds = Some(control.now_unix_ms() / 1000 + 5 * 86_400);
        keys.last_backup_unix_seconds = Some(0);
    }
    control.ask_providers();
    // An answer about a key is valid for a minute.
    site.pass(Duration::from_secs(61));
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), [AlarmKind::KeyExpiry, AlarmKind::KeyServerUnbacked]);
    let mut keys = site.keys.lock();
    (keys.expires_unix_seconds, keys.last_backup_unix_seconds) = (None, Some(control.now_unix_ms() / 1000));
    drop(keys);
    site.pass(Duration::from_secs(61));
    control.ask_providers();
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), []);
}

#[test]
fn a_host_whose_memory_comes_to_a_disk_is_told_and_its_vms_are_left_alone() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let says = |state, reasons: &[&str]| {
        let reasons = reasons.iter().map(|reason| (*reason).to_owned()).collect();
        site.host.lock().crypto_safe = CryptoSafe { state, reasons, required: true };
        site.host.restart();
        assert!(settle_down(&site, &control));
    };
    says(CryptoSafeState::PendingIncapable, &["memory is swapped out to /dev/sda2"]);
    assert_eq!(alarms(&control), [AlarmKind::HostNotCryptoSafe]);
    let told = control.inventory.read().alarms.iter().next().unwrap().clone();
    assert_eq!(told.severity, Severity::Critical);
    assert!(told.message.contains("/dev/sda2"), "{}", told.message);
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    says(CryptoSafeState::Safe, &[]);
    assert_eq!(alarms(&control), []);
}

#[test]
fn what_a_host_cannot_do_is_known_before_a_key_is_made() {
    let (site, control) = with_vms(&[]);
    site.host.lock().memory_bytes = 1 << 20;
    let task = control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    let ended = control.show_task(task.id).unwrap();
    assert_eq!(ended.state, TaskState::Failed);
    assert_eq!(ended.error.unwrap().code, ErrorCode::Invalid);
    assert!(site.keys.lock().made.is_empty(), "no key is left without a VM");
    assert!(control.show_vm("web1").is_err());
}

#[test]
fn the_deaths_of_a_vms_processes_are_events() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let told = |kind: &str| {
        let index = control.inventory.read();
        index.events().iter().filter(|event| event.kind == kind).count()
    };
    assert_eq!((told("vm.supervisor_restarted"), told("vm.tpm_lost")), (0, 0));
    site.host.guest("web1", |vm| vm.supervisor_deaths = 1);
    assert!(settle_down(&site, &control));
    assert_eq!((told("vm.supervisor_restarted"), told("vm.tpm_lost")), (1, 0));
    site.host.guest("web1", |vm| vm.tpm_lost = true);
    assert!(settle_down(&site, &control));
    assert_eq!(alarms(&control), [AlarmKind::TpmLost]);
    site.host.guest("web1", |vm| vm.network_lost = true);
    assert!(settle_down(&site, &control));
    assert_eq!((told("vm.network_lost"), alarms(&control).len()), (1, 2));
    assert!(alarms(&control).contains(&AlarmKind::NetworkLost));
    // Other changes do not report it again; another death does.
    site.host.guest("web1", |vm| vm.power = HostPower::Paused);
    site.host.guest("web1", |vm| vm.supervisor_deaths = 2);
    assert!(settle_down(&site, &control));
    assert_eq!((told("vm.supervisor_restarted"), told("vm.tpm_lost")), (2, 1));
    assert_eq!(told("vm.network_lost"), 1);
}

#[test]
fn what_a_datastore_cannot_hold_is_refused_before_there_is_a_task() {
    let (site, control) = with_vms(&["web1"]);
    for refused in ["file_too_large", "no_space"] {
        site.host.lock().refuses = Some(refused);
        let wanted = if refused == "no_space" { ErrorCode::DatastoreFull } else { ErrorCode::Invalid };
        let larger = ResizeDisk { size_bytes: (8 << 40).try_into().unwrap() };
        assert_eq!(code(control.resize_disk(&caller(1), "web1", "disk0", &larger)), wanted);
        let more: AddDisk = serde_json::from_str(r#"{"size_bytes":8796093022208}"#).unwrap();
        assert_eq!(code(control.add_disk(&caller(2), "web1", &more)), wanted);
    }
    site.host.lock().refuses = None;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().disks.len(), 1);
}

#[test]
fn a_datastores_directory_is_not_added_as_another_one() {
    let (site, control) = with_vms(&[]);
    let known = site.host.lock().datastores.clone();
    // Another disk is mounted there now.
    let other = strongroom_types::DatastoreId::random();
    site.host.lock().datastores.values_mut().for_each(|id| *id = other);
    let again = serde_json::from_str(r#"{"name":"ds2","path":"/srv/ds1/"}"#).unwrap();
    let refused = control.add_datastore(&caller(1), &again).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NameTaken);
    assert!(refused.message.contains("datastore ds1"), "{refused}");
    let next = refused.next_step.unwrap();
    assert!(
        next.contains("mount that of ds1") && next.contains("`strongroom datastore remove ds1`"),
        "{next}"
    );
    let shown = control.show_datastore("ds1").unwrap();
    assert_eq!(Some(&shown.id), known.values().next());
}

#[test]
fn snapshots_are_made_once_and_a_disk_gets_the_size_that_it_had() {
    let (site, control) = with_vms(&["web1"]);
    let create = |number, name: &str| {
        control.create_snapshot(
            &caller(number),
            "web1",
            &CreateSnapshot {
                name: name.parse().unwrap(),
                memory: false,
                quiesce_within_s: None,
                with: Vec::new(),
            },
        )
    };
    let task = create(1, "first").unwrap();
    // The host has made it, and has forgotten the operation; the caller asks again.
    control.advance(task.id).unwrap();
    control.advance(task.id).unwrap();
    assert!(site.host.work());
    site.host.restart();
    assert_eq!(create(1, "first").unwrap().id, task.id);
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    let first = control.list_snapshots("web1").unwrap();
    assert_eq!((first.len(), first[0].name.as_str(), first[0].is_current), (1, "first", true));
    assert_eq!(code(create(2, "first")), ErrorCode::Conflict);
    let refused = control.remove_disk(&caller(3), "web1", "disk0").unwrap_err();
    assert!(refused.message.contains("part of snapshot first"), "{refused:?}");

    let revert = RevertVm::default();
    assert_eq!(code(control.revert_vm(&caller(4), "web1", "second", &revert)), ErrorCode::NotFound);
    let both = RevertVm { keep_as: Some("left".parse().unwrap()), discard: true, ..RevertVm::default() };
    assert_eq!(code(control.revert_vm(&caller(4), "web1", "first", &both)), ErrorCode::Invalid);
    control.revert_vm(&caller(5), "web1", "first", &revert).unwrap();
    assert!(settle_down(&site, &control));
    let vm = control.show_vm("web1").unwrap();
    assert_eq!(vm.disks[0].size_bytes, 64 << 20);
    assert_eq!(
        vm.snapshots.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(),
        ["first", "before-revert-1"]
    );
    assert_eq!(vm.snapshots[1].parent, Some(first[0].id));

    control.start_vm(&caller(6), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(code(control.revert_vm(&caller(7), "web1", "first", &revert)), ErrorCode::Conflict);
    control.delete_snapshot(&caller(8), "web1", "first").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.list_snapshots("web1").unwrap().len(), 1);
    assert_eq!(control.list_snapshots("web1").unwrap()[0].parent, None);
}

#[test]
fn a_clone_has_a_key_and_addresses_of_its_own_and_the_key_of_its_origin_is_lent_once() {
    let (site, control) = with_vms(&["web1"]);
    let wish = |name: &str, snapshot: Option<&str>| CloneVm {
        snapshot: snapshot.map(ToOwned::to_owned),
        ..copy(name)
    };
    assert_eq!(code(control.clone_vm(&caller(1), "web1", &wish("web1", None))), ErrorCode::NameTaken);
    assert_eq!(code(control.clone_vm(&caller(1), "web1", &wish("web2", Some("none")))), ErrorCode::NotFound);
    control.clone_vm(&caller(2), "web1", &wish("web2", None)).unwrap();
    assert!(settle_down(&site, &control));
    let (origin, clone) = (control.show_vm("web1").unwrap(), control.show_vm("web2").unwrap());
    assert_eq!((origin.disks.len(), origin.topology), (clone.disks.len(), clone.topology));
    assert_ne!(origin.key, clone.key);
    assert!(
        origin.nics.iter().zip(&clone.nics).all(|(of, nic)| of.backend == nic.backend && of.mac != nic.mac)
    );
    assert_eq!(site.host.lock().violations, [""; 0]);

    // One that runs, from a snapshot that it has.
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let snapshot = CreateSnapshot {
        name: "first".parse().unwrap(),
        memory: false,
        quiesce_within_s: None,
        with: Vec::new(),
    };
    control.create_snapshot(&caller(5), "web1", &snapshot).unwrap();
    assert!(settle_down(&site, &control));
    control.clone_vm(&caller(6), "web1", &wish("web3", Some("first"))).unwrap();
    assert!(settle_down(&site, &control));
    assert!(control.show_vm("web3").unwrap().snapshots.is_empty());
}

#[test]
fn a_quiesced_snapshot_is_of_a_guest_that_can_become_quiet_or_of_none() {
    let (site, control) = with_vms(&["web1"]);
    let within = Some(QuiesceWithin::default());
    let quiet = |number, name: &str, memory| {
        let wish = CreateSnapshot {
            name: name.parse().unwrap(),
            memory,
            quiesce_within_s: within,
            with: Vec::new(),
        };
        control.create_snapshot(&caller(number), "web1", &wish)
    };
    assert_eq!(code(quiet(1, "both", true)), ErrorCode::Invalid);
    quiet(2, "off", false).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    quiet(4, "runs", false).unwrap();
    assert!(settle_down(&site, &control));
    assert!(control.list_snapshots("web1").unwrap()[1].quiesced);
    // For a clone it is one that is made for it.
    let clone = CloneVm { quiesce_within_s: within, ..link("web2") };
    for other in [
        CloneVm { snapshot: Some("runs".to_owned()), ..clone.clone() },
        CloneVm { snapshot: Some("runs".to_owned()), linked: false, ..clone.clone() },
    ] {
        assert_eq!(code(control.clone_vm(&caller(5), "web1", &other)), ErrorCode::Invalid);
    }
    control.clone_vm(&caller(6), "web1", &clone).unwrap();
    assert!(settle_down(&site, &control));
    let made = &control.list_snapshots("web1").unwrap()[2];
    assert!(made.quiesced && made.name.as_str() == "clone-web2", "{made:?}");

    control.pause_vm(&caller(7), "web1").unwrap();
    assert!(settle_down(&site, &control));
    let refused = quiet(8, "paused", false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("web1 is paused"), "{refused}");
    assert!(refused.next_step.unwrap().contains("vm resume web1"));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

fn link(name: &str) -> CloneVm {
    CloneVm { linked: true, ..copy(name) }
}

#[test]
fn a_linked_clone_hangs_on_a_snapshot_that_its_task_makes() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    // Its key is waited for, and the task works on both.
    site.keys.lock().unavailable = true;
    let task = control.clone_vm(&caller(2), "web1", &link("web2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(code(control.stop_vm(&caller(3), "web1", &StopVm::default())), ErrorCode::Busy);
    assert_eq!(code(control.clone_vm(&caller(3), "web1", &link("web3"))), ErrorCode::Busy);
    site.keys.lock().unavailable = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    let (origin, clone) = (control.show_vm("web1").unwrap(), control.show_vm("web2").unwrap());
    assert_eq!(origin.summary.task, None);
    let names: Vec<_> = origin.snapshots.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["clone-web2"]);
    let lineage = clone.summary.origin.unwrap();
    assert_eq!((lineage.id, lineage.linked, lineage.is_gone), (origin.summary.id, true, false));
    assert_eq!(origin.linked_clones, [clone.summary.name]);

    // One that is cancelled releases its origin, and is not there.
    site.keys.lock().unavailable = true;
    let task = control.clone_vm(&caller(4), "web1", &link("web3")).unwrap();
    assert!(settle_down(&site, &control));
    control.cancel_task(&caller(9_000), task.id).unwrap();
    site.keys.lock().unavailable = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Cancelled);
    assert_eq!(control.show_vm("web1").unwrap().summary.task, None);
    assert_eq!(code(control.show_vm("web3")), ErrorCode::NotFound);

    // A snapshot of that name is there by now.
    control.delete_vm(&caller(5), "web2", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.clone_vm(&caller(6), "web1", &link("web2")).unwrap();
    assert!(settle_down(&site, &control));
    let names: Vec<_> =
        control.list_snapshots("web1").unwrap().into_iter().map(|one| one.name.to_string()).collect();
    assert_eq!(names, ["clone-web2", "clone-web2-1"]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_vm_with_linked_clones_is_deleted_only_if_they_may_keep_what_they_share() {
    let (site, control) = with_vms(&["web1"]);
    let clone = |by: u64, of: &str, wish: &CloneVm| {
        control.clone_vm(&caller(by), of, wish).unwrap();
        assert!(settle_down(&site, &control));
    };
    clone(1, "web1", &link("web2"));
    clone(2, "web2", &link("web3"));
    clone(3, "web1", &CloneVm { linked: false, ..link("full") });
    let refused = control.delete_vm(&caller(4), "web1", &DeleteVm::default()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InUse);
    assert!(refused.message.ends_with("web2, web3"), "{}", refused.message);
    assert!(refused.next_step.unwrap().contains("--leave-to-clones"));
    control.delete_vm(&caller(5), "web2", &DeleteVm { leave_to_clones: true, with_volumes: false }).unwrap();
    assert!(settle_down(&site, &control));
    let lineage = control.show_vm("web3").unwrap().summary.origin.unwrap();
    assert_eq!((lineage.name.as_str(), lineage.is_gone), ("web2", true));
    // What is between them is gone, and they share all the same.
    assert_eq!(code(control.delete_vm(&caller(6), "web1", &DeleteVm::default())), ErrorCode::InUse);
    control.delete_vm(&caller(7), "web3", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.delete_vm(&caller(8), "web1", &DeleteVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert!(!control.show_vm("full").unwrap().summary.origin.unwrap().linked);
}

#[test]
fn limits_are_of_a_disk_or_of_all_of_them_and_go_to_clones() {
    let (site, control) = with_vms(&["web1"]);
    let iops = |per_second| IoLimits {
        iops: Some(IopsLimit { per_second: Iops::new(per_second).unwrap(), burst: None }),
        bandwidth: None,
    };
    // A list is no object: its nulls would end all limits.
    assert!(serde_json::from_str::<SetLimits>(r#"{"limits":[null,null]}"#).is_err());
    control.limit_disk(&caller(1), "web1", Some("disk0"), iops(2000)).unwrap();
    assert!(settle_down(&site, &control));
    control.limit_disk(&caller(2), "web1", None, iops(5000)).unwrap();
    assert!(settle_down(&site, &control));
    let of = |vm: &str| {
        let vm = control.show_vm(vm).unwrap();
        (vm.limits, vm.disks[0].limits)
    };
    assert_eq!(of("web1"), (iops(5000), iops(2000)));
    control.clone_vm(&caller(3), "web1", &CloneVm { linked: false, ..link("web2") }).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(of("web2"), of("web1"));
    // The host starts it with them.
    control.start_vm(&caller(4), "web2", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.limit_disk(&caller(5), "web2", Some("disk0"), IoLimits::NONE).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((of("web2"), of("web1")), ((iops(5000), IoLimits::NONE), (iops(5000), iops(2000))));
    let nowhere = control.limit_disk(&caller(6), "web1", Some("disk9"), iops(2000)).unwrap_err();
    assert!(nowhere.message.contains("has no disk disk9"), "{}", nowhere.message);
    assert_eq!(code(control.limit_disk(&caller(6), "web9", None, iops(2000))), ErrorCode::NotFound);
    control.template_vm(&caller(7), "web1", &TemplateVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(code(control.limit_disk(&caller(8), "web1", None, iops(2000))), ErrorCode::Conflict);
}

#[test]
fn a_template_is_cloned_and_not_changed() {
    let (site, control) = with_vms(&["web1"]);
    let (make, undo) = (TemplateVm::default(), TemplateVm { undo: true });
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(code(control.template_vm(&caller(2), "web1", &make)), ErrorCode::Conflict);
    assert_eq!(code(control.template_vm(&caller(2), "web1", &undo)), ErrorCode::Conflict);
    control.stop_vm(&caller(3), "web1", &StopVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    control.template_vm(&caller(4), "web1", &make).unwrap();
    assert!(settle_down(&site, &control));
    assert!(control.show_vm("web1").unwrap().summary.template);

    let size = ResizeDisk { size_bytes: strongroom_types::VolumeSize::new(1 << 40).unwrap() };
    let revert = RevertVm::default();
    let refused = control.start_vm(&caller(5), "web1", &StartVm::default()).unwrap_err();
    assert!(refused.message.contains("is a template"), "{}", refused.message);
    assert!(refused.next_step.unwrap().contains("--undo"));
    assert_eq!(code(control.restart_vm(&caller(5), "web1", &StopVm::default())), ErrorCode::Conflict);
    assert_eq!(code(control.set_vm(&caller(5), "web1", &PatchVm::default(), None)), ErrorCode::Conflict);
    assert_eq!(code(control.resize_disk(&caller(5), "web1", "disk0", &size)), ErrorCode::Conflict);
    assert_eq!(code(control.revert_vm(&caller(5), "web1", "template", &revert)), ErrorCode::Conflict);
    assert_eq!(code(control.delete_snapshot(&caller(5), "web1", "template")), ErrorCode::Conflict);
    for (by, wish) in [(6, link("web2")), (7, link("web3")), (8, CloneVm { linked: false, ..link("full") })] {
        control.clone_vm(&caller(by), "web1", &wish).unwrap();
        assert!(settle_down(&site, &control));
        let clone = control.show_vm(wish.name.as_str()).unwrap();
        assert!(!clone.summary.template && clone.snapshots.is_empty());
    }
    let snapshots = control.list_snapshots("web1").unwrap();
    assert_eq!(snapshots.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["template"]);
    assert_eq!(code(control.delete_vm(&caller(9), "web1", &DeleteVm::default())), ErrorCode::InUse);
    control.rotate_key(&caller(10), "web1", &RotateKey::default()).unwrap();
    assert!(settle_down(&site, &control));

    control.template_vm(&caller(11), "web1", &undo).unwrap();
    control.delete_snapshot(&caller(12), "web1", "template").unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(13), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_tpm_goes_back_with_a_memory_only_if_the_request_says_so() {
    let (site, control) = with_vms(&[]);
    let wish = serde_json::json!({ "name": "web1", "memory_bytes": 64 << 20, "firmware": "uefi", "tpm": true,
        "disks": [{ "size_bytes": 1 << 20 }, { "size_bytes": 1 << 20, "kind": "swap" }] });
    control.create_vm(&caller(1), &serde_json::from_value(wish).unwrap()).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    for (by, name, memory) in [(3, "with", true), (4, "without", false)] {
        let wish =
            CreateSnapshot { name: name.parse().unwrap(), memory, quiesce_within_s: None, with: Vec::new() };
        control.create_snapshot(&caller(by), "web1", &wish).unwrap();
        assert!(settle_down(&site, &control));
    }
    control.stop_vm(&caller(5), "web1", &StopVm::default()).unwrap();
    assert!(settle_down(&site, &control));

    let revert = |by: u64, to: &str, disks_only, tpm| {
        let wish = RevertVm { keep_as: None, discard: true, disks_only, tpm };
        control.revert_vm(&caller(by), "web1", to, &wish)
    };
    let refused = revert(6, "with", false, false).unwrap_err();
    assert!(refused.message.contains("counters and lock-outs go back"), "{refused}");
    assert!(refused.next_step.unwrap().contains("--tpm"));
    // Nothing of it is put back by these.
    assert_eq!(code(revert(7, "without", false, true)), ErrorCode::Invalid);
    assert_eq!(code(revert(8, "with", true, true)), ErrorCode::Invalid);
    let put_back = || {
        let index = control.inventory.read();
        index.events().iter().filter(|event| event.kind == "vm.tpm_put_back").count()
    };
    revert(9, "with", true, false).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(put_back(), 0);
    revert(10, "with", false, true).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(put_back(), 1);
    let uses = site.keys.lock().uses.clone();
    assert!(uses.iter().any(|used| used.contains("the return of the TPM of VM web1")), "{uses:?}");
    assert_eq!(site.host.lock().violations, [""; 0]);
}
