//! Disks of VMs are encrypted and decrypted: what is refused, what is recorded before the host's
//! part, and what becomes of a task that fails or is cancelled.

use crate::support::{Site, caller, copy, create, settle_down, with_vms};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{
    AddDisk, CloneVm, CreateSnapshot, DesiredPower, DiskBecomes, EncryptDisk, PowerState, StartVm, StopVm,
    TemplateVm, VmView,
};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_control::records::DiskSealing;
use strongroom_host::protocol::{OffReason, PowerState as HostPower};

/// A site with the encrypted VM `web1` and the clear one `clear1`.
fn with_both() -> (Site, Control) {
    let (site, control) = with_vms(&["web1"]);
    control.create_vm(&caller(1), &create("clear1", false)).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

fn code<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ErrorCode {
    answer.unwrap_err().code
}

fn ended(site: &Site, control: &Control, task: &Task) -> Task {
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

fn state(site: &Site, control: &Control, task: &Task) -> TaskState {
    ended(site, control, task).state
}

/// For each disk, whether it has a key, and what it becomes.
fn disks(vm: &VmView) -> Vec<(bool, Option<DiskBecomes>)> {
    vm.disks.iter().map(|disk| (disk.key.is_some(), disk.becomes)).collect()
}

fn plain() -> EncryptDisk {
    EncryptDisk::default()
}

#[test]
fn a_clear_vm_gets_a_key_with_its_first_encrypted_disk_and_loses_it_with_the_last() {
    let (site, control) = with_both();
    let more: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576}"#).unwrap();
    control.add_disk(&caller(2), "clear1", &more).unwrap();
    assert!(settle_down(&site, &control));
    let keys_before = site.keys.lock().made.len();

    let tagged = EncryptDisk { integrity: true, ..plain() };
    let task = control.encrypt_disk(&caller(3), "clear1", "disk1", &tagged).unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Done);
    let vm = control.show_vm("clear1").unwrap();
    assert_eq!(disks(&vm), [(false, None), (true, None)]);
    assert_eq!((vm.disks[1].integrity, vm.summary.encrypted, vm.summary.partly_clear), (true, true, true));
    assert_eq!(site.keys.lock().made.len(), keys_before + 1);

    // The second one is under the same key.
    let task = control.encrypt_disk(&caller(4), "clear1", "disk0", &plain()).unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Done);
    let vm = control.show_vm("clear1").unwrap();
    assert_eq!(vm.disks[0].key, vm.disks[1].key);
    assert!(!vm.summary.partly_clear);
    assert_eq!(site.keys.lock().made.len(), keys_before + 1);
    let again = control.encrypt_disk(&caller(5), "clear1", "disk0", &plain());
    assert!(again.unwrap_err().message.contains("disk0 of VM clear1 is encrypted already"));
    control.start_vm(&caller(6), "clear1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let stop = StopVm { force: true, ..StopVm::default() };
    control.stop_vm(&caller(7), "clear1", &stop).unwrap();
    assert!(settle_down(&site, &control));

    for (request, disk) in [(8, "disk0"), (9, "disk1")] {
        assert!(site.keys.lock().retired.is_empty());
        let task = control.decrypt_disk(&caller(request), "clear1", disk).unwrap();
        assert_eq!(state(&site, &control, &task), TaskState::Done);
    }
    let vm = control.show_vm("clear1").unwrap();
    assert_eq!(disks(&vm), [(false, None), (false, None)]);
    assert_eq!((vm.summary.encrypted, vm.summary.partly_clear, vm.disks[1].integrity), (false, false, false));
    assert_eq!(site.keys.lock().retired.len(), 1, "nothing is under the VM's key any more");
    assert_eq!(code(control.decrypt_disk(&caller(10), "clear1", "disk0")), ErrorCode::Conflict);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn what_fails_or_is_cancelled_is_taken_back() {
    let (site, control) = with_both();
    // The host fails for good, and takes it back.
    site.host.lock().disk_changes_that_fail = vec!["no_space"];
    let task = control.encrypt_disk(&caller(2), "clear1", "disk0", &plain()).unwrap();
    let failed = ended(&site, &control, &task);
    assert_eq!(failed.error.unwrap().code, ErrorCode::DatastoreFull);
    let vm = control.show_vm("clear1").unwrap();
    assert_eq!(
        (disks(&vm), vm.summary.encrypted, vm.disks[0].integrity),
        (vec![(false, None)], false, false)
    );
    assert_eq!(site.keys.lock().retired.len(), 1, "nothing was left under the key that was made for it");

    // Cancelled while the host works.
    let task = control.decrypt_disk(&caller(3), "web1", "disk0").unwrap();
    while disks(&control.show_vm("web1").unwrap())[0].1.is_none() {
        control.advance(task.id).unwrap();
    }
    control.advance(task.id).unwrap();
    control.cancel_task(&caller(9_000), task.id).unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Cancelled);
    assert_eq!(disks(&control.show_vm("web1").unwrap()), [(true, None)]);
    control.start_vm(&caller(4), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_half_clear_disk_is_not_used_and_either_request_completes_it() {
    let (site, control) = with_both();
    for (request, encrypts) in [(10, true), (20, false)] {
        // Nor can the host take it back.
        site.host.lock().disk_changes_that_fail = vec!["io"; 12];
        let task = control.decrypt_disk(&caller(request), "web1", "disk0").unwrap();
        let problem = ended(&site, &control, &task).error.unwrap();
        site.host.lock().disk_changes_that_fail.clear();
        let next = problem.next_step.clone().unwrap();
        assert!(next.contains("`strongroom vm disk decrypt web1 disk0`"), "{problem:?}");
        let vm = control.show_vm("web1").unwrap();
        assert_eq!(disks(&vm), [(true, Some(DiskBecomes::Encrypted))]);
        assert!(vm.summary.partly_clear);
        let refused = control.start_vm(&caller(request + 1), "web1", &StartVm::default()).unwrap_err();
        assert!(refused.message.contains("disk0 of VM web1 is not encrypted as a whole"), "{refused:?}");
        let snapshot = CreateSnapshot {
            name: "first".parse().unwrap(),
            memory: false,
            quiesce_within_s: None,
            with: Vec::new(),
        };
        assert_eq!(
            code(control.create_snapshot(&caller(request + 2), "web1", &snapshot)),
            ErrorCode::Conflict
        );
        let task = match encrypts {
            true => control.encrypt_disk(&caller(request + 3), "web1", "disk0", &plain()),
            false => control.decrypt_disk(&caller(request + 3), "web1", "disk0"),
        };
        assert_eq!(state(&site, &control, &task.unwrap()), TaskState::Done);
        assert_eq!(disks(&control.show_vm("web1").unwrap()), [(encrypts, None)]);
    }
    assert_eq!(site.host.lock().violations, [""; 0]);
}

/// A site whose VM `web1` runs, with the encrypted disks `disk0` and `disk1`.
fn running_with_two() -> (Site, Control) {
    let (site, control) = with_vms(&["web1"]);
    let more: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576}"#).unwrap();
    control.add_disk(&caller(1), "web1", &more).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

#[test]
fn a_disk_of_a_running_vm_is_rewritten_unless_it_is_the_only_encrypted_one() {
    let (site, control) = running_with_two();
    let task = control.decrypt_disk(&caller(3), "web1", "disk1").unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Done);
    let vm = control.show_vm("web1").unwrap();
    assert_eq!(disks(&vm), [(true, None), (false, None)]);
    assert_eq!((vm.summary.power, vm.summary.desired), (PowerState::Running, DesiredPower::Running));

    let refused = control.decrypt_disk(&caller(4), "web1", "disk0").unwrap_err();
    assert!(refused.message.contains("web1 is running: its own volumes"), "{refused:?}");
    assert!(refused.next_step.unwrap().contains("`strongroom vm stop web1`"));
    let tagged = EncryptDisk { integrity: true, ..plain() };
    let task = control.encrypt_disk(&caller(5), "web1", "disk1", &tagged).unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Done);
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((disks(&vm), vm.disks[1].integrity), (vec![(true, None), (true, None)], true));
    assert!(site.keys.lock().retired.is_empty(), "the other disk is under the key all the while");
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_vm_that_ends_with_a_half_clear_disk_stays_off_until_the_disk_is_whole() {
    let (site, control) = running_with_two();
    site.host.lock().disk_changes_that_fail = vec!["io"; 12];
    let task = control.decrypt_disk(&caller(3), "web1", "disk1").unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Failed);
    site.host.lock().disk_changes_that_fail.clear();
    let half = [(true, None), (true, Some(DiskBecomes::Encrypted))];
    assert_eq!(disks(&control.show_vm("web1").unwrap()), half);
    let refused = control.suspend_vm(&caller(4), "web1").unwrap_err();
    assert!(refused.message.contains("disk1 of VM web1 is not encrypted as a whole"), "{refused:?}");

    site.host.guest("web1", |vm| {
        (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied));
    });
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Crashed);
    let task = control.encrypt_disk(&caller(5), "web1", "disk1", &plain()).unwrap();
    assert_eq!(state(&site, &control, &task), TaskState::Done);
    assert_eq!(disks(&control.show_vm("web1").unwrap()), [(true, None), (true, None)]);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn what_cannot_be_rewritten_whole_is_refused_with_the_reason() {
    let (site, control) = with_both();
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let refused = control.decrypt_disk(&caller(3), "web1", "disk0").unwrap_err();
    assert!(refused.message.contains("VM web1 is running"), "{refused:?}");
    assert!(refused.next_step.unwrap().contains("`strongroom vm stop web1`"));
    control.stop_vm(&caller(4), "web1", &StopVm { force: true, ..StopVm::default() }).unwrap();
    assert!(settle_down(&site, &control));

    let swap: AddDisk = serde_json::from_str(r#"{"size_bytes":1048576,"kind":"swap"}"#).unwrap();
    control.add_disk(&caller(5), "clear1", &swap).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(code(control.encrypt_disk(&caller(6), "clear1", "swap0", &plain())), ErrorCode::Conflict);
    assert_eq!(code(control.encrypt_disk(&caller(7), "clear1", "disk7", &plain())), ErrorCode::NotFound);
    let with_provider = EncryptDisk { key_provider: Some("nobody".parse().unwrap()), ..plain() };
    assert_eq!(
        code(control.encrypt_disk(&caller(8), "clear1", "disk0", &with_provider)),
        ErrorCode::NotFound
    );

    // Its linked clones, and the VM that a linked clone is of, are named.
    control.clone_vm(&caller(9), "web1", &CloneVm { linked: true, ..copy("web2") }).unwrap();
    assert!(settle_down(&site, &control));
    for (request, vm, other) in [(10, "web1", "web2"), (11, "web2", "web1")] {
        let refused = control.decrypt_disk(&caller(request), vm, "disk0").unwrap_err();
        assert_eq!(refused.code, ErrorCode::InUse);
        assert!(refused.message.contains(&format!("with {other}")), "{refused:?}");
    }
    control.template_vm(&caller(12), "clear1", &TemplateVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let refused = control.encrypt_disk(&caller(13), "clear1", "disk0", &plain()).unwrap_err();
    assert!(refused.message.contains("clear1 is a template"), "{refused:?}");
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_policy_that_demands_encryption_refuses_a_decryption() {
    let (site, control) = with_vms(&[]);
    let policy = r#"{"name":"sealed","rules":{"encryption_required":true}}"#;
    control.create_policy(&caller(1), &serde_json::from_str(policy).unwrap()).unwrap();
    let wish = serde_json::json!({ "name": "web1", "memory_bytes": 64 << 20, "policy": "sealed",
        "disks": [{ "size_bytes": 1 << 20 }] });
    control.create_vm(&caller(2), &serde_json::from_value(wish).unwrap()).unwrap();
    assert!(settle_down(&site, &control));
    let refused = control.decrypt_disk(&caller(3), "web1", "disk0").unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains("policy sealed: disk0 of VM web1 is not encrypted"), "{refused:?}");
    let index = control.inventory.read();
    let vm = index.find_vm("web1").unwrap();
    assert!(matches!(vm.hardware.disks[0].sealing, DiskSealing::Under { .. }));
}
