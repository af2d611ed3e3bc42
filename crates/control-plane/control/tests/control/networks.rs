//! Networks: who may connect VMs to them, where VMs with them are placed, and that none goes while
//! it is used.

use std::thread;

use serde_json::{Value, json};
use strongroom_api::network::{AddNetworkHost, CreateNetwork};
use strongroom_api::task::{Task, TaskState};
use strongroom_api::vm::{CreateVm, DeleteVm, MoveToHost, NicBackend, PatchVm, StartVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_host::protocol::{Link, Network};

use crate::support::{Site, caller, copy, create, settle_down, with_vms};

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn make(control: &Control, name: &str, vlan: Option<u16>) {
    control
        .create_network(&caller(70_000), &read::<CreateNetwork>(json!({ "name": name, "vlan": vlan })))
        .unwrap();
    control.show_network(name).unwrap();
}

fn put(control: &Control, request: u64, network: &str, host: &str, bridge: &str) -> Result<Task, Problem> {
    let wish = read::<AddNetworkHost>(json!({ "host": host, "bridge": bridge }));
    control.add_network_host(&caller(request), network, &wish)
}

fn on(name: &str, network: &str) -> CreateVm {
    let nics = read(json!([{ "backend": { "type": "network", "network": network } }]));
    CreateVm { nics: Some(nics), ..create(name, true) }
}

fn nics(vm: &str, backend: Value) -> (String, PatchVm) {
    (vm.to_owned(), read(json!({ "nics": [{ "backend": backend }] })))
}

/// The bridge and VLAN that a VM's host is told.
fn told(site: &Site, control: &Control, vm: &str) -> (String, Option<u16>) {
    let id = control.show_vm(vm).unwrap().summary.id;
    let hosts = site.hosts();
    let spec = hosts.iter().find_map(|(_, host)| host.lock().vms.get(&id).map(|vm| vm.spec.clone())).unwrap();
    match &spec.nics[0].network {
        Network::Bridge { bridge, vlan } => (bridge.to_string(), vlan.map(|vlan| vlan.number())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_vm_is_connected_to_what_its_host_has_of_a_network() {
    let (site, control) = with_vms(&["web1"]);
    make(&control, "lan", Some(20));
    let refused = control.create_vm(&caller(1), &on("web2", "lan")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoHost, "{refused}");
    assert!(refused.message.contains("host host1 does not have network lan"), "{refused}");
    assert!(refused.next_step.unwrap().contains("strongroom network add-host lan --host host1 --bridge"));
    let refused = control.create_vm(&caller(2), &on("web2", "wan")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "{refused}");
    put(&control, 3, "lan", "host1", "br0").unwrap();
    assert_eq!(put(&control, 4, "lan", "host1", "br1").unwrap_err().code, ErrorCode::Conflict);
    control.create_vm(&caller(5), &on("web2", "lan")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(told(&site, &control, "web2"), ("br0".to_owned(), Some(20)));
    let shown = control.show_vm("web2").unwrap();
    let NicBackend::Network { network, on: Some(port) } = &shown.nics[0].backend else { panic!("{shown:?}") };
    assert_eq!((network.as_str(), port.bridge.as_str()), ("lan", "br0"));
    assert_eq!(control.show_network("lan").unwrap().vms, 1);

    // What a caller says about the bridge counts for nothing, and the shown cards can be sent back.
    let (vm, mut patch) =
        nics("web1", json!({ "type": "network", "network": "lan", "on": { "bridge": "eth0" } }));
    control.set_vm(&caller(6), &vm, &patch, None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(told(&site, &control, "web1"), ("br0".to_owned(), Some(20)));
    patch.nics = Some(control.show_vm("web1").unwrap().nics);
    control.set_vm(&caller(7), &vm, &patch, None).unwrap();
    control.clone_vm(&caller(8), "web2", &copy("web3")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(told(&site, &control, "web3"), ("br0".to_owned(), Some(20)));

    // Nothing goes that is used.
    let refused = control.delete_network(&caller(10), "lan").unwrap_err();
    assert_eq!((refused.code, refused.message.as_str()), (ErrorCode::InUse, "network lan has 3 VMs"));
    let refused = control.remove_network_host(&caller(11), "lan", "host1").unwrap_err();
    assert_eq!(refused.message, "network lan has 3 VMs on host host1");
    for (at, vm) in ["web1", "web2", "web3"].into_iter().enumerate() {
        control.delete_vm(&caller(20 + at as u64), vm, &DeleteVm::default()).unwrap();
    }
    assert!(settle_down(&site, &control));
    control.remove_network_host(&caller(12), "lan", "host1").unwrap();
    assert_eq!(control.show_network("lan").unwrap().hosts, []);
    control.delete_network(&caller(13), "lan").unwrap();
    assert_eq!(control.show_network("lan").unwrap_err().code, ErrorCode::NotFound);
}

/// A network is taken away and a VM connected to it at the same time: one of the two is refused.
#[test]
fn a_network_that_goes_takes_no_vm_along() {
    let (site, control) = with_vms(&[]);
    let (mut connected, mut gone) = (0, 0);
    for round in 0..30_u64 {
        let name = format!("lan{round}");
        control.create_network(&caller(100 + round), &read(json!({ "name": name }))).unwrap();
        put(&control, 200 + round, &name, "host1", "br0").unwrap();
        let (made, deleted) = thread::scope(|scope| {
            let (control, name) = (&control, &name);
            let made = scope
                .spawn(move || control.create_vm(&caller(300 + round), &on(&format!("web{round}"), name)));
            let deleted = scope.spawn(move || match round % 2 {
                0 => control.delete_network(&caller(400 + round), name),
                _ => control.remove_network_host(&caller(400 + round), name, "host1"),
            });
            (made.join().unwrap(), deleted.join().unwrap())
        });
        assert!(made.is_ok() != deleted.is_ok(), "{made:?} {deleted:?}");
        connected += usize::from(made.is_ok());
        gone += usize::from(deleted.is_ok());
        assert!(settle_down(&site, &control));
    }
    println!("{connected} were connected, {gone} networks were gone before");
    let index = control.inventory.read();
    for network in index.vms.iter().flat_map(|vm| vm.hardware.networks().collect::<Vec<_>>()) {
        assert!(index.networks.get(&network.to_string()).unwrap().hosts.len() == 1);
    }
}

#[test]
fn a_vm_goes_to_hosts_that_have_its_networks_and_is_connected_there() {
    let (site, control) = crate::placement::shared(1);
    make(&control, "lan", Some(20));
    put(&control, 1, "lan", "host2", "br-lan").unwrap();
    control.create_vm(&caller(2), &on("web1", "lan")).unwrap();
    assert!(settle_down(&site, &control));
    let shown = control.show_vm("web1").unwrap();
    assert_eq!(shown.summary.host.as_deref(), Some("host2"), "the only one that has it");
    let to = MoveToHost { host: Some("host1".to_owned()), ..MoveToHost::default() };
    let refused = control.move_to_host(&caller(3), "web1", &to).unwrap_err();
    assert!(refused.message.contains("host host1 does not have network lan"), "{refused}");
    put(&control, 4, "lan", "host1", "br0").unwrap();
    let moved = control.move_to_host(&caller(5), "web1", &to).unwrap();
    // The host that it is bound for keeps the network.
    let refused = control.remove_network_host(&caller(6), "lan", "host1").unwrap_err();
    assert_eq!(refused.code, ErrorCode::InUse, "{refused}");
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(moved.id).unwrap().state, TaskState::Done);
    control.set_vm(&caller(7), "web1", &read(json!({ "memory_bytes": 32 << 20 })), None).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(told(&site, &control, "web1"), ("br0".to_owned(), Some(20)));
}

#[test]
fn single_cards_come_and_go_and_the_others_and_the_boot_order_stay() {
    let (site, control) = with_vms(&["web1"]);
    let add = |request: u64, backend: Value| {
        control.add_nic(&caller(request), "web1", &read(json!({ "nic": { "backend": backend } })))
    };
    let user = json!({ "type": "user" });
    let macs = || -> Vec<String> {
        control.show_vm("web1").unwrap().nics.iter().map(|nic| nic.mac.unwrap().to_string()).collect()
    };
    let first = macs();
    for request in 1..3 {
        add(request, user.clone()).unwrap();
        assert_eq!(add(100 + request, user.clone()).unwrap_err().code, ErrorCode::Busy);
        assert!(settle_down(&site, &control));
    }
    let all = macs();
    assert_eq!((&all[..first.len()], all.len()), (&first[..], first.len() + 2));
    assert_eq!(add(3, json!({ "type": "network", "network": "lan" })).unwrap_err().code, ErrorCode::NotFound);
    let order = json!({ "boot": { "type": "disk", "order": ["nic0", "disk0", "nic1", "nic2"] } });
    control.set_vm(&caller(4), "web1", &read(order), None).unwrap();
    assert!(settle_down(&site, &control));
    control.remove_nic(&caller(5), "web1", &all[1]).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(macs(), [all[0].clone(), all[2].clone()]);
    let order = |control: &Control| {
        let shown = control.show_vm("web1").unwrap();
        shown.boot.order().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    };
    assert_eq!(order(&control), "nic0,disk0,nic1");
    for nic in ["nic2", "nic01", "", "52:54:00:00:00:00"] {
        assert_eq!(
            control.remove_nic(&caller(6), "web1", nic).unwrap_err().code,
            ErrorCode::NotFound,
            "{nic}"
        );
    }
    control.remove_nic(&caller(7), "web1", "nic0").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((macs(), order(&control)), (vec![all[2].clone()], "disk0,nic0".to_owned()));
    // A disk that goes leaves the order, too.
    control.add_disk(&caller(20), "web1", &read(json!({ "size_bytes": 1 << 20 }))).unwrap();
    assert!(settle_down(&site, &control));
    let with_disk = json!({ "boot": { "type": "disk", "order": ["disk1", "disk0"] } });
    control.set_vm(&caller(21), "web1", &read(with_disk), None).unwrap();
    assert!(settle_down(&site, &control));
    control.remove_disk(&caller(22), "web1", "disk1").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(order(&control), "disk0");
    control.start_vm(&caller(8), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    // While it runs, the cards that go and those that come are known until its host is done.
    let spec = || site.host.lock().vms.values().next().unwrap().spec.clone();
    assert_eq!((spec().nics.len(), spec().nics[0].mac.to_string()), (1, all[2].clone()));
    add(9, user.clone()).unwrap();
    assert_eq!(macs().len(), 2);
    assert_eq!(control.remove_nic(&caller(10), "web1", "nic0").unwrap_err().code, ErrorCode::Busy);
    assert!(settle_down(&site, &control));
    assert_eq!(spec().nics.len(), 2);
    control.remove_nic(&caller(11), "web1", &all[2]).unwrap();
    assert_eq!(macs().len(), 2, "its guest has not released it yet");
    assert!(settle_down(&site, &control));
    assert_eq!((macs().len(), spec().nics.len()), (1, 1));
    assert_ne!(macs()[0], all[2]);
    assert_eq!(order(&control), "disk0");

    // A cable is pulled, and a card is on another network; its address stays.
    let only = macs()[0].clone();
    let set = |request: u64, patch: Value| {
        control.set_nic(&caller(request), "web1", "nic0", &read(patch)).unwrap();
        assert!(settle_down(&site, &control));
        let spec = site.host.lock().vms.values().next().unwrap().spec.clone();
        assert_eq!(spec.nics[0].mac.to_string(), only);
        (spec.nics[0].network.clone(), spec.nics[0].link)
    };
    assert_eq!(set(12, json!({ "link": "down" })), (Network::User, Link::Down));
    let tap = Network::Tap { device: "tap7".parse().unwrap() };
    assert_eq!(set(13, json!({ "backend": { "type": "tap", "device": "tap7" } })), (tap, Link::Down));
    assert_eq!(set(14, json!({ "backend": { "type": "user" }, "link": "up" })), (Network::User, Link::Up));

    // What the host does not do is taken back.
    site.host.lock().nic_changes_that_fail = vec!["guest_keeps_nic"];
    let task = control.remove_nic(&caller(15), "web1", "nic0").unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_task(task.id).unwrap().state, TaskState::Failed);
    assert_eq!((macs(), spec().nics.len()), (vec![only.clone()], 1));
    // A host of the former version is not asked.
    let is_old = |is_old: bool| {
        site.host.lock().is_old = is_old;
        site.host.restart();
        site.pass(std::time::Duration::from_secs(60));
        assert!(settle_down(&site, &control));
    };
    is_old(true);
    let refused = add(16, user.clone()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoHost, "{refused}");
    is_old(false);
    let twice = json!({ "nic": { "backend": user, "mac": only } });
    assert_eq!(control.add_nic(&caller(17), "web1", &read(twice)).unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(site.host.lock().violations, [""; 0]);
}

#[test]
fn a_network_that_a_running_vm_leaves_stays_until_it_has_left() {
    let (site, control) = with_vms(&["web1"]);
    make(&control, "lan", Some(20));
    put(&control, 1, "lan", "host1", "br0").unwrap();
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    let add = read(json!({ "nic": { "backend": { "type": "network", "network": "lan" } } }));
    control.add_nic(&caller(3), "web1", &add).unwrap();
    let deletes =
        |request: u64| control.delete_network(&caller(request), "lan").err().map(|problem| problem.code);
    assert_eq!(deletes(4), Some(ErrorCode::InUse), "it is on its way");
    assert!(settle_down(&site, &control));
    let number = control.show_vm("web1").unwrap().nics.len() - 1;
    control.remove_nic(&caller(5), "web1", &format!("nic{number}")).unwrap();
    assert_eq!(deletes(6), Some(ErrorCode::InUse), "its guest may keep the card");
    assert!(settle_down(&site, &control));
    assert_eq!(deletes(7), None);
}
