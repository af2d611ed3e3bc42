//! VMs on a real Ceph cluster, by the commands that an administrator types.

use std::process::Command;

use strongroom_system_tests::{Scratch, Serving};
use strongroom_test_peers::CephCluster;

const MARKER: &str = "strongroom-cluster-marker-81f2";

/// Whether a file of the cluster, such as a device of an OSD, has this text.
fn is_seen_by(cluster: &CephCluster, text: &str) -> bool {
    let directory = cluster.conf.parent().unwrap();
    let found = Command::new("grep").args(["-rlaF", "--", text]).arg(directory).output().unwrap();
    // It tells of sockets that it cannot read.
    found.status.code() == Some(0) || !found.stdout.is_empty()
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
    let tpm = "vm create tpm1 --tpm --uefi --datastore big --memory 256M --disk 8M --net none";
    let refused = serving.is_refused(tpm);
    assert!(refused.contains("TPM"), "{refused}");

    serving.runs(&format!("vm create web1 --datastore big --memory 256M --net none --disk 16M {guest}"));
    let _place = serving.take_place();
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
