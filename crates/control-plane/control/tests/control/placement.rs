//! Several hosts reach a datastore: which of them gets a VM, and what they have room for.

use std::thread;
use std::time::Duration;

use strongroom_api::alarm::AlarmKind;
use strongroom_api::datastore::{AddDatastore, AddDatastoreHost, DatastoreState};
use strongroom_api::host::SetHost;
use strongroom_api::task::Task;
use strongroom_api::vm::{CreateVm, PatchVm, PowerState, RestartPolicy, StartVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_control::records::DatastoreRecord;
use strongroom_host::protocol::{CryptoSafe, CryptoSafeState, OffReason, PowerState as HostPower};
use strongroom_types::DatastoreId;

use crate::support::{Site, caller, create, settle_down};

const MIB: u64 = 1 << 20;
/// A host's state is older, and read again.
const STATE_AGE: Duration = Duration::from_secs(6);

/// A site whose hosts all reach one datastore.
pub fn shared(others: usize) -> (Site, Control) {
    let site = Site::with_others(others);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(900), &datastore("ds1", "host1")).unwrap();
    for number in 0..others {
        let host = format!("host{}", number + 2);
        control.add_datastore_host(&caller(901 + number as u64), "ds1", &reached_by(&host)).unwrap();
    }
    assert!(settle_down(&site, &control));
    (site, control)
}

pub fn datastore(name: &str, host: &str) -> AddDatastore {
    let (name, path) = (name.parse().unwrap(), Some(format!("/srv/{name}")));
    AddDatastore { name, path, ceph: None, host: Some(host.to_owned()) }
}

pub fn reached_by(host: &str) -> AddDatastoreHost {
    AddDatastoreHost { host: host.to_owned(), path: None, ceph: None }
}

pub fn on(name: &str, host: &str) -> CreateVm {
    CreateVm { host: Some(host.to_owned()), ..create(name, true) }
}

pub fn maintenance(control: &Control, host: &str, maintenance: bool) {
    let set = SetHost { maintenance: Some(maintenance) };
    assert_eq!(control.set_host(&caller(0), host, &set).unwrap().maintenance, maintenance);
}

pub fn host_of(control: &Control, vm: &str) -> String {
    control.show_vm(vm).unwrap().summary.host.unwrap()
}

fn refused(answer: Result<Task, Problem>, code: ErrorCode, parts: &[&str]) {
    let problem = answer.unwrap_err();
    assert_eq!(problem.code, code, "{problem}");
    for part in parts {
        assert!(problem.message.contains(part), "{part}: {problem}");
    }
}

#[test]
fn a_host_is_asked_whether_it_has_the_very_datastore() {
    let site = Site::with_others(2);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(1), &datastore("ds1", "host1")).unwrap();
    let other = AddDatastoreHost { path: Some("/srv/other".to_owned()), ..reached_by("host2") };
    refused(
        control.add_datastore_host(&caller(2), "ds1", &other),
        ErrorCode::DatastoreUnavailable,
        &["another mark"],
    );
    // Another datastore is mounted there.
    site.host.lock().storage.lock().datastores.insert("/srv/copy".into(), DatastoreId::random());
    let copy = AddDatastoreHost { path: Some("/srv/copy".to_owned()), ..reached_by("host2") };
    refused(
        control.add_datastore_host(&caller(3), "ds1", &copy),
        ErrorCode::DatastoreUnavailable,
        &["another mark"],
    );
    assert_eq!(site.others[0].lock().datastores.len(), 0, "nothing is used there");
    site.others[1].lock().is_old = true;
    assert!(settle_down(&site, &control));
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    refused(
        control.add_datastore_host(&caller(4), "ds1", &reached_by("host3")),
        ErrorCode::NoHost,
        &["version"],
    );
    control.add_datastore_host(&caller(5), "ds1", &reached_by("host2")).unwrap();
    let again = control.add_datastore_host(&caller(6), "ds1", &reached_by("host2"));
    refused(again, ErrorCode::NameTaken, &["host2"]);
    let shown = control.show_datastore("ds1").unwrap();
    let hosts: Vec<_> = shown.hosts.iter().map(|on| (on.host.as_str(), on.state)).collect();
    assert_eq!(hosts, [("host1", DatastoreState::Available), ("host2", DatastoreState::Available)]);

    // A host with VMs of it keeps it, and so does the last one.
    control.create_vm(&caller(7), &on("web1", "host2")).unwrap();
    assert!(settle_down(&site, &control));
    let remove = |request, host: &str| control.remove_datastore_host(&caller(request), "ds1", host);
    refused(remove(8, "host2"), ErrorCode::InUse, &["host2", "1 VM"]);
    remove(9, "host1").unwrap();
    refused(remove(10, "host2"), ErrorCode::InUse, &["only one"]);
    assert_eq!(control.show_datastore("ds1").unwrap().host.as_deref(), Some("host2"));
    drop(control);
    assert_eq!(site.control().unwrap().show_datastore("ds1").unwrap().hosts.len(), 1, "after a restart, too");
}

#[test]
fn a_record_of_a_datastore_with_one_host_is_read_as_before() {
    let text = r#"{"id":"0c5cbf24-640b-43be-8641-fe4a7053a59b","name":"vms","path":"/srv/vms",
        "host":"b87e5672-7088-479b-adb4-a786382ea45a"}"#;
    let record: DatastoreRecord = serde_json::from_str(text).unwrap();
    assert_eq!((record.first.path.as_str(), record.is_shared()), ("/srv/vms", false));
    // An earlier version reads what this one writes, too.
    let again: serde_json::Value = serde_json::to_value(&record).unwrap();
    assert_eq!(again, serde_json::from_str::<serde_json::Value>(text).unwrap());
}

#[test]
fn what_is_placed_already_counts_for_the_next_choice() {
    let (site, control) = shared(1);
    let memory_bytes = site.host.lock().memory_bytes;
    site.others[0].lock().memory_bytes = memory_bytes;
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    let names = ["web1", "web2", "web3", "web4"];
    let mut hosts: Vec<String> = (1..)
        .zip(names)
        .map(|(request, name)| {
            control.create_vm(&caller(request), &create(name, true)).unwrap();
            host_of(&control, name)
        })
        .collect();
    hosts.sort();
    assert_eq!(hosts, ["host1", "host1", "host2", "host2"]);
}

#[test]
fn a_vm_is_placed_where_it_fits_best_and_the_reasons_are_told() {
    let (site, control) = shared(3);
    site.others[0].lock().memory_bytes = 128 << 30;
    site.others[1].lock().memory_bytes = 256 << 30;
    site.others[1].lock().crypto_safe = CryptoSafe {
        state: CryptoSafeState::Incapable,
        reasons: vec!["it swaps".to_owned()],
        required: false,
    };
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    control.create_vm(&caller(1), &create("web1", true)).unwrap();
    assert_eq!(host_of(&control, "web1"), "host3", "the most memory is left there");
    let policy =
        serde_json::from_str(r#"{"name":"gold","description":"","rules":{"crypto_safe_hosts":true}}"#);
    control.create_policy(&caller(2), &policy.unwrap()).unwrap();
    let gold = |name: &str| CreateVm { policy: Some("gold".to_owned()), ..create(name, true) };
    control.create_vm(&caller(3), &gold("web2")).unwrap();
    assert_eq!(host_of(&control, "web2"), "host2");
    maintenance(&control, "host2", true);
    site.others[2].lock().down = true;
    assert!(settle_down(&site, &control));
    control.create_vm(&caller(4), &gold("web3")).unwrap();
    assert_eq!(host_of(&control, "web3"), "host1");
    let told = control
        .inventory
        .read()
        .events()
        .iter()
        .rev()
        .find(|event| event.kind == "vm.placed")
        .unwrap()
        .message
        .clone();
    for part in
        ["VM web3: host host1 fits best", "host2 is in maintenance", "it swaps", "host4 does not answer"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    maintenance(&control, "host1", true);
    let parts =
        ["no host fits VM web4", "host1 is in maintenance", "host2 is", "it swaps", "host4 does not answer"];
    refused(control.create_vm(&caller(5), &gold("web4")), ErrorCode::NoHost, &parts);

    // The host that was asked for, or none.
    control.create_vm(&caller(6), &on("web5", "host3")).unwrap();
    assert_eq!(host_of(&control, "web5"), "host3");
    refused(
        control.create_vm(&caller(7), &on("web6", "host4")),
        ErrorCode::NoHost,
        &["host4 does not answer"],
    );
    refused(
        control.create_vm(&caller(8), &on("web6", "host1")),
        ErrorCode::NoHost,
        &["host1 is in maintenance"],
    );
    refused(control.create_vm(&caller(9), &on("web6", "host9")), ErrorCode::NotFound, &["host9"]);
    control.add_datastore(&caller(10), &datastore("ds3", "host3")).unwrap();
    let elsewhere = CreateVm { datastore: Some("ds3".to_owned()), ..on("web6", "host2") };
    refused(control.create_vm(&caller(11), &elsewhere), ErrorCode::NoHost, &["does not reach datastore ds3"]);
}

#[test]
fn a_host_takes_no_more_vms_than_it_has_memory_for() {
    let (site, control) = shared(1);
    for (_, host) in site.hosts() {
        host.lock().memory_bytes = 160 * MIB;
    }
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    for (number, host) in [(1, "host1"), (2, "host2"), (3, "host1"), (4, "host2")] {
        control.create_vm(&caller(number), &create(&format!("web{number}"), true)).unwrap();
        assert_eq!(host_of(&control, &format!("web{number}")), host);
    }
    let parts = ["host1 has 160M of memory, of which 128M are placed", "host2 has 160M"];
    refused(control.create_vm(&caller(5), &create("web5", true)), ErrorCode::NoHost, &parts);
    refused(control.create_vm(&caller(6), &on("web5", "host1")), ErrorCode::NoHost, &parts[..1]);
    assert!(settle_down(&site, &control));
    let larger = |bytes: u64| -> PatchVm {
        serde_json::from_value(serde_json::json!({ "memory_bytes": bytes })).unwrap()
    };
    refused(
        control.set_vm(&caller(7), "web1", &larger(128 * MIB), None),
        ErrorCode::NoHost,
        &["takes 64M more"],
    );
    control.set_vm(&caller(8), "web1", &larger(96 * MIB), None).unwrap();
    assert!(settle_down(&site, &control));
    let host = control.show_host("host1").unwrap();
    assert_eq!((host.memory_bytes, host.memory_placed_bytes), (160 * MIB, 160 * MIB));
}

/// As in [`quotas`](crate::quotas): the check is in the transaction.
#[test]
fn requests_at_the_same_time_do_not_use_the_same_room() {
    let (site, control) = shared(1);
    for (_, host) in site.hosts() {
        host.lock().memory_bytes = 192 * MIB;
    }
    site.pass(std::time::Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    let made: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let control = &control;
                scope.spawn(move || {
                    let wanted = (0..4).map(|number| format!("vm{thread}-{number}"));
                    let made = wanted.enumerate().filter(|(number, name)| {
                        let request = caller(1000 + thread * 10 + *number as u64);
                        control.create_vm(&request, &create(name, false)).is_ok()
                    });
                    made.count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(made, 6, "each of two hosts has room for three");
    let placed = control.list_hosts().iter().map(|host| host.memory_placed_bytes).collect::<Vec<_>>();
    assert_eq!(placed, [192 * MIB; 2]);
}

#[test]
fn nothing_is_placed_or_started_on_a_host_in_maintenance() {
    let (site, control) = shared(1);
    let restarted = CreateVm { restart: RestartPolicy::OnFailure, ..on("web1", "host1") };
    control.create_vm(&caller(1), &restarted).unwrap();
    control.create_vm(&caller(2), &on("web2", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(3), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    maintenance(&control, "host1", true);
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running, "it runs on");
    let raised = |control: &Control| {
        let index = control.inventory.read();
        index
            .alarms
            .iter()
            .any(|alarm| alarm.kind == AlarmKind::HostMaintenance && alarm.object.name == "host1")
    };
    assert!(raised(&control));
    let start = |request| control.start_vm(&caller(request), "web2", &StartVm::default());
    refused(start(4), ErrorCode::NoHost, &["host host1 is in maintenance"]);
    drop(control);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    assert!(control.show_host("host1").unwrap().maintenance, "after a restart, too");
    // What crashes is not started there by itself, either.
    site.host.guest("web1", |vm| (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied)));
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Crashed);
    maintenance(&control, "host1", false);
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert!(!raised(&control));
    control.start_vm(&caller(5), "web2", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web2").unwrap().summary.power, PowerState::Running);
}

#[test]
fn a_host_whose_memory_nodes_hold_the_vm_is_better() {
    let (site, control) = shared(2);
    let hosts = site.hosts();
    // The first by name has more memory, of which no node holds the VM.
    hosts[0].1.lock().memory_bytes = 128 << 30;
    hosts[0].1.lock().topology.node_memory_bytes = vec![32 * MIB; 4096];
    hosts[1].1.lock().topology.node_memory_bytes = vec![32 << 30; 2];
    assert!(settle_down(&site, &control));
    site.pass(STATE_AGE);
    assert!(settle_down(&site, &control));
    control.create_vm(&caller(1), &create("web1", false)).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.host.as_deref(), Some(hosts[1].0.as_str()));
}

#[test]
fn a_host_whose_clock_is_off_has_an_alarm_until_it_is_right() {
    let (site, control) = shared(1);
    let alarm = |told: Option<i64>| {
        // Its state is read again after a while.
        site.pass(STATE_AGE);
        let clock = told.map(|ahead_ms| control.now_unix_ms().checked_add_signed(ahead_ms).unwrap());
        site.hosts()[1].1.lock().now_unix_ms = clock;
        assert!(settle_down(&site, &control));
        control.review().unwrap();
        let index = control.inventory.read();
        let found = index.alarms.iter().find(|alarm| alarm.kind == AlarmKind::ClockOff);
        found.map(|alarm| (alarm.object.name.clone(), alarm.message.clone()))
    };
    assert_eq!(alarm(None), None);
    assert_eq!(alarm(Some(4_000)), None);
    let (host, message) = alarm(Some(-61_000)).unwrap();
    assert_eq!((host.as_str(), message.contains("is 61s behind")), ("host2", true), "{message}");
    assert_eq!(alarm(Some(0)), None);
    assert!(alarm(Some(9_000)).unwrap().1.contains("ahead of the control plane's"));
    assert_eq!(alarm(Some(0)), None);
}
