//! The certificate of a host that has joined: renewed by itself while its guest runs, also after
//! the key server was away; one that has ended, which a person replaces; and those that are
//! revoked.

use std::fs;
use std::time::Instant;

use strongroom_system_tests::{Scratch, put_test_guest};

use super::machines_support::{Cables, FIRST, Guests, Machine, WITHIN, qemus_of};

/// The certificate of the second machine.
fn certificate(scratch: &Scratch) -> Vec<u8> {
    fs::read(scratch.path("home/hostd/identity/cert.pem")).unwrap_or_default()
}

/// Gives the second machine a certificate for one day, as a person does after a loss.
fn replaced(first: &Machine<'_>, second: &Machine<'_>) {
    first.runs("keyserver token replace host2 --certificate-days 1 > short && chmod 600 short");
    second.shell("rm -r home/hostd/identity").success();
    second.runs(&format!(
        "keyserver enrol --server {FIRST}:5697 --token-fd 3 --into \"$PWD/home/hostd/identity\" 3<short"
    ));
}

/// Waits until the second machine has another certificate than this.
#[track_caller]
fn is_renewed(scratch: &Scratch, short: &[u8]) {
    let until = Instant::now() + WITHIN;
    while certificate(scratch) == short || certificate(scratch).is_empty() {
        assert!(Instant::now() < until, "it is not renewed");
    }
}

#[test]
#[ignore = "long: make test-guests"]
fn a_hosts_certificate_is_renewed_while_its_guest_runs_and_replaced_when_it_has_ended() {
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
    let host = first.lets_join(&second);
    let guest = put_test_guest(&scratch);
    scratch.make_directory("ds2");
    first.runs(&format!("datastore add ds2 {} --host host2", scratch.path("ds2").display()));
    first.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    let _place = strongroom_system_tests::take_place();
    first.runs("vm start web1");
    let id = first.json("vm show web1")["id"].as_str().unwrap().to_owned();
    let qemus = qemus_of(&scratch, "run", &id);
    assert_eq!(qemus.len(), 1);

    // A certificate that ends tomorrow is used from the next connection on.
    replaced(&first, &second);
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");
    // It is time to renew it, and the key server is away.
    let short = certificate(&scratch);
    site.kill();
    host.kill();
    let mut host = second.starts_host("");
    host.wait_for_line("that it is not renewed", WITHIN, |line| line.contains("cannot be renewed"));
    assert_eq!(certificate(&scratch), short);
    let site = first.starts_site();
    is_renewed(&scratch, &short);
    second.shell("openssl x509 -in home/hostd/identity/cert.pem -noout -checkend 5000000").success();
    let vm = first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((vm["generation"].as_u64(), qemus_of(&scratch, "run", &id)), (Some(1), qemus.clone()));

    // The clock of the host is behind, so that what is issued now is of its future.
    replaced(&first, &second);
    let short = certificate(&scratch);
    host.kill();
    let host = second.starts_host_at("-4m", "");
    is_renewed(&scratch, &short);
    first.wait_until("event alarms", "says that it is", |alarms| alarms.to_string().contains("clock_off"));
    assert_eq!(first.json("host show host2")["state"], "connected");
    assert_eq!(first.json("vm show web1")["power"], "running");

    // One that was not renewed in time: everybody's clock is two days ahead.
    replaced(&first, &second);
    site.kill();
    host.kill();
    let mut host = second.starts_host_at("+2d", "");
    let site = first.starts_site_at("+2d");
    host.wait_for_line("what is to be done", WITHIN, |line| {
        line.contains("it ended on") && line.contains("keyserver token replace host2")
    });
    let alarms = first.wait_until("event alarms", "says why", |alarms| {
        alarms.to_string().contains("has ended, so it may be anybody")
    });
    assert!(alarms.to_string().contains("host_down"), "{alarms}");
    assert_eq!(first.json("vm show web1")["power"], "unknown");
    assert_eq!(qemus_of(&scratch, "run", &id), qemus, "the guest runs on");
    // What it says is to be done.
    first.runs_at("+2d", "keyserver token replace host2 > again && chmod 600 again");
    second.shell("rm -r home/hostd/identity").success();
    second.runs_at(
        "+2d",
        &format!(
            "keyserver enrol --server {FIRST}:5697 --token-fd 3 --into \"$PWD/home/hostd/identity\" 3<again"
        ),
    );
    let vm = first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((vm["generation"].as_u64(), qemus_of(&scratch, "run", &id)), (Some(1), qemus));
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}

#[test]
#[ignore = "long: make test-guests"]
fn a_certificate_that_was_revoked_is_refused_by_hosts_and_by_the_control_plane() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let site = first.starts_site();
    let host = first.lets_join(&second);
    first.shell("cp -r first-home/control/identity stolen").success();
    first.asks_second("stolen").success();
    // The control plane gets another certificate, with which those before it end.
    site.kill();
    first.shell("rm -r first-home/control/identity").success();
    let site = first.starts_site();
    let until = Instant::now() + WITHIN;
    while first.asks_second("stolen").status.success() {
        assert!(Instant::now() < until, "it is not refused");
    }
    first.asks_second("first-home/control/identity").success();
    // hostd knows it also while the key server is away.
    site.kill();
    host.kill();
    let host = second.starts_host("");
    assert!(!first.asks_second("stolen").status.success());
    first.asks_second("first-home/control/identity").success();
    let site = first.starts_site();
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");
    let clients = first.json("keyserver client list");
    let mut clients = clients["items"].as_array().unwrap().iter();
    let client = clients.find(|client| client["name"] == "host2").unwrap()["id"].as_str().unwrap();
    first.runs(&format!("keyserver client revoke {client} --reason lost"));
    first.wait_until("host show host2", "is refused", |host| host["state"] == "disconnected");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
