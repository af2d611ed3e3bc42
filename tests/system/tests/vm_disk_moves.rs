//! A disk of a VM moves to another datastore and back, with its snapshots, by the commands of a
//! person.

use strongroom_system_tests::{Scratch, Serving, datastore};

/// A text on the disk that no file of a datastore shows.
const MARKER: &str = "strongroom-disk-move-marker-51c7";

#[test]
fn a_disk_moves_to_another_datastore_and_back() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    for name in ["slow", "fast"] {
        scratch.make_directory(name);
        serving.runs(&format!("datastore add {name} {name}"));
    }
    let line = format!("{MARKER}\n");
    let content: Vec<u8> = line.bytes().cycle().take(4 << 20).collect();
    std::fs::write(scratch.path("disk.img"), &content).unwrap();
    serving.runs("vm create web1 --datastore slow --memory 64M --net none --disk 8M --disk 4M");
    serving.runs("vm disk import web1 disk1 disk.img --format raw");
    serving.runs("vm snapshot create web1 first");
    let vm = serving.vm("web1");
    let elsewhere = format!("fast/.strongroom-disks-{}", vm["id"].as_str().unwrap());
    let exported = |to: &str| {
        serving.runs(&format!("vm export web1 {to} --format raw --disk disk1"));
        std::fs::read(scratch.path(to)).unwrap()
    };

    let refused = serving.is_refused("vm disk move web1 disk1 --to slow");
    assert!(refused.contains("is in datastore slow already"), "{refused}");
    let refused = serving.is_refused("vm disk move web1 disk1 --to third");
    assert!(refused.contains("third"), "{refused}");
    let moved = serving.runs("vm disk move web1 disk1 --to fast");
    assert!(moved.contains("disk1 of web1 is in datastore fast"), "{moved}");
    assert!(scratch.path(&elsewhere).join("disk1/descriptor").exists());
    assert!(!scratch.path("slow/web1/disk1").exists());
    let listed = serving.runs("vm disk list web1");
    let line = listed.lines().find(|line| line.starts_with("disk1")).unwrap();
    assert!(line.contains("fast"), "{listed}");
    assert!(serving.runs("vm show web1").contains("in datastore fast"));
    assert_eq!(exported("moved.img"), content);
    assert!(serving.runs("vm check web1 --data").contains("disk1"));
    assert!(serving.runs("vm list --datastore fast").contains("web1"));
    assert!(serving.runs("volume list fast").contains("disk1"));
    let used = serving.is_refused("datastore remove fast");
    assert!(used.contains("datastore fast has 1 VM"), "{used}");

    // Keys are rotated, snapshots made and undone, and the inventory is rebuilt, wherever it is.
    serving.runs("vm key rotate web1");
    serving.runs("vm key rotate web1 --data");
    serving.runs("vm snapshot create web1 second");
    serving.runs("vm snapshot delete web1 first --yes");
    serving.runs("vm unregister web1");
    serving.runs("datastore rebuild slow");
    assert_eq!(serving.vm("web1")["disks"][1]["datastore"], "fast");
    serving.runs("vm snapshot revert web1 second --yes");
    assert_eq!(exported("rotated.img"), content);

    serving.runs("vm disk move web1 disk0 --to fast");
    serving.runs("vm disk move web1 disk1 --to slow");
    assert!(scratch.path("slow/web1/disk1").exists() && !scratch.path("slow/web1/disk0").exists());
    assert_eq!(exported("back.img"), content);
    serving.runs("vm clone web1 web2");
    let refused = serving.is_refused("vm clone web1 web3 --linked");
    assert!(refused.contains("a clone shares nothing"), "{refused}");
    serving.runs("vm delete web2 --yes");
    serving.runs("vm delete web1 --yes");
    assert!(!scratch.path(&elsewhere).exists() && !scratch.path("slow/web1").exists());
    serving.runs("datastore remove fast");
    for place in ["slow", "fast", "home"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

#[test]
fn a_disk_of_a_running_vm_moves_to_another_datastore_and_back() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    for name in ["slow", "fast"] {
        scratch.make_directory(name);
        serving.runs(&format!("datastore add {name} {name}"));
    }
    let content: Vec<u8> = format!("{MARKER}\n").bytes().cycle().take(4 << 20).collect();
    std::fs::write(scratch.path("disk.img"), &content).unwrap();
    serving.runs("vm create web1 --datastore slow --memory 64M --net none --disk 8M --disk 4M");
    serving.runs("vm disk import web1 disk1 disk.img --format raw");
    serving.runs("vm start web1");
    serving.runs("vm snapshot create web1 first");
    let vm = serving.vm("web1");
    let elsewhere = format!("fast/.strongroom-disks-{}", vm["id"].as_str().unwrap());
    for disk in ["disk1", "disk0"] {
        let moved = serving.runs(&format!("vm disk move web1 {disk} --to fast"));
        assert!(moved.contains(&format!("{disk} of web1 is in datastore fast")), "{moved}");
        assert!(scratch.path(&elsewhere).join(disk).join("descriptor").exists());
        assert!(!scratch.path("slow/web1").join(disk).exists());
    }
    assert_eq!(serving.vm("web1")["power"], "running");

    // What is done to a running VM is done to its disks, wherever they are.
    serving.runs("vm snapshot create web1 second");
    serving.runs("vm key rotate web1 --data");
    serving.runs("vm pause web1");
    serving.runs("vm disk move web1 disk1 --to slow");
    serving.runs("vm resume web1");
    serving.runs("vm stop web1 --force");
    serving.runs("vm export web1 moved.img --format raw --disk disk1");
    assert_eq!(std::fs::read(scratch.path("moved.img")).unwrap(), content);
    serving.runs("vm snapshot revert web1 first --yes");
    serving.runs("vm start web1");
    serving.runs("vm disk move web1 disk0 --to slow");
    serving.runs("vm stop web1 --force");
    assert!(!scratch.path(&elsewhere).exists());
    serving.runs("vm delete web1 --yes");
    for place in ["slow", "fast", "home"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

/// Its guest writes faster than the rest could be copied while it waits.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_disk_moves_although_its_guest_overwrites_it_all_the_time() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    for name in ["slow", "fast"] {
        scratch.make_directory(name);
        serving.runs(&format!("datastore add {name} {name}"));
    }
    serving.runs(&format!("vm create web1 --datastore slow --memory 256M --net none --disk 512M {guest}"));
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run("dd if=/dev/urandom of=piece bs=1M count=8 2>&1");
    let write = "for at in $(seq 0 63); do dd if=piece of=/dev/vda bs=1M seek=$((at * 8)) oflag=direct conv=notrunc \
                 2>/dev/null || touch failed; done";
    console.session.run(write);
    console.session.run(&format!("(while [ ! -e enough ]; do {write}; done; touch over) &"));
    drop(console);
    let moved = serving.runs("vm disk move web1 disk0 --to fast");
    assert!(moved.contains("disk0 of web1 is in datastore fast"), "{moved}");
    let mut console = serving.console("web1");
    console.session.run("touch enough; while [ ! -e over ]; do sleep 1; done; [ ! -e failed ]");
    let pieces = "for at in $(seq 0 63); do dd if=/dev/vda bs=1M skip=$((at * 8)) count=8 iflag=direct 2>/dev/null | \
                  cmp - piece || break; done";
    console.session.run(pieces);
    drop(console);
    serving.runs("vm stop web1 --force");
    assert_eq!(serving.vm("web1")["disks"][0]["datastore"], "fast");
}
