//! Mistakes of a new user in the first hour: each message names the object and the next step, and
//! nothing half-made is left.

use std::fs;

use strongroom_system_tests::{CommandLine, Scratch, Serving};

#[test]
fn a_datastore_that_is_not_there_is_not_made() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let missing = scratch.path("missing");
    let home = scratch.path("home");
    let refused = strongroom
        .run_shell(&format!(
            "\"$STRONGROOM\" serve --home {} --datastore vms={}",
            home.display(),
            missing.display()
        ))
        .failure();
    for part in ["datastore vms", "there is no directory", "mkdir -p", "mount"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(!missing.exists() && !home.exists(), "nothing is made");

    let serving = Serving::start(&scratch);
    let refused = serving.is_refused("datastore add vms missing");
    assert!(refused.contains("datastore vms") && refused.contains("mkdir -p"), "{refused}");
    assert!(!missing.exists());

    // A datastore whose disk is not mounted: an empty directory is in its place.
    serving.runs("datastore add ds ds");
    fs::rename(scratch.path("ds"), scratch.path("away")).unwrap();
    fs::create_dir(scratch.path("ds")).unwrap();
    let refused = serving.is_refused("vm create web1 --memory 64M --disk 16M");
    assert!(refused.contains("mount"), "{refused}");
    assert_eq!(serving.json("vm list")["items"].as_array().unwrap().len(), 0);
    serving.runs("datastore remove ds");
    let refused = serving.is_refused("datastore add ds2 ds");
    assert!(refused.contains("bears no mark") && refused.contains("mount"), "{refused}");
    assert_eq!(fs::read_dir(scratch.path("ds")).unwrap().count(), 0, "nothing is made in it");
}

#[test]
fn a_vm_that_cannot_be_made_leaves_nothing() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    let large = fs::File::create(scratch.path("large.raw")).unwrap();
    large.set_len(64 << 20).unwrap();
    fs::write(scratch.path("bad.qcow2"), b"QFI\xfb and no more").unwrap();
    for (arguments, says) in [
        ("--disk 16M --image missing.qcow2", "missing.qcow2"),
        ("--disk 16M --image bad.qcow2", "bad.qcow2"),
        ("--disk 16M --image large.raw --format raw", "64M or more"),
        ("--disk 64M --user-data missing.yaml", "missing.yaml"),
        ("--disk 64M --net bridge=nobridge7", "no bridge nobridge7"),
        ("--disk 64M --net tap=notap7", "no tap device notap7"),
    ] {
        let refused = serving.is_refused(&format!("vm create web1 --memory 64M {arguments}"));
        assert!(refused.contains(says), "{arguments}: {refused}");
    }
    let refused = serving.is_refused("vm create web1 --memory 1000G --disk 64M");
    assert!(refused.contains("this host has"), "{refused}");
    assert_eq!(serving.json("vm list")["items"].as_array().unwrap().len(), 0);
    let kept: Vec<_> =
        fs::read_dir(scratch.path("ds")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(kept, [".strongroom-datastore"]);
    let events = serving.runs("event list");
    assert!(!events.contains("was made for VM"), "a key was made: {events}");

    // A change that the host cannot support leaves the VM as it was.
    serving.runs("vm create web1 --memory 64M --disk 16M");
    let refused = serving.is_refused("vm set web1 --memory 1000G");
    assert!(refused.contains("this host has"), "{refused}");
    assert_eq!(serving.vm("web1")["memory_bytes"], 64 << 20);
}
