//! VMs on a real Ceph cluster, by the commands that an administrator types.

use std::cell::Cell;

use strongroom_system_tests::{Scratch, Serving, datastore, put_test_guest, take_place};
use strongroom_test_peers::CephCluster;

use super::machines_support::{AT_THE_SWITCH, Cables, FIRST, Guests, Machine, WITHIN, qemus_of};

const MARKER: &str = "strongroom-cluster-marker-81f2";

/// Whether a file of the cluster, such as a device of an OSD, has this text.
fn is_seen_by(cluster: &CephCluster, text: &str) -> bool {
    datastore::occurrences(cluster.conf.parent().unwrap(), text.as_bytes()) > 0
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_vm_lives_on_a_cluster_that_sees_no_plain_byte() {
    let scratch = Scratch::new();
    let mut cluster = CephCluster::start(3);
    cluster.add_user("client.host1");
    let (conf, keyring) = (cluster.conf.display(), cluster.conf.with_file_name("keyring"));
    let files = format!("--conf {conf} --keyring {}", keyring.display());
    let mut serving = Serving::start(&scratch);
    let guest = serving.test_guest();

    let refused = serving.is_refused(&format!("datastore add big --rbd none --user client.host1 {files}"));
    assert!(refused.contains("open the pool none"), "{refused}");
    let refused = serving.is_refused(&format!("datastore add big --rbd rep2 --user client.other {files}"));
    assert!(refused.contains("has no key of client.other"), "{refused}");
    let add = format!("datastore add big --rbd rep2 --data-pool ec21 --user client.host1 {files}");
    serving.runs(&add);
    let shown = serving.json("datastore show big");
    assert_eq!(shown["ceph"]["pool"].as_str(), Some("rep2"), "{shown}");
    assert_eq!(shown["state"].as_str(), Some("available"), "{shown}");
    let refused = serving.is_refused(&format!("datastore add other --rbd rep2 --user client.host1 {files}"));
    assert!(refused.contains("big"), "{refused}");
    serving.runs(&format!("vm create web1 --datastore big --memory 256M --net none --disk 16M {guest}"));
    let _place = serving.take_place();
    // The firmware measures what it boots, and the state of the TPM is on the cluster.
    serving.runs("vm create tpm1 --tpm --datastore big --memory 64M --disk 8M --net none --restart never");
    for _ in 0..2 {
        serving.runs("vm start tpm1");
        serving.runs("vm stop tpm1 --force");
    }
    serving.runs("vm delete tpm1 --yes");
    assert!(serving.runs("vm start web1").contains("web1 is running"));
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let write = format!("echo {MARKER} > text; dd if=text of=/dev/vda bs=4096 conv=sync,fsync count=1 2>&1");
    console.session.run(&write);
    serving.runs("vm snapshot create web1 first");
    console.session.run("dd if=/dev/zero of=/dev/vda bs=4096 conv=fsync count=1 2>&1");
    drop(console);
    serving.runs("vm stop web1 --force");

    // The program starts again, and finds its VM on the cluster.
    serving.end();
    serving.start_again();
    serving.wait_until_told("datastore list", "available");
    serving.runs("vm snapshot revert web1 first --discard --yes");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let read = console.session.run("head -c 40 /dev/vda");
    assert!(read.contains(MARKER), "{read}");
    drop(console);
    serving.runs("vm stop web1 --force");

    // Names are there, content is not.
    assert!(is_seen_by(&cluster, "web1"));
    assert!(!is_seen_by(&cluster, MARKER));
    serving.runs("vm delete web1 --yes");
    serving.runs("datastore remove big");
    serving.end();
}

/// The guest counts in the second block of its disk, a write after the other, for as long as it
/// runs.
const COUNTING: &str = "(n=0; while n=$((n+1)); do printf '%-4096d' $n | \
     dd of=/dev/vda bs=4096 seek=1 conv=notrunc,fsync 2>/dev/null; done) </dev/null >/dev/null 2>&1 &";
const COUNT: &str = "dd if=/dev/vda bs=4096 skip=1 count=1 iflag=direct 2>/dev/null | head -c 20";

/// A VM of host2, which is cut off and declared lost while its guest writes, becomes one of host1.
/// Nothing that the former guest still writes lands, and what is left of it is ended.
#[test]
#[ignore = "long: make test-ceph"]
fn a_vm_of_a_lost_host_runs_on_another_one() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let mut cluster = CephCluster::start_in(&cables.switch, AT_THE_SWITCH, 3);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::with_identity(&scratch, &cables, 0);
    let second = Machine::with_identity(&scratch, &cables, 1);
    let guest = put_test_guest(&scratch);
    first.takes_guests_kernel();
    let site = first.starts_site_with(&format!("--listen-guests {FIRST}:5691"));
    let mut host = first.lets_join(&second);
    let (conf, keyring) = (cluster.conf.display().to_string(), cluster.conf.with_file_name("keyring"));
    let files = format!("--conf {conf} --keyring {}", keyring.display());
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let add = "datastore add big --rbd rep2 --data-pool ec21 --host host1 --user client.host1";
    first.runs(&format!("{add} {files}"));
    // A host that had another one's user would be shut out with it.
    let refused =
        first.is_refused(&format!("datastore add-host big --host host2 --user client.host1 {files}"));
    assert!(refused.contains("client.host1"), "{refused}");
    first.runs(&format!("datastore add-host big --host host2 --user client.host2 {files}"));

    // On the first host, off, over to the second one.
    first.runs(&format!(
        "vm create web1 --datastore big --host host1 --memory 256M --net none --disk 16M --machine pc {guest}"
    ));
    let id = first.json("vm show web1")["id"].as_str().unwrap().to_owned();
    let runs_on = |run: &str| qemus_of(&scratch, run, &id).len();
    let _place = take_place();
    first.runs("vm start web1");
    let mut console = first.console("web1");
    console.wait_until_ready();
    console
        .session
        .run(&format!("echo {MARKER} > text; dd if=text of=/dev/vda bs=4096 conv=sync,fsync count=1 2>&1"));
    drop(console);
    first.runs("vm stop web1 --force");
    first.runs("vm migrate web1 --to host2");
    first.runs("vm start web1");
    let vm = first.json("vm show web1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host2")), "{vm}");
    let mut console = first.console("web1");
    console.wait_until_ready();
    let read = console.session.run("head -c 40 /dev/vda");
    assert!(read.contains(MARKER), "{read}");
    console.session.run(COUNTING);
    console.session.wait_until(&format!("[ $({COUNT} | tr -d '\\0 ') -gt 3 ]"));
    drop(console);

    // While it counts, over to the first host and back.
    for (to, runs) in [("host1", (1, 0)), ("host2", (0, 1))] {
        first.runs(&format!("vm migrate web1 --to {to} --pause-ms 2000"));
        let vm = first.json("vm show web1");
        assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some(to)), "{vm}");
        assert_eq!((runs_on("first-run"), runs_on("run")), runs, "on {to}");
        let mut console = first.console("web1");
        let count = console.session.run(&format!("{COUNT} | tr -d '\\0 '"));
        console.session.wait_until(&format!("[ $({COUNT} | tr -d '\\0 ') -gt {} ]", count.trim()));
    }

    // Cut off in the middle of its writes. A host that answers is not lost, one that does not is
    // only if a person says so.
    let refused = first.is_refused("host fence host2 --confirm host2");
    assert!(refused.contains("host2 answers"), "{refused}");
    cables.cut(1);
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    let refused = first.is_refused("vm migrate web1 --to host1");
    assert!(refused.contains("host2 does not answer"), "{refused}");
    first.runs("host fence host2 --confirm host2");
    let vm = first
        .wait_until("vm show web1", "is of host1", |vm| vm["host"] == "host1" && vm["power"] == "running");
    assert_eq!(vm["host"], "host1", "{vm}");
    assert_eq!((runs_on("first-run"), runs_on("run")), (1, 1), "the lost one goes on: nobody reaches it");
    let mut console = first.console("web1");
    console.wait_until_ready();
    let read = console.session.run("head -c 40 /dev/vda");
    assert!(read.contains(MARKER), "{read}");
    let count = console.session.run(COUNT);

    // The cable is mended, and the former guest still counts. None of its writes lands, and the
    // control plane ends it.
    cables.mend(1);
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");
    let refused = first.is_refused("host admit host2");
    assert!(refused.contains("has not started again"), "{refused}");
    let datastore = first.wait_until("datastore show big", "says why host2 is refused", |datastore| {
        datastore["hosts"][1]["reason"].as_str().is_some_and(|reason| reason.contains("declared lost"))
    });
    let reason = datastore["hosts"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("host2") && reason.contains("`strongroom host admit host2`"), "{datastore}");
    // So does its log, in a line of hostd's and in one of the VM's storage process.
    let (hostd, storage) = (Cell::new(false), Cell::new(false));
    host.wait_for_line("twice that it was declared lost, and what to do", WITHIN, |line| {
        let is_error = line.contains("ERROR") && line.contains("declared lost");
        hostd.set(hostd.get() || is_error && line.contains("`strongroom host admit host2`"));
        storage.set(storage.get() || is_error && line.contains("nothing that it writes lands any more"));
        hostd.get() && storage.get()
    });
    second.wait_until_gone(&id);
    assert_eq!(console.session.run(COUNT), count, "a write of the lost host landed");
    let vm = first.json("vm show web1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host1")), "{vm}");
    let refused = first.is_refused("vm create web2 --datastore big --host host2 --memory 256M --disk 16M");
    assert!(refused.contains("host2"), "{refused}");

    // The machine starts again, is admitted, and has VMs as before.
    host.kill();
    second.boots();
    let host = second.starts_host("");
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");
    first.runs("host admit host2");
    let datastore = first.json("datastore show big");
    let states: Vec<_> = datastore["hosts"].as_array().unwrap().iter().map(|host| &host["state"]).collect();
    assert_eq!(states, ["available"; 2], "{datastore}");
    drop(console);
    first.runs("vm stop web1 --force");
    first.runs("vm migrate web1 --to host2");
    first.runs("vm start web1");
    let mut console = first.console("web1");
    console.wait_until_ready();
    assert_eq!(console.session.run(COUNT), count);
    drop(console);
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));
    first.runs("vm stop web1 --force");
    assert!(is_seen_by(&cluster, "web1"));
    assert!(!is_seen_by(&cluster, MARKER));
    first.runs("vm delete web1 --yes");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
