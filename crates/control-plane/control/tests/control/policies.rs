//! Policies: no operation makes a VM deviate from its rules, and what deviates all the same is
//! known.

use serde_json::{Value, json};
use strongroom_api::alarm::AlarmKind;
use strongroom_api::policy::{PolicyRule, SetPolicy};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{StartVm, VmView};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;

use crate::support::{Site, caller, settle_down, with_vms};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn policy(control: &Control, rules: Value) {
    control.create_policy(&caller(77_000), &read(json!({ "name": "gold", "rules": rules }))).unwrap();
}

fn set(control: &Control, rules: Value) -> Vec<String> {
    let set =
        control.set_policy(&caller(77_001), "gold", &read::<SetPolicy>(json!({ "rules": rules }))).unwrap();
    set.deviating.iter().map(ToString::to_string).collect()
}

fn wish(name: &str, more: Value) -> Value {
    let mut wish = json!({ "name": name, "memory_bytes": 64 << 20, "policy": "gold", "disks": [{ "size_bytes": 1 << 20 }] });
    wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    wish
}

fn is_refused(asked: Result<Task, Problem>, says: &str) {
    let problem = asked.unwrap_err();
    assert_eq!(problem.code, ErrorCode::Conflict, "{problem}");
    assert!(problem.message.starts_with("policy gold: ") && problem.message.contains(says), "{problem}");
    assert!(problem.next_step.is_some());
}

fn vm(control: &Control, name: &str) -> VmView {
    control.show_vm(name).unwrap()
}

fn alarms(control: &Control) -> Vec<AlarmKind> {
    control.review().unwrap();
    control.inventory.read().alarms.iter().map(|alarm| alarm.kind).collect()
}

fn strict() -> Value {
    json!({ "encryption_required": true, "integrity_required": true, "key_provider": "embedded",
        "disk_limits": { "iops": { "per_second": 1000 } } })
}

fn with_strict_vm() -> (Site, Control) {
    let (site, control) = with_vms(&[]);
    site.keys.lock().others.push("corp".to_owned());
    control.ask_providers();
    policy(&control, strict());
    control.create_vm(&caller(1), &read(wish("web1", json!({})))).unwrap();
    assert!(settle_down(&site, &control));
    (site, control)
}

#[test]
fn no_operation_makes_a_vm_deviate() {
    let (site, control) = with_strict_vm();
    let refused =
        control.create_vm(&caller(2), &read(wish("x", json!({ "encryption": { "encrypted": false } }))));
    is_refused(refused, "disk0 of VM x is not encrypted");
    let limit = |disk: Option<&str>, iops: Value| {
        let limits = if iops.is_null() { json!({}) } else { json!({ "iops": { "per_second": iops } }) };
        control.limit_disk(&caller(3), "web1", disk, read(limits))
    };
    is_refused(limit(Some("disk0"), json!(2000)), "disk0 of VM web1 may do 2000 IOPS, and at most 1000 IOPS");
    is_refused(limit(Some("disk0"), Value::Null), "may do unlimited");
    is_refused(control.decrypt_disk(&caller(4), "web1", "disk0"), "disk0 of VM web1 is not encrypted");
    is_refused(
        control.clone_vm(&caller(5), "web1", &read(json!({ "name": "copy", "encrypted": false }))),
        "disk0 of VM copy is not encrypted",
    );
    is_refused(
        control.rotate_key(&caller(6), "web1", &read(json!({ "key_provider": "corp" }))),
        "under a key of corp, and not of embedded",
    );
    assert!(control.inventory.read().open_tasks().next().is_none(), "nothing has begun");
    // What the rules permit is done, and new disks keep them by themselves.
    control.add_disk(&caller(7), "web1", &read(json!({ "size_bytes": 1 << 20 }))).unwrap();
    assert!(settle_down(&site, &control));
    let disks = vm(&control, "web1").disks;
    assert_eq!(disks.len(), 2);
    for disk in disks {
        assert!(disk.integrity, "{disk:?}");
        assert_eq!(disk.limits.iops.unwrap().per_second.get(), 1000, "{disk:?}");
    }
    let narrower = read(json!({ "iops": { "per_second": 500 } }));
    control.limit_disk(&caller(8), "web1", Some("disk1"), narrower).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(vm(&control, "web1").deviations, []);
    assert_eq!(alarms(&control), []);
}

#[test]
fn a_vm_that_deviates_from_a_changed_policy_is_known_and_goes_on() {
    let (site, control) = with_strict_vm();
    assert_eq!(
        set(&control, json!({ "disk_limits": { "iops": { "per_second": 300 } }, "tpm_required": true })),
        ["web1"]
    );
    let rules = |control: &Control| -> Vec<PolicyRule> {
        vm(control, "web1").deviations.iter().map(|deviation| deviation.rule).collect()
    };
    assert_eq!(rules(&control), [PolicyRule::Tpm, PolicyRule::DiskLimits]);
    assert_eq!(alarms(&control), [AlarmKind::PolicyViolated]);
    // It goes on, and may come nearer to the rules without keeping all of them.
    control.start_vm(&caller(10), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let next = &vm(&control, "web1").deviations[1].next_step;
    assert_eq!(next, "`strongroom vm disk limit web1 disk0` with --iops 300");
    control
        .limit_disk(&caller(11), "web1", Some("disk0"), read(json!({ "iops": { "per_second": 300 } })))
        .unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(rules(&control), [PolicyRule::Tpm]);
    is_refused(
        control.limit_disk(
            &caller(12),
            "web1",
            Some("disk0"),
            read(json!({ "iops": { "per_second": 301 } })),
        ),
        "may do 301 IOPS",
    );
    assert_eq!(set(&control, strict()), [""; 0]);
    assert_eq!(alarms(&control), []);
}

#[test]
fn new_vms_get_the_snapshots_and_the_space_that_their_policy_demands() {
    let (site, control) = with_vms(&[]);
    let daily = json!({ "every_s": 86_400, "keep": 7 });
    policy(&control, json!({ "thick_required": true, "snapshots": [daily] }));
    control.create_vm(&caller(1), &read(wish("web1", json!({})))).unwrap();
    assert!(settle_down(&site, &control));
    control.clone_vm(&caller(2), "web1", &read(json!({ "name": "copy" }))).unwrap();
    assert!(settle_down(&site, &control));
    control.add_disk(&caller(3), "web1", &read(json!({ "size_bytes": 1 << 20 }))).unwrap();
    assert!(settle_down(&site, &control));
    for name in ["web1", "copy"] {
        let schedule = control.snapshot_schedule(name).unwrap();
        let rules: Vec<_> = schedule.rules.iter().map(|rule| (rule.rule.every_s, rule.rule.keep)).collect();
        assert_eq!(rules, [(86_400, 7)], "{name}");
        assert_eq!(vm(&control, name).deviations, [], "{name}");
    }
    // More snapshots are as well, fewer are not, and other periods are the VM's own.
    let schedule = |request, rules: Value| {
        control.set_snapshot_schedule(&caller(request), "web1", &read(json!({ "rules": rules })), None)
    };
    let hourly = json!({ "every_s": 3600, "keep": 3 });
    schedule(4, json!([{ "every_s": 86_400, "keep": 8 }, hourly])).unwrap();
    is_refused(schedule(5, json!([hourly])), "no daily snapshots of which 7 are kept");
    is_refused(schedule(6, json!([{ "every_s": 86_400, "keep": 6 }])), "no daily snapshots");
    assert_eq!(control.snapshot_schedule("web1").unwrap().rules.len(), 2);
}

fn applied(site: &Site, control: &Control, request: u64) -> Task {
    let task = control.apply_policy(&caller(request), "gold").unwrap();
    assert!(settle_down(site, control));
    control.show_task(task.id).unwrap()
}

/// A VM that has been made under a policy without rules, and deviates now.
fn deviating_vms(names: &[&str]) -> (Site, Control) {
    let (site, control) = with_vms(&[]);
    site.keys.lock().others.push("corp".to_owned());
    control.ask_providers();
    policy(&control, json!({}));
    for (number, name) in names.iter().enumerate() {
        let clear = json!({ "encryption": { "encrypted": false } });
        control.create_vm(&caller(number as u64), &read(wish(name, clear))).unwrap();
    }
    assert!(settle_down(&site, &control));
    let rules = json!({ "encryption_required": true, "key_provider": "corp",
        "disk_limits": { "iops": { "per_second": 300 } }, "snapshots": [{ "every_s": 3600, "keep": 2 }] });
    assert_eq!(set(&control, rules).len(), names.len());
    (site, control)
}

#[test]
fn a_policy_is_applied_to_all_vms_that_deviate() {
    let names = ["web1", "web2", "web3", "web4", "web5", "web6"];
    let (site, control) = deviating_vms(&names);
    let task = applied(&site, &control, 20);
    assert_eq!((task.state, task.error), (TaskState::Done, None));
    for name in names {
        let vm = vm(&control, name);
        assert_eq!((vm.deviations.len(), vm.disks[0].key.is_some()), (0, true), "{name}");
        assert_eq!(vm.key.unwrap().provider, "corp");
        assert_eq!(control.snapshot_schedule(name).unwrap().rules.len(), 1);
    }
    assert!(control.show_policy("gold").unwrap().deviating.is_empty());
    // With nothing to do it is done at once, and only once at a time.
    assert_eq!(applied(&site, &control, 21).state, TaskState::Done);
    control.apply_policy(&caller(22), "gold").unwrap();
    assert_eq!(control.apply_policy(&caller(23), "gold").unwrap_err().code, ErrorCode::Busy);
}

#[test]
fn what_no_request_ends_is_named_with_its_reason() {
    let (site, control) = deviating_vms(&["web1", "web2"]);
    set(&control, json!({ "tpm_required": true, "disk_limits": { "iops": { "per_second": 300 } } }));
    let task = applied(&site, &control, 20);
    let error = task.error.unwrap();
    assert!(error.message.starts_with("policy gold is not kept by 2 VMs: "), "{error}");
    assert!(error.message.contains("VM web1: VM web1 has no TPM"), "{error}");
    let rules = |name| -> Vec<_> { vm(&control, name).deviations.iter().map(|found| found.rule).collect() };
    assert_eq!((rules("web1"), rules("web2")), (vec![PolicyRule::Tpm], vec![PolicyRule::Tpm]));
}

#[test]
fn a_vm_whose_task_fails_is_named_and_tried_once() {
    let (site, control) = deviating_vms(&["web1", "web2"]);
    set(&control, json!({ "disk_limits": { "iops": { "per_second": 300 } } }));
    site.host.lock().disk_changes_that_fail = vec!["guest_keeps_disk"];
    let error = applied(&site, &control, 20).error.unwrap();
    assert!(error.message.starts_with("policy gold is not kept by 1 VM: "), "{error}");
    assert!(site.host.lock().disk_changes_that_fail.is_empty());
    let deviating = control.show_policy("gold").unwrap().deviating;
    assert_eq!(deviating.len(), 1, "{deviating:?}");
    assert!(error.message.contains(&format!("VM {}: ", deviating[0])), "{error}");
    assert_eq!(applied(&site, &control, 21).error, None);
}

/// The control plane is killed at each moment of an application.
#[test]
fn an_application_completes_whenever_the_control_plane_was_killed() {
    let mut moments = 1;
    while is_application_killed_at(moments) {
        moments += 3;
    }
    assert!(moments > 40, "{moments}");
}

fn is_application_killed_at(moments: i64) -> bool {
    let (site, control) = deviating_vms(&["web1", "web2"]);
    let task = control.apply_policy(&caller(20), "gold").unwrap();
    site.fuse.set(moments);
    let killed = !settle_down(&site, &control);
    site.fuse.set(i64::MAX);
    let control = if killed { site.control().unwrap() } else { control };
    assert!(settle_down(&site, &control));
    let task = control.show_task(task.id).unwrap();
    assert_eq!((task.state, task.error), (TaskState::Done, None), "killed at {moments}");
    for name in ["web1", "web2"] {
        assert_eq!(vm(&control, name).deviations, [], "{name} at {moments}");
    }
    killed
}
