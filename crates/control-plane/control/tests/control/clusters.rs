//! Datastores on Ceph clusters: what is asked of hosts, and what is shown.

use std::time::Duration;

use strongroom_api::alarm::AlarmKind;
use strongroom_api::datastore::{AddDatastore, AddDatastoreHost, DatastoreState};
use strongroom_api::host::{AdmitHost, FenceHost};
use strongroom_api::policy::PolicyRule;
use strongroom_api::vm::{CreateVm, MoveToHost, PowerState, RestartPolicy, StartVm};
use strongroom_api::{ErrorCode, Problem};
use strongroom_control::engine::Control;
use strongroom_datastore::file::storage::cluster_path;
use strongroom_types::Redundancy;

use crate::placement::{datastore, host_of, on};
use crate::support::{REFUSED, Site, caller, create, settle_down};

fn pools(name: &str, host: &str, user: &str) -> AddDatastore {
    let wish = serde_json::json!({ "name": name, "host": host,
        "ceph": { "pool": "vms", "data_pool": "vms-ec", "client": { "user": user } } });
    serde_json::from_value(wish).unwrap()
}

fn reached_as(host: &str, user: &str) -> AddDatastoreHost {
    let wish = serde_json::json!({ "host": host, "ceph": { "user": user, "conf": "/srv/ceph/conf" } });
    serde_json::from_value(wish).unwrap()
}

/// A site whose hosts have a datastore on a cluster, each with a user of its own.
pub fn on_a_cluster(others: usize) -> (Site, Control) {
    let site = Site::with_others(others);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(900), &pools("big", "host1", "client.host1")).unwrap();
    for number in 2..others + 2 {
        let wish = reached_as(&format!("host{number}"), &format!("client.host{number}"));
        control.add_datastore_host(&caller(900 + number as u64), "big", &wish).unwrap();
    }
    assert!(settle_down(&site, &control));
    (site, control)
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Problem>, code: ErrorCode, parts: &[&str]) {
    let problem = answer.unwrap_err();
    assert_eq!(problem.code, code, "{problem}");
    let text = format!("{} {}", problem.message, problem.next_step.as_deref().unwrap_or_default());
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_host_gets_the_way_to_the_pools_and_the_inventory_shows_it() {
    let (site, control) = on_a_cluster(1);
    let shown = control.show_datastore("big").unwrap();
    let pools = shown.ceph.clone().unwrap();
    assert_eq!((pools.pool.as_str(), pools.namespace.as_str()), ("vms", "strongroom"));
    assert_eq!(pools.data_pool.unwrap().as_str(), "vms-ec");
    assert_eq!(shown.path, cluster_path(shown.id).display().to_string());
    let asked = site.host.lock().clusters[&shown.id].clone();
    assert_eq!(asked.client.conf.to_str(), Some("/etc/ceph/ceph.conf"));
    assert_eq!(asked.client.keyring.to_str(), Some("/etc/ceph/ceph.client.host1.keyring"));
    let clients: Vec<_> = shown.hosts.iter().map(|on| on.client.clone().unwrap()).collect();
    assert_eq!(clients[0], asked.client);
    assert_eq!(clients[1].conf.to_str(), Some("/srv/ceph/conf"));
    assert!(shown.hosts.iter().all(|on| on.state == DatastoreState::Available && on.path == shown.path));

    // The host says why it cannot be used, and a person sees it.
    site.others[0].lock().missing.insert(cluster_path(shown.id), "no monitor answers".to_owned());
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    let shown = control.show_datastore("big").unwrap();
    let states: Vec<_> = shown.hosts.iter().map(|on| (on.state, on.reason.as_deref())).collect();
    let unavailable = (DatastoreState::Unavailable, Some("no monitor answers"));
    assert_eq!(states, [(DatastoreState::Available, None), unavailable]);
    let alarms: Vec<_> =
        control.inventory.read().alarms.iter().map(|alarm| (*alarm.record).clone()).collect();
    let alarm = alarms.iter().find(|alarm| alarm.message.contains("no monitor answers")).unwrap();
    assert!(alarm.message.contains("pool vms") && alarm.next_step.contains("ceph health"), "{alarm:?}");

    drop(control);
    let after = site.control().unwrap().show_datastore("big").unwrap();
    assert_eq!(after.hosts[1].client, Some(clients[1].clone()), "after a restart, too");
}

/// The redundancy that counts is the least that the datastore's hosts say; a directory has none.
#[test]
fn a_policy_demands_that_data_outlives_losses() {
    let (site, control) = on_a_cluster(1);
    let says = |host: usize, losses_survived: u8| {
        let redundancy = Some(Redundancy { losses_survived, losses_served: 1 });
        match host {
            0 => site.host.lock().redundancy = redundancy,
            other => site.others[other - 1].lock().redundancy = redundancy,
        }
        site.pass(Duration::from_secs(60));
        assert!(settle_down(&site, &control));
        control.show_datastore("big").unwrap().redundancy.unwrap().losses_survived
    };
    let rules = |losses: u8| serde_json::json!({ "name": "gold", "rules": { "losses_survived": losses } });
    let too_many = serde_json::from_value(rules(17)).unwrap();
    refused(control.create_policy(&caller(2), &too_many), ErrorCode::Invalid, &["at most 16"]);
    control.create_policy(&caller(3), &serde_json::from_value(rules(2)).unwrap()).unwrap();
    let wish = |name: &str, datastore: &str| -> CreateVm {
        let wish = serde_json::json!({ "name": name, "datastore": datastore, "policy": "gold",
            "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 1 << 20 }] });
        serde_json::from_value(wish).unwrap()
    };
    control.add_datastore(&caller(4), &datastore("ds1", "host1")).unwrap();
    let unknown = ["must outlive 2 losses", "datastore ds1 is not known to", "datastore list"];
    refused(control.create_vm(&caller(5), &wish("web1", "ds1")), ErrorCode::Conflict, &unknown);
    assert_eq!((says(0, 1), says(1, 2)), (1, 1));
    let few = ["must outlive 2 losses", "datastore big outlives 1"];
    refused(control.create_vm(&caller(6), &wish("web1", "big")), ErrorCode::Conflict, &few);
    assert_eq!(says(0, 2), 2);
    control.create_vm(&caller(7), &wish("web1", "big")).unwrap();
    assert!(settle_down(&site, &control));
    control.review().unwrap();
    assert_eq!(control.show_vm("web1").unwrap().deviations, []);

    // A pool that lost a copy, and the control plane starts anew.
    assert_eq!(says(1, 1), 1);
    control.review().unwrap();
    let deviations = control.show_vm("web1").unwrap().deviations;
    assert_eq!(deviations[0].rule, PolicyRule::Redundancy, "{deviations:?}");
    let is_violated = |control: &Control| {
        control.inventory.read().alarms.iter().any(|alarm| alarm.kind == AlarmKind::PolicyViolated)
    };
    assert!(is_violated(&control));
    drop(control);
    let control = site.control().unwrap();
    assert_eq!(control.show_vm("web1").unwrap().deviations, deviations);
    site.others[0].lock().redundancy = Some(Redundancy { losses_survived: 2, losses_served: 1 });
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    control.review().unwrap();
    assert!(!is_violated(&control) && control.show_vm("web1").unwrap().deviations.is_empty());
}

#[test]
fn a_request_is_a_directory_or_pools() {
    let site = Site::with_others(1);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    let neither = AddDatastore { path: None, ..datastore("ds1", "host1") };
    refused(control.add_datastore(&caller(1), &neither), ErrorCode::Invalid, &["directory", "--rbd"]);
    let both = AddDatastore { path: Some("/srv/big".into()), ..pools("big", "host1", "client.host1") };
    refused(control.add_datastore(&caller(2), &both), ErrorCode::Invalid, &["not both"]);
    for conf in ["ceph.conf", "/etc/../root/ceph.conf", "/etc/ceph/a,b"] {
        let mut wish = pools("big", "host1", "client.host1");
        wish.ceph.as_mut().unwrap().client.conf = Some(conf.to_owned());
        refused(control.add_datastore(&caller(3), &wish), ErrorCode::Invalid, &[conf]);
    }
    assert!(site.host.lock().datastores.is_empty(), "no host was asked");
    control.add_datastore(&caller(4), &datastore("ds1", "host1")).unwrap();
    control.add_datastore(&caller(5), &pools("big", "host1", "client.host1")).unwrap();
    let to = |request, named: &str, wish: &AddDatastoreHost| {
        control.add_datastore_host(&caller(request), named, wish)
    };
    let plain = AddDatastoreHost { host: "host2".to_owned(), path: None, ceph: None };
    refused(to(6, "big", &plain), ErrorCode::Invalid, &["host2", "--user"]);
    refused(to(7, "ds1", &reached_as("host2", "client.host2")), ErrorCode::Invalid, &["ds1", "no cluster"]);
    let with_path =
        AddDatastoreHost { path: Some("/srv/big".to_owned()), ..reached_as("host2", "client.host2") };
    refused(to(8, "big", &with_path), ErrorCode::Invalid, &["no directory"]);
    assert!(site.others[0].lock().datastores.is_empty(), "no host was asked");
}

#[test]
fn each_host_of_a_cluster_is_another_user() {
    let (site, control) = on_a_cluster(0);
    drop(control);
    let site = {
        let mut site = site;
        let more = Site::with_others(1).others.remove(0);
        more.lock().storage = site.host.lock().storage.clone();
        site.others.push(more);
        site
    };
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    let same = control.add_datastore_host(&caller(1), "big", &reached_as("host2", "client.host1"));
    let parts = ["client.host1", "fenced by its user", "client.host2", "profile rbd pool=vms-ec"];
    refused(same, ErrorCode::NameTaken, &parts);
    assert!(site.others[0].lock().datastores.is_empty(), "the host was not asked");
    control.add_datastore_host(&caller(2), "big", &reached_as("host2", "client.host2")).unwrap();
}

#[test]
fn pools_hold_one_datastore() {
    let (site, control) = on_a_cluster(1);
    let id = control.show_datastore("big").unwrap().id;
    let before = site.host.lock().clusters.clone();
    let same = control.add_datastore(&caller(1), &pools("other", "host1", "client.other"));
    refused(same, ErrorCode::NameTaken, &["pool vms", "datastore big", "--namespace"]);
    // By another file, it shows only in the cluster. The host goes on as before.
    let mut wish = pools("other", "host1", "client.other");
    wish.ceph.as_mut().unwrap().client.conf = Some("/etc/ceph/same.conf".to_owned());
    let same = control.add_datastore(&caller(2), &wish);
    refused(same, ErrorCode::NameTaken, &["datastore big"]);
    assert_eq!(site.host.lock().clusters, before);
    // Another namespace is another datastore.
    wish.ceph.as_mut().unwrap().namespace = Some("other".parse().unwrap());
    control.add_datastore(&caller(3), &wish).unwrap();
    assert_ne!(control.show_datastore("other").unwrap().id, id);
}

#[test]
fn a_host_of_an_earlier_version_has_no_cluster() {
    let site = Site::with_others(1);
    for host in [&site.host, &site.others[0]] {
        host.lock().is_old = true;
    }
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    let added = control.add_datastore(&caller(1), &pools("big", "host1", "client.host1"));
    refused(added, ErrorCode::NoHost, &["host1", "version", "Ceph", "upgrade"]);
    site.host.lock().is_old = false;
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    control.add_datastore(&caller(2), &pools("big", "host1", "client.host1")).unwrap();
    let added = control.add_datastore_host(&caller(3), "big", &reached_as("host2", "client.host2"));
    refused(added, ErrorCode::NoHost, &["host2", "version", "Ceph", "upgrade"]);
}

#[test]
fn vms_are_placed_and_moved_as_in_a_shared_directory() {
    let (site, control) = on_a_cluster(1);
    control.create_vm(&caller(1), &on("web1", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    let wish = MoveToHost { host: Some("host2".to_owned()), ..MoveToHost::default() };
    control.move_to_host(&caller(2), "web1", &wish).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "web1"), "host2");
    assert!(site.others[0].lock().vms.values().any(|vm| vm.spec.name.as_str() == "web1"));
    assert_eq!(site.host.lock().violations, [""; 0]);
}

/// A host of an earlier version refuses a VM with a TPM on a cluster, so none is given to it.
#[test]
fn a_vm_with_a_tpm_on_a_cluster_is_where_its_tpm_is_kept() {
    let (site, control) = on_a_cluster(1);
    let keeps = |host: usize, keeps: bool| {
        match host {
            1 => site.host.lock().keeps_no_tpms_on_clusters = !keeps,
            other => site.others[other - 2].lock().keeps_no_tpms_on_clusters = !keeps,
        }
        site.pass(Duration::from_secs(60));
        assert!(settle_down(&site, &control));
    };
    let reasons = ["host1 has version 0", "no VM on a Ceph cluster has a TPM"];
    keeps(1, false);
    let named = CreateVm { tpm: true, ..on("web1", "host1") };
    refused(control.create_vm(&caller(1), &named), ErrorCode::NoHost, &reasons);
    control.create_vm(&caller(2), &CreateVm { tpm: true, ..create("web1", true) }).unwrap();
    control.create_vm(&caller(3), &on("web2", "host1")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!((host_of(&control, "web1"), host_of(&control, "web2")), ("host2".into(), "host1".into()));
    let to_first = MoveToHost { host: Some("host1".to_owned()), ..MoveToHost::default() };
    refused(control.move_to_host(&caller(4), "web1", &to_first), ErrorCode::NoHost, &reasons);
    keeps(1, true);
    control.move_to_host(&caller(5), "web1", &to_first).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "web1"), "host1");

    // One that another site has put there.
    control.unregister_vm(&caller(6), "web1").unwrap();
    assert!(settle_down(&site, &control));
    keeps(2, false);
    keeps(1, false);
    let wish = serde_json::json!({ "datastore": "big", "directory": "web1", "accept_configuration": true });
    let wish = serde_json::from_value(wish).unwrap();
    refused(control.register_vm(&caller(7), &wish), ErrorCode::NoHost, &["upgrade the program there"]);
    keeps(1, true);
    keeps(2, true);
    control.register_vm(&caller(8), &wish).unwrap();
    assert!(settle_down(&site, &control));
}

fn lost(host: &str) -> FenceHost {
    FenceHost { confirm: host.to_owned(), even_if_it_answers: false }
}

/// Two hosts with a datastore on a cluster. A VM runs on the first, which is lost then.
fn with_a_lost_host(restart: RestartPolicy) -> (Site, Control) {
    let (site, control) = on_a_cluster(1);
    site.host.lock().boot_id = Some("first".to_owned());
    site.pass(Duration::from_secs(60));
    assert!(settle_down(&site, &control));
    let wish = CreateVm { restart, ..on("web1", "host1") };
    control.create_vm(&caller(1), &wish).unwrap();
    assert!(settle_down(&site, &control));
    control.start_vm(&caller(2), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    site.host.lose();
    (site, control)
}

#[test]
fn a_vm_of_a_lost_host_is_of_another_one_once_that_host_is_shut_out() {
    let (site, control) = with_a_lost_host(RestartPolicy::Never);
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Unknown);
    let generation = |control: &Control| control.inventory.read().vms.iter().next().unwrap().generation;
    let before = generation(&control);

    // The cluster does not answer. Nothing is elsewhere then.
    site.others[0].lock().fencings_that_fail = 1;
    let failed = control.fence_host(&caller(3), "host1", &lost("host1"));
    refused(failed, ErrorCode::DatastoreUnavailable, &["host1", "big", "no monitor answers", "repeat"]);
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "web1"), "host1");
    let shown = control.show_host("host1").unwrap();
    assert!(shown.fenced.is_some_and(|fenced| !fenced.complete));

    let shown = control.fence_host(&caller(4), "host1", &lost("host1")).unwrap();
    assert!(shown.fenced.is_some_and(|fenced| fenced.complete));
    assert_eq!(host_of(&control, "web1"), "host2");
    assert!(generation(&control) > before);
    assert!(settle_down(&site, &control));
    assert!(!control.show_vm("web1").unwrap().summary.power.is_on());
    control.start_vm(&caller(5), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(site.others[0].lock().violations, [""; 0]);

    // It gets no VM until its machine has started again.
    let placed = control.create_vm(&caller(6), &on("web2", "host1"));
    refused(placed, ErrorCode::NoHost, &["host1", "declared lost", "host admit"]);
    let admitted = control.admit_host(&caller(7), "host1", &AdmitHost::default());
    refused(admitted, ErrorCode::HostUnavailable, &["host1"]);
    site.host.lock().down = false;
    let same = control.admit_host(&caller(8), "host1", &AdmitHost { has_started_again: true });
    refused(same, ErrorCode::Conflict, &["not started again", "restart the machine"]);
    assert_eq!(site.host.lock().storage.lock().fenced.len(), 1);
    site.host.lock().boot_id = Some("second".to_owned());
    let big = control.show_datastore("big").unwrap().id;
    site.host.lock().missing.insert(cluster_path(big), REFUSED.to_owned());
    drop(control);
    let control = site.control().unwrap();
    assert!(settle_down(&site, &control));
    let state = || control.show_datastore("big").unwrap().hosts[0].state;
    assert_eq!(state(), DatastoreState::Unavailable);
    let shown = control.admit_host(&caller(9), "host1", &AdmitHost::default()).unwrap();
    assert!(shown.fenced.is_none());
    assert_eq!(site.host.lock().storage.lock().fenced.len(), 0);
    // The host was told to look, so it gets VMs at once.
    assert_eq!(state(), DatastoreState::Available);
    control.create_vm(&caller(10), &on("web2", "host1")).unwrap();
    assert!(settle_down(&site, &control));
}

#[test]
fn a_vm_that_ran_on_a_lost_host_is_started_on_another_one_if_it_restarts_by_itself() {
    let (site, control) = with_a_lost_host(RestartPolicy::OnFailure);
    control.observe(control.hosts()[0], Duration::ZERO).unwrap();
    control.fence_host(&caller(3), "host1", &lost("host1")).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "web1"), "host2");
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
    assert_eq!(site.others[0].lock().violations, [""; 0]);
}

#[test]
fn a_host_is_not_declared_lost_by_mistake() {
    let (site, control) = on_a_cluster(1);
    control.add_datastore(&caller(1), &datastore("ds1", "host1")).unwrap();
    let wish = CreateVm { datastore: Some("ds1".to_owned()), ..on("local", "host1") };
    control.create_vm(&caller(2), &wish).unwrap();
    assert!(settle_down(&site, &control));
    let wrong = control.fence_host(&caller(3), "host1", &lost("host2"));
    refused(wrong, ErrorCode::Invalid, &["host1", "host2"]);
    let answers = control.fence_host(&caller(4), "host1", &lost("host1"));
    refused(answers, ErrorCode::Conflict, &["answers", "evacuate", "--even-if-it-answers"]);
    // Nobody could shut it out.
    site.others[0].lock().down = true;
    control.observe(control.hosts()[0], Duration::ZERO).unwrap();
    control.observe(control.hosts()[1], Duration::ZERO).unwrap();
    let even = FenceHost { even_if_it_answers: true, ..lost("host1") };
    let alone = control.fence_host(&caller(5), "host1", &even);
    refused(alone, ErrorCode::NoHost, &["host1", "big", "add-host"]);
    assert!(control.show_host("host1").unwrap().fenced.is_none());
    site.others[0].lock().down = false;
    control.observe(control.hosts()[0], Duration::ZERO).unwrap();
    control.observe(control.hosts()[1], Duration::ZERO).unwrap();
    control.fence_host(&caller(6), "host1", &even).unwrap();
    assert!(settle_down(&site, &control));
    assert_eq!(host_of(&control, "local"), "host1", "what is in its directories stays there");
    let admitted = control.admit_host(&caller(7), "host2", &AdmitHost::default());
    refused(admitted, ErrorCode::Conflict, &["host2", "not declared lost"]);
    // Its last start is not known, so a person says that there was one since.
    site.host.lock().boot_id = Some("some".to_owned());
    let unsaid = control.admit_host(&caller(8), "host1", &AdmitHost::default());
    refused(unsaid, ErrorCode::Conflict, &["not known", "--has-started-again"]);
    control.admit_host(&caller(9), "host1", &AdmitHost { has_started_again: true }).unwrap();
}
