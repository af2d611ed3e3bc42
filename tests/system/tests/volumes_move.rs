//! A disk that no VM has is given to a VM, taken back, and given to another one, while their guests
//! run.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text that the first guest writes and the second one reads.
const MARKER: &str = "strongroom-volume-moves-marker-91c4";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_disk_goes_from_one_running_vm_to_another_with_its_content() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M {guest}"));
    let made = serving.runs("disk create data1 --size 32M --integrity");
    assert!(made.contains("made disk data1"), "{made}");
    let listed = serving.runs("vm list");
    assert!(!listed.contains("data1"), "{listed}");
    let id = serving.json("disk show data1")["id"].as_str().unwrap().to_owned();
    let key = || serving.json("disk list")["items"].as_array().unwrap().clone();
    assert_eq!(key().len(), 2);

    let place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    let said = serving.runs("disk bind data1 web1");
    assert!(said.contains("VM web1 has disk data1"), "{said}");
    console.session.wait_until("test -b /dev/vdb");
    console
        .session
        .run(&format!("echo {MARKER} > text; dd if=text of=/dev/vdb bs=4096 conv=sync,fsync 2>&1"));
    assert_eq!(serving.json("disk show web1/disk1")["id"], id.as_str());
    let refused = serving.is_refused("vm delete web1 --yes");
    assert!(refused.contains("disk unbind web1/disk1"), "{refused}");

    // A supervisor that takes over has the disk's key as well.
    drop(console);
    let vm = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    kill_process(serving.processes_of(&vm)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &vm);
    let read = "dd if=/dev/vdb bs=4096 count=1 iflag=direct 2>/dev/null | tr -d '\\000'";
    assert!(console.session.run(read).contains(MARKER));

    serving.runs("disk unbind web1/disk1");
    console.session.wait_until("! test -b /dev/vdb");
    drop(console);
    serving.runs("vm stop web1 --force");
    drop(place);
    assert_eq!(serving.json("disk show data1")["id"], id.as_str());
    serving.runs("disk snapshot create data1 monday");
    let refused = serving.is_refused("disk bind data1 web1");
    assert!(refused.contains("has snapshots"), "{refused}");
    serving.runs("disk clone data1 data2 --snapshot monday");
    serving.runs("disk clone data1 data3 --linked --snapshot monday");
    serving.runs("disk resize data1 --size 48M");
    let refused = serving.is_refused("disk delete data1 --yes");
    assert!(refused.contains("data3"), "{refused}");

    // The copies are the other VM's, from its start on, under keys of their own.
    serving.runs(&format!("vm create web2 --memory 256M --net none --disk 64M {guest}"));
    serving.runs("disk bind data2 web2");
    serving.runs("disk bind data3 web2");
    let _place = serving.take_place();
    serving.runs("vm start web2");
    let mut console = serving.console("web2");
    console.wait_until_ready();
    for device in ["vdb", "vdc"] {
        let read = format!("dd if=/dev/{device} bs=4096 count=1 iflag=direct 2>/dev/null | tr -d '\\000'");
        assert!(console.session.run(&read).contains(MARKER), "{device}");
    }
    drop(console);
    serving.runs("vm stop web2 --force");
    // A copy in plain text, and one of that with a key and tags.
    let in_ds = || datastore::occurrences(&scratch.path("ds"), MARKER.as_bytes());
    serving.runs("disk clone data1 open1 --unencrypted");
    assert_ne!(in_ds(), 0);
    let told = serving.runs("event list");
    assert!(told.contains("volume open1 is an unencrypted copy of what is encrypted"), "{told}");
    serving.runs("disk clone open1 data5 --encrypt --integrity");
    serving.runs("disk delete open1 --yes");
    assert_eq!(in_ds(), 0);
    assert!(!serving.json("volume info ds/data5/disk0")["encryption"].is_null());
    serving.runs("disk clone data5 open2 --unencrypted");
    assert_ne!(in_ds(), 0);
    serving.runs("disk delete open2 --yes");
    // A lost inventory finds the disks that no VM has again, as such.
    serving.runs("disk unbind web2/disk1");
    let listed = serving.runs("disk list");
    assert!(listed.contains("data1") && listed.contains("data2"), "{listed}");
    assert!(listed.contains("web2/disk1") || listed.contains("web2/disk2"), "{listed}");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}
