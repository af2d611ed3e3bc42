//! VMs that run move from full hosts to emptier ones, as a plan has it.

use std::time::Duration;

use strongroom_api::ErrorCode;
use strongroom_api::host::{Balance, BalanceHosts};
use strongroom_api::task::TaskState;
use strongroom_api::vm::{PowerState, StopVm};
use strongroom_control::engine::Control;

use super::moves::{ended, no_violations, start, stays_on};
use super::placement::{host_of, maintenance, on, shared};
use crate::support::{Site, caller, settle_down};

/// The memory of a VM of these tests.
const VM_BYTES: u64 = 64 << 20;

/// Three hosts, of which the first has all VMs. Each VM has a tenth of a host's memory.
fn full(vms: u64) -> (Site, Control) {
    let (site, control) = shared(2);
    for (_, host) in site.hosts() {
        host.lock().memory_bytes = 10 * VM_BYTES;
    }
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    for number in 1..=vms {
        control.create_vm(&caller(number), &on(&format!("web{number}"), "host1")).unwrap();
    }
    assert!(settle_down(&site, &control));
    for number in 1..=vms {
        start(&site, &control, 100 + number, &format!("web{number}"));
    }
    (site, control)
}

/// The VMs that run on each host, and after the moves, by the plan.
fn loads(balance: &Balance) -> Vec<(&str, u64, u64)> {
    let load = |load: &'_ strongroom_api::host::HostLoad| {
        (load.running_bytes / VM_BYTES, load.after_bytes / VM_BYTES)
    };
    balance.hosts.iter().map(|one| (one.host.as_str(), load(one).0, load(one).1)).collect()
}

fn carry_out(plan: &str) -> BalanceHosts {
    BalanceHosts { plan: plan.to_owned() }
}

#[test]
fn hosts_are_balanced_as_it_was_planned_and_not_otherwise() {
    let (site, control) = full(8);
    control.create_vm(&caller(20), &stays_on("stays1", "host1")).unwrap();
    control.create_vm(&caller(21), &on("off1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 22, "stays1");
    let balance = control.plan_balance().unwrap();
    assert_eq!(loads(&balance), [("host1", 9, 3), ("host2", 0, 3), ("host3", 0, 3)], "{balance:?}");
    assert_eq!(balance.moves.len(), 6);
    assert!(balance.moves.iter().all(|planned| planned.from == "host1" && planned.name.starts_with("web")));
    // Nothing has moved, and the same is planned again.
    assert_eq!(control.plan_balance().unwrap(), balance);
    let plan = balance.plan.clone().unwrap();
    let refused = control.balance_hosts(&caller(23), &carry_out("another")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.next_step.unwrap().contains("strongroom host balance"));

    // Another plan by now.
    control.stop_vm(&caller(24), "web1", &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(&site, &control));
    control.balance_hosts(&caller(25), &carry_out(&plan)).unwrap_err();
    start(&site, &control, 26, "web1");
    assert_eq!(control.plan_balance().unwrap().plan.as_ref(), Some(&plan));

    let task = control.balance_hosts(&caller(27), &carry_out(&plan)).unwrap();
    let twice = control.balance_hosts(&caller(28), &carry_out(&plan)).unwrap_err();
    assert_eq!(twice.code, ErrorCode::Busy);
    let task = ended(&site, &control, &task);
    assert_eq!(task.state, TaskState::Done, "{task:?}");
    for planned in &balance.moves {
        let vm = control.show_vm(&planned.name).unwrap();
        assert_eq!((vm.summary.power, vm.summary.host.as_ref()), (PowerState::Running, Some(&planned.to)));
    }
    assert_eq!((host_of(&control, "stays1"), host_of(&control, "off1")), ("host1".into(), "host1".into()));
    let balance = control.plan_balance().unwrap();
    assert_eq!(loads(&balance), [("host1", 3, 3), ("host2", 3, 3), ("host3", 3, 3)]);
    assert_eq!((balance.moves.len(), balance.plan), (0, None));
    control.balance_hosts(&caller(29), &carry_out(&plan)).unwrap_err();
    no_violations(&site);
}

#[test]
fn hosts_without_room_or_in_maintenance_have_no_part_in_it() {
    let (site, control) = full(6);
    maintenance(&control, "host3", true);
    // What is placed there is off, and needs its room all the same.
    for number in 30..38 {
        control.create_vm(&caller(number), &on(&format!("off{number}"), "host2")).unwrap();
    }
    assert!(settle_down(&site, &control));
    let balance = control.plan_balance().unwrap();
    assert_eq!(loads(&balance), [("host1", 6, 4), ("host2", 0, 2)], "{balance:?}");
    // One that is lost in the middle keeps its VMs, and the task says so.
    let task = control.balance_hosts(&caller(50), &carry_out(&balance.plan.unwrap())).unwrap();
    maintenance(&control, "host2", true);
    let task = ended(&site, &control, &task);
    let message = task.error.unwrap().message;
    assert!(message.contains("2 VMs could not be moved, and 0 were"), "{message}");
    assert!(message.contains("is in maintenance"), "{message}");
    no_violations(&site);
}
