//! Two machines, each in a network namespace of its own, are one site: the second one joins, runs a
//! guest, is cut off and comes back, and is removed.

use serde_json::Value;
use strongroom_system_tests::{Scratch, put_test_guest};

use super::machines_support::{Cables, FIRST, Guests, Machine, SECOND, WITHIN, qemus_of};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_second_machine_joins_runs_a_guest_is_cut_off_and_removed() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let site = first.starts_site();

    // A token, which is of use for one machine, once.
    first.runs(&format!("host token host2 --address {SECOND}:5691 > token && chmod 600 token"));
    assert_eq!(first.json("host show host2")["address"], format!("{SECOND}:5691"));
    let taken = first.is_refused(&format!("host token host2 --address {SECOND}:5691"));
    assert!(taken.contains("strongroom host remove host2"), "{taken}");
    let join = format!("--join {FIRST}:5697 --token-file token");
    let wrong = format!("serve --role host {join} --fingerprint {} --run \"$PWD/run\"", "ab".repeat(32));
    let refused = second.is_refused(&wrong);
    assert!(refused.contains("comes from the right machine"), "{refused}");
    assert!(!scratch.path("home/hostd/identity").exists(), "nothing was changed");
    let host = second.starts_host(&join);
    let again = second.is_refused(&format!("serve --role host {join} --run \"$PWD/run\""));
    assert!(again.contains("has joined a site as host host2"), "{again}");
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");

    // Only the control plane gives orders: neither the host's own certificate nor another role's.
    let asked = first.asks_second("first-home/control/identity").success();
    assert!(asked.contains("\"name\":\"host2\""), "{asked}");
    for other in ["home/hostd/identity", "first-home/hostd/identity", "first-home/keyserver/admin"] {
        let refused = first.asks_second(other);
        assert!(!refused.status.success() && !refused.stdout.contains("host2"), "{other}: {refused:?}");
    }

    // A guest on the second machine; its key is granted to that machine.
    let guest = put_test_guest(&scratch);
    for (name, host) in [("ds1", "host1"), ("ds2", "host2")] {
        scratch.make_directory(name);
        first.runs(&format!("datastore add {name} {} --host {host}", scratch.path(name).display()));
    }
    first.runs(&format!(
        "vm create web1 --datastore ds2 --memory 256M --net none --disk 64M --machine pc {guest}"
    ));
    // A hostile host asks the key server, with its certificate, for another host's VM.
    first.runs("vm create web0 --datastore ds1 --memory 256M --net none --disk 16M");
    let other = first.json("vm show web0");
    let (vm, key) = (other["id"].as_str().unwrap(), other["key"]["key"].as_str().unwrap());
    let as_host = format!("--server {FIRST}:5697 --identity home/hostd/identity");
    for attack in [
        format!("bind --vm 00000000-0000-4000-8000-000000000001 --from {vm} --key-id {key}"),
        format!("fence --vm {vm} --vm-generation 99"),
        "client list".to_owned(),
    ] {
        let refused = second.is_refused(&format!("keyserver {attack} {as_host}"));
        assert!(refused.contains("the role host may not do that"), "{attack}: {refused}");
    }

    let _place = strongroom_system_tests::take_place();
    first.runs("vm start web1");
    let vm = first.json("vm show web1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host2")), "{vm}");
    let id = vm["id"].as_str().unwrap().to_owned();
    let qemus = qemus_of(&scratch, "run", &id);
    assert_eq!(qemus.len(), 1);
    let removal = first.is_refused("host remove host2");
    assert!(removal.contains("host host2 has 1 VM"), "{removal}");

    // The cable is cut: the VM is unknown, and runs on.
    cables.cut(1);
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    assert_eq!(first.json("host show host2")["state"], "disconnected");
    assert_eq!(qemus_of(&scratch, "run", &id), qemus);
    cables.mend(1);
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");

    // hostd and the whole first machine are killed, in turn: nothing is started twice.
    host.kill();
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    let host = second.starts_host("");
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    site.kill();
    let site = first.starts_site();
    let vm = first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((vm["generation"].as_u64(), qemus_of(&scratch, "run", &id)), (Some(1), qemus));

    // The host is removed: its certificate is revoked, and it takes no orders.
    first.runs("vm stop web1 --force");
    first.runs("vm delete web1 --yes");
    let datastore = first.is_refused("host remove host2");
    assert!(datastore.contains("strongroom datastore remove ds2"), "{datastore}");
    first.runs("datastore remove ds2");
    first.runs("host remove host2");
    assert!(first.is_refused("host show host2").contains("host2"));
    let clients = first.json("keyserver client list");
    let is_second = |client: &&Value| client["name"] == "host2";
    let client = clients["items"].as_array().unwrap().iter().find(is_second).unwrap();
    assert_eq!(client["is_revoked"], true, "{clients}");
    let term = std::fs::read_to_string(scratch.path("home/hostd/term.json")).unwrap();
    assert!(term.contains(&u64::MAX.to_string()), "{term}");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
