//! Machine types and processors: what VMs get, keep, and which hosts they can be on.

use std::time::Duration;

use serde_json::{Value, json};
use strongroom_api::alarm::AlarmKind;
use strongroom_api::task::TaskState;
use strongroom_api::vm::{CreateVm, MoveToHost, PatchVm, PowerState, StartVm, StopVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{Capabilities, OffReason, PowerState as HostPower};
use strongroom_vm::Board;

use crate::placement::{host_of, on, shared};
use crate::support::{Site, caller, create, settle_down};

const STATE_AGE: Duration = Duration::from_secs(6);

pub fn gives(machine_types: &[&str], processors: &[&str], features: &[&str]) -> Option<Capabilities> {
    Some(Capabilities {
        machine_types: machine_types.iter().map(|name| name.parse().unwrap()).collect(),
        default_machine_types: vec![machine_types[0].parse().unwrap()],
        processors: processors.iter().map(|name| name.parse().unwrap()).collect(),
        features: features.iter().map(|name| (*name).to_owned()).collect(),
        vendor: Some("GenuineIntel".parse().unwrap()),
    })
}

/// An older host, and a newer one that has all of it and more.
fn two() -> (Site, Control) {
    let (site, control) = shared(1);
    let hosts = site.hosts();
    hosts[0].1.lock().capabilities = gives(&["pc-q35-7.2"], &["x86-64-v2", "Nehalem"], &["sse4.2"]);
    hosts[1].1.lock().capabilities = gives(
        &["pc-q35-10.0", "pc-q35-7.2"],
        &["x86-64-v3", "x86-64-v2", "Nehalem", "EPYC"],
        &["avx2", "sse4.2"],
    );
    look_again(&site, &control);
    (site, control)
}

pub fn look_again(site: &Site, control: &Control) {
    site.pass(STATE_AGE);
    assert!(settle_down(site, control));
}

fn with(wish: CreateVm, board: Value) -> CreateVm {
    CreateVm { board: serde_json::from_value(board).unwrap(), ..wish }
}

fn board(control: &Control, vm: &str) -> (Option<String>, String) {
    let Board { machine_type, processor, .. } = control.show_vm(vm).unwrap().board;
    (machine_type.map(|name| name.to_string()), processor.unwrap().to_string())
}

fn patch(patch: Value) -> PatchVm {
    serde_json::from_value(patch).unwrap()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Problem>, parts: &[&str]) {
    let problem = answer.unwrap_err();
    assert_eq!(problem.code, ErrorCode::NoHost, "{problem}");
    let text = format!("{} {}", problem.message, problem.next_step.unwrap_or_default());
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn start(site: &Site, control: &Control, request: u64, vm: &str) {
    control.start_vm(&caller(request), vm, &StartVm::default()).unwrap();
    assert!(settle_down(site, control));
    assert_eq!(control.show_vm(vm).unwrap().summary.power, PowerState::Running);
}

fn stop(site: &Site, control: &Control, request: u64, vm: &str) {
    control.stop_vm(&caller(request), vm, &StopVm { force: true, timeout_s: None }).unwrap();
    assert!(settle_down(site, control));
}

#[test]
fn a_vm_gets_the_machine_type_of_its_host_and_keeps_it() {
    let (site, control) = two();
    control.create_vm(&caller(1), &on("old", "host1")).unwrap();
    control.create_vm(&caller(2), &on("new", "host2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(board(&control, "old"), (Some("pc-q35-7.2".to_owned()), "host".to_owned()));
    assert_eq!(board(&control, "new").0.as_deref(), Some("pc-q35-10.0"));
    // The host's QEMU becomes a newer one.
    site.host.lock().capabilities = gives(&["pc-q35-11.0", "pc-q35-7.2"], &["x86-64-v2"], &["sse4.2"]);
    look_again(&site, &control);
    start(&site, &control, 3, "old");
    let id = control.show_vm("old").unwrap().summary.id;
    let told = site.host.lock().vms[&id].spec.board.machine_type.clone();
    assert_eq!(told.unwrap().as_str(), "pc-q35-7.2");
    // It changes while the VM is off, to what its host has.
    let newer = || patch(json!({ "machine_type": "pc-q35-11.0" }));
    assert_eq!(control.set_vm(&caller(4), "old", &newer(), None).unwrap_err().code, ErrorCode::Conflict);
    stop(&site, &control, 5, "old");
    let other = patch(json!({ "machine_type": "pc-q35-12.0" }));
    refused(
        control.set_vm(&caller(6), "old", &other, None),
        &["host1", "no machine type pc-q35-12.0", "pc-q35-11.0"],
    );
    let pc = patch(json!({ "machine_type": "pc-i440fx-7.2" }));
    assert!(control.set_vm(&caller(7), "old", &pc, None).is_err(), "of another board");
    control.set_vm(&caller(8), "old", &newer(), None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(board(&control, "old").0.as_deref(), Some("pc-q35-11.0"));
}

#[test]
fn a_vm_of_an_earlier_version_gets_its_machine_type_at_its_next_start() {
    let (site, control) = shared(0);
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    control.create_vm(&caller(2), &create("web2", true)).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 3, "web2");
    site.host.guest("web2", |vm| (vm.power, vm.reason) = (HostPower::Suspended, Some(OffReason::Suspended)));
    site.host.lock().capabilities = gives(&["pc-q35-7.2"], &["x86-64-v2"], &[]);
    look_again(&site, &control);
    assert_eq!(board(&control, "web1"), (None, "host".to_owned()));
    start(&site, &control, 4, "web1");
    assert_eq!(board(&control, "web1").0.as_deref(), Some("pc-q35-7.2"));
    let id = control.show_vm("web1").unwrap().summary.id;
    let told = site.host.lock().vms[&id].spec.board.machine_type.clone();
    assert_eq!(told.unwrap().as_str(), "pc-q35-7.2");
    // A memory goes on with the devices that it has.
    start(&site, &control, 5, "web2");
    assert_eq!(board(&control, "web2").0, None);
    stop(&site, &control, 6, "web2");
    start(&site, &control, 7, "web2");
    assert_eq!(board(&control, "web2").0.as_deref(), Some("pc-q35-7.2"));
    drop(control);
    let control = site.control().unwrap();
    assert_eq!(board(&control, "web2").0.as_deref(), Some("pc-q35-7.2"), "after a restart, too");
}

#[test]
fn hosts_that_lack_the_machine_type_or_processor_are_no_choice_and_say_why() {
    let (site, control) = two();
    control.create_vm(&caller(1), &with(create("v3", true), json!({ "processor": "x86-64-v3" }))).unwrap();
    control
        .create_vm(&caller(2), &with(create("new", true), json!({ "machine_type": "pc-q35-10.0" })))
        .unwrap();
    assert!(settle_down(&site, &control));
    for vm in ["v3", "new"] {
        assert_eq!(host_of(&control, vm), "host2");
    }
    let index = control.inventory.read();
    let why: Vec<String> = index.events().iter().map(|event| event.message.clone()).collect();
    drop(index);
    let says = |part: &str| assert!(why.iter().any(|message| message.contains(part)), "{part}: {why:?}");
    says("host host1 cannot give the whole processor x86-64-v3, which VM v3 has");
    says("host host1 has no machine type pc-q35-10.0, which VM new has");
    refused(
        control.create_vm(&caller(3), &with(on("epyc", "host1"), json!({ "processor": "EPYC" }))),
        &["host1", "EPYC", "x86-64-v2"],
    );
    refused(
        control.create_vm(&caller(4), &with(create("none", true), json!({ "processor": "Nonesuch" }))),
        &["host1", "host2", "Nonesuch"],
    );
    let back = MoveToHost { host: Some("host1".to_owned()), ..MoveToHost::default() };
    refused(control.move_to_host(&caller(5), "v3", &back), &["host1", "pc-q35-10.0", "pc-q35-7.2"]);
    let shared = patch(json!({ "processor": "x86-64-v2", "machine_type": "pc-q35-7.2" }));
    control.set_vm(&caller(6), "v3", &shared, None).unwrap();
    assert!(settle_down(&site, &control));
    let task = control.move_to_host(&caller(7), "v3", &back).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Done);
    assert_eq!(host_of(&control, "v3"), "host1");
    let id = control.show_vm("v3").unwrap().summary.id;
    assert_eq!(site.host.lock().vms[&id].spec.board.processor, Some("x86-64-v2".parse().unwrap()));
}

#[test]
fn the_hosts_own_processor_goes_where_nothing_of_it_is_missing() {
    let (site, control) = two();
    control.create_vm(&caller(1), &with(on("up", "host1"), json!({ "processor": "host" }))).unwrap();
    control
        .create_vm(&caller(2), &with(on("down", "host2"), json!({ "machine_type": "pc-q35-7.2" })))
        .unwrap();
    assert!(settle_down(&site, &control));
    for (request, vm) in [(3, "up"), (4, "down")] {
        start(&site, &control, request, vm);
        stop(&site, &control, request + 10, vm);
    }
    let to = |host: &str| MoveToHost { host: Some(host.to_owned()), ..MoveToHost::default() };
    refused(
        control.move_to_host(&caller(5), "down", &to("host1")),
        &["host host1 lacks avx2, which host host2 has", "x86-64-v2"],
    );
    control.move_to_host(&caller(6), "up", &to("host2")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "up"), "host2");
    let (_, processor) = board(&control, "up");
    assert_eq!(processor, "host");
    // What the inventory and hosts keep is what an earlier version reads.
    let id = control.show_vm("up").unwrap().summary.id;
    assert_eq!(control.inventory.read().vm(id).unwrap().hardware.board.processor, None);
}

#[test]
fn a_policy_gives_its_vms_a_processor_and_names_the_hosts_that_cannot() {
    let (site, control) = two();
    let rules = json!({ "processor": "x86-64-v3" });
    let policy = json!({ "name": "gold", "rules": rules });
    control.create_policy(&caller(1), &serde_json::from_value(policy).unwrap()).unwrap();
    let gold = |name: &str| CreateVm { policy: Some("gold".to_owned()), ..create(name, true) };
    control.create_vm(&caller(2), &gold("web1")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(
        (board(&control, "web1").1.as_str(), host_of(&control, "web1").as_str()),
        ("x86-64-v3", "host2")
    );
    let lesser = control.set_vm(&caller(3), "web1", &patch(json!({ "processor": "x86-64-v2" })), None);
    assert!(lesser.unwrap_err().message.contains("policy gold"));
    let lesser = control.create_vm(&caller(4), &with(gold("web2"), json!({ "processor": "host" })));
    assert!(lesser.unwrap_err().message.contains("policy gold"));
    let lacking = |control: &Control| {
        let index = control.inventory.read();
        let alarms = index.alarms.iter().filter(|alarm| alarm.kind == AlarmKind::HostLacksProcessor);
        alarms.map(|alarm| alarm.object.name.clone()).collect::<Vec<_>>()
    };
    control.review().unwrap();
    assert_eq!(lacking(&control), ["host1"]);
    site.host.lock().capabilities = gives(&["pc-q35-7.2"], &["x86-64-v3"], &[]);
    look_again(&site, &control);
    control.review().unwrap();
    assert_eq!(lacking(&control), [""; 0]);
}

#[test]
fn a_host_of_an_earlier_version_is_sent_no_machine_type_and_no_processor() {
    let (site, control) = shared(0);
    site.host.lock().is_old = true;
    site.host.restart();
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert!(settle_down(&site, &control));
    start(&site, &control, 2, "web1");
    assert_eq!(board(&control, "web1").0, None);
    refused(
        control.create_vm(&caller(3), &with(create("web2", true), json!({ "processor": "x86-64-v2" }))),
        &["version", "upgrade the program there"],
    );
}

#[test]
fn a_host_says_by_name_what_it_lacks_of_the_sites_processors() {
    let (site, control) = two();
    let policy = json!({ "name": "gold", "rules": { "processor": "EPYC" } });
    control.create_policy(&caller(1), &serde_json::from_value(policy).unwrap()).unwrap();
    for (number, name) in ["web1", "web2", "web3", "web4"].iter().enumerate() {
        let wish = with(create(name, true), json!({ "processor": "x86-64-v3" }));
        control.create_vm(&caller(10 + number as u64), &wish).unwrap();
    }
    assert!(settle_down(&site, &control));
    let lacks = |host: &str| -> Vec<(String, String)> {
        let host = control.show_host(host).unwrap();
        assert_eq!(control.list_hosts().iter().find(|one| one.id == host.id), Some(&host));
        host.processor_lacks.into_iter().map(|lack| (lack.what, lack.message)).collect()
    };
    let told = lacks("host1");
    let named: Vec<&str> = told.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(named, ["x86-64-v3", "EPYC", "avx2"]);
    assert!(told[0].1.contains("VMs web1, web2, web3 and 1 more have"), "{told:?}");
    assert!(told[1].1.contains("policy gold demands"), "{told:?}");
    assert_eq!(lacks("host2"), []);
    // A maker that no other host has.
    let hosts = site.hosts();
    hosts[0].1.lock().capabilities.as_mut().unwrap().vendor = Some("AuthenticAMD".parse().unwrap());
    look_again(&site, &control);
    for host in ["host1", "host2"] {
        assert!(lacks(host).iter().any(|(_, why)| why.contains("the maker of its host's")), "{host}");
    }
    // What nobody has any more is not demanded.
    for (number, name) in ["web1", "web2", "web3", "web4"].iter().enumerate() {
        control
            .set_vm(&caller(20 + number as u64), name, &patch(json!({ "processor": "x86-64-v2" })), None)
            .unwrap();
    }
    assert!(settle_down(&site, &control));
    assert!(lacks("host1").iter().all(|(what, _)| what != "x86-64-v3"));
}
