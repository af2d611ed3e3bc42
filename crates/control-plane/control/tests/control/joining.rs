//! Machines that join, and what the control plane believes of them.

use std::sync::Arc;

use crate::support::joining::OneMachine;
use crate::support::{caller, settle_down, with_vms};
use strongroom_api::ErrorCode;
use strongroom_api::datastore::AddDatastore;
use strongroom_api::host::CreateHostToken;
use strongroom_api::vm::{PowerState, StartVm};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{OffReason, PowerState as HostPower, Term};

fn joins(control: &Control, machine: &Arc<OneMachine>) {
    control.let_join(Arc::clone(machine) as _);
    let wish = CreateHostToken {
        name: "host2".parse().unwrap(),
        address: "10.0.0.6:5691".to_owned(),
        valid_seconds: None,
    };
    let token = control.host_token(&caller(1), &wish).unwrap();
    assert_eq!((token.token.as_str(), token.address.as_str()), ("secret", "10.0.0.6:5691"));
    let again = control.host_token(&caller(2), &wish).unwrap_err();
    assert_eq!(again.code, ErrorCode::NameTaken);
}

#[test]
fn a_machine_joins_is_known_after_a_restart_and_is_removed_with_its_certificates() {
    let (site, control) = with_vms(&[]);
    let machine = OneMachine::of(&site.fuse);
    joins(&control, &machine);
    assert_eq!(control.list_hosts().len(), 2);
    let first_term = machine.host.lock().term;
    drop(control);

    let control = site.control().unwrap();
    control.let_join(Arc::clone(&machine) as _);
    assert!(machine.host.lock().term > first_term, "a greater term in each run");
    let datastore = AddDatastore {
        name: "ds2".parse().unwrap(),
        path: Some("/srv/ds2".to_owned()),
        ceph: None,
        host: Some("host2".to_owned()),
    };
    control.add_datastore(&caller(3), &datastore).unwrap();
    assert_eq!(control.remove_host(&caller(4), "host2").unwrap_err().code, ErrorCode::InUse);
    assert_eq!(control.remove_host(&caller(5), "host1").unwrap_err().code, ErrorCode::InUse);
    assert!(machine.expelled.lock().is_empty());
    control.remove_datastore(&caller(6), "ds2").unwrap();
    control.remove_host(&caller(7), "host2").unwrap();
    assert_eq!(*machine.expelled.lock(), [machine.client]);
    assert_eq!(machine.host.lock().term, Term::LAST);
    assert_eq!(control.list_hosts().len(), 1);
    drop(control);
    let control = site.control().unwrap();
    control.let_join(machine as _);
    assert_eq!(control.list_hosts().len(), 1);
}

#[test]
fn what_a_host_says_about_another_ones_vm_is_not_believed() {
    let (site, control) = with_vms(&["web1"]);
    let machine = OneMachine::of(&site.fuse);
    joins(&control, &machine);
    control.start_vm(&caller(8), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let (id, running) = {
        let inside = site.host.lock();
        let (id, vm) = inside.vms.iter().next().unwrap();
        (*id, vm.clone())
    };
    let mut forged = running;
    (forged.generation, forged.power, forged.reason) = (99, HostPower::Crashed, Some(OffReason::HostLost));
    machine.host.lock().vms.insert(id, forged);
    // It tells of a change.
    machine.host.guest("web1", |_| {});
    assert!(settle_down(&site, &control));
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.generation), (PowerState::Running, 1), "it is host1's VM");
}

#[test]
fn a_vm_of_a_host_that_is_away_is_unknown_and_never_off() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(8), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lock().down = true;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Unknown);
    site.host.lock().down = false;
    assert!(settle_down(&site, &control));
    let vm = control.show_vm("web1").unwrap();
    assert_eq!((vm.summary.power, vm.generation), (PowerState::Running, 1));
}
