//! Commands about VMs' keys and disks that the administrator of a `strongroom serve` runs on its
//! machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use strongroom_system_tests::{Scratch, Serving, key_server};

/// The content of a disk, which differs from a disk of zeroes.
const CONTENT: &[u8] = b"a guest's data that somebody wants back";
const DISK_BYTES: usize = 8 << 20;

#[test]
fn keys_are_listed_shown_and_destroyed_by_the_administrator() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 256M --disk 16M --disk 16M");
    serving.runs("vm create web2 --memory 256M --disk 16M");
    let key = key_of(&serving, "web1");

    let listed = serving.json("key list");
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "{listed}");
    let of_web1 = in_list(&listed, &key);
    assert_eq!(
        (&of_web1["state"], &of_web1["volumes"], &of_web1["vms"]),
        (&Value::from("active"), &Value::from(2), &serde_json::json!(["web1"])),
        "{listed}"
    );
    assert!(serving.runs("key list").contains("web1"));
    let shown = serving.runs(&format!("key show {key}"));
    assert!(shown.contains("state       active") && shown.contains("VMs         web1"), "{shown}");
    assert!(serving.runs(&format!("key history {key}")).contains("Create"));

    // The refusal of a command that needs the key's value names the command that works.
    for command in [
        "volume export ds/web1/disk0 x.raw --format raw",
        "volume check ds/web1/disk0",
        "volume check ds/web1/disk0 --data",
    ] {
        let refused = serving.is_refused(command);
        assert!(refused.contains("strongroom vm export web1 FILE --format qcow2"), "{command}: {refused}");
        assert!(refused.contains("strongroom vm key rotate web1"), "{command}: {refused}");
        assert!(refused.contains("strongroom vm check web1"), "{command}: {refused}");
    }
    assert!(serving.runs("volume check --no-key ds/web1/disk0").contains("no errors"));
    assert!(serving.runs("volume info ds/web1/disk0").contains("16M"));
    assert!(serving.runs("volume list ds").contains("web1/disk0"));
    assert_eq!(denied(&scratch), Vec::<Value>::new(), "a person who asks leaves no refusal on record");

    let needed = serving.is_refused(&format!("key destroy {key} --reason 'too early'"));
    assert!(needed.contains("ds/web1/disk0") && needed.contains("strongroom vm key rotate"), "{needed}");

    let said = serving.runs("vm delete web1 --yes");
    assert!(said.contains(&key) && said.contains("remains (active)"), "{said}");
    let next = said.lines().find(|line| line.contains("strongroom key destroy")).unwrap();
    serving.runs(next.trim().strip_prefix("strongroom ").unwrap());
    let left = serving.json("key list");
    let of_web1 = in_list(&left, &key);
    assert_eq!((&of_web1["state"], &of_web1["volumes"]), (&Value::from("deactivated"), &Value::from(0)));
    assert_eq!(of_web1["destruction"]["enforced"], true, "{left}");
    // The first person cannot be the second.
    assert!(serving.is_refused(&format!("key destroy {key} --confirm")).contains("second person"));
    serving.runs(&format!("key destroy {key} --cancel"));
    assert_eq!(in_list(&serving.json("key list"), &key)["destruction"], Value::Null);
}

#[test]
fn a_disk_is_exported_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let mut content = vec![0; DISK_BYTES];
    content[4096..4096 + CONTENT.len()].copy_from_slice(CONTENT);
    fs::write(scratch.path("image.raw"), &content).unwrap();
    serving.runs("vm create web1 --memory 256M --disk 8M --image image.raw --disk 8M");

    serving.runs("vm export web1 out.raw --format raw");
    assert_eq!(fs::read(scratch.path("out.raw")).unwrap(), content);
    assert_eq!(fs::metadata(scratch.path("out.raw")).unwrap().permissions().mode() & 0o777, 0o600);
    let told = serving.json("vm export web1 empty.raw --format raw --disk disk1");
    assert_eq!((&told["size_bytes"], &told["encrypted"]), (&Value::from(DISK_BYTES), &Value::from(false)));
    assert_eq!(fs::read(scratch.path("empty.raw")).unwrap(), vec![0; DISK_BYTES]);
    for format in ["qcow2", "vmdk", "vhdx"] {
        serving.runs(&format!("vm export web1 out.{format} --format {format}"));
        let back = scratch.path(&format!("{format}.raw"));
        let converted = Command::new("qemu-img")
            .args(["convert", "-f", format, "-O", "raw"])
            .args([scratch.path(&format!("out.{format}")), back.clone()])
            .output()
            .unwrap();
        assert!(converted.status.success(), "{converted:?}");
        assert_eq!(fs::read(back).unwrap()[..DISK_BYTES], content, "{format}");
    }
    assert!(serving.runs("event list").contains("disk0 of VM web1 is exported, by "));
    assert_eq!(denied(&scratch), Vec::<Value>::new());

    let there = serving.is_refused("vm export web1 out.raw --format raw");
    assert!(there.contains("out.raw"), "{there}");
    assert_eq!(fs::read(scratch.path("out.raw")).unwrap(), content, "what is there stays");
    assert!(serving.is_refused("vm export web1 none.raw --format raw --disk disk7").contains("disk7"));
    assert!(serving.is_refused("vm export web9 none.raw --format raw").contains("web9"));
    assert!(!scratch.path("none.raw").exists(), "nothing half-made is left");
    serving.runs("vm delete web1 --yes");
}

#[test]
fn the_disks_of_a_vm_are_checked_by_its_host() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let mut content = vec![0; DISK_BYTES];
    content[4096..4096 + CONTENT.len()].copy_from_slice(CONTENT);
    fs::write(scratch.path("image.raw"), &content).unwrap();
    serving.runs("vm create web1 --memory 256M --disk 8M --image image.raw --integrity");
    serving.runs("vm disk add web1 --size 8M");
    serving.runs("vm disk add web1 --size 8M --integrity");
    assert!(serving.runs("vm show web1").contains("8M, with integrity"));
    let refused = serving.is_refused("vm create web2 --memory 256M --disk 8M --unencrypted --integrity");
    assert!(refused.contains("--integrity") && refused.contains("--unencrypted"), "{refused}");

    let said = serving.runs("vm check web1");
    for disk in ["disk0", "disk1", "disk2"] {
        assert!(
            said.contains(&format!("{disk} of VM web1: no errors in its descriptor and files")),
            "{said}"
        );
    }
    let told = serving.json("vm check web1 --data --disk disk0");
    let disk = &told["disks"][0];
    assert_eq!((&told["clean"], &disk["disk"]), (&Value::from(true), &Value::from("disk0")), "{told}");
    assert_eq!(disk["data"]["integrity"], true, "{told}");
    assert_ne!(disk["data"]["verified_blocks"], 0, "{told}");
    assert_eq!(denied(&scratch), Vec::<Value>::new());
    assert!(serving.is_refused("vm check web1 --disk disk7").contains("disk7"));
    assert!(serving.is_refused("vm check web9").contains("web9"));

    // A changed block in the file of blocks.
    let blocks = blocks_of(&scratch, "ds/web1/disk0");
    let before = fs::read(&blocks).unwrap();
    let mut changed = before.clone();
    changed[4096] ^= 1;
    fs::write(&blocks, &changed).unwrap();
    let said = serving.finds("vm check web1 --data");
    assert!(
        said.contains("block 1 is damaged or put back") && said.contains("disk0 of VM web1: 1 error"),
        "{said}"
    );
    assert!(
        said.contains("disk1 of VM web1: no errors") && said.contains("disk2 of VM web1: no errors"),
        "{said}"
    );
    fs::write(&blocks, &before).unwrap();
    assert!(serving.runs("vm check web1 --data").contains("disk0 of VM web1: no errors"));

    // Another volume under the same key in the disk's place: its own descriptor and files are
    // valid.
    let [first, other, away] = ["ds/web1/disk0", "ds/web1/disk2", "away"].map(|name| scratch.path(name));
    fs::rename(&first, &away).unwrap();
    fs::rename(&other, &first).unwrap();
    fs::rename(&away, &other).unwrap();
    let said = serving.finds("vm check web1");
    assert!(
        said.contains("disk0 of VM web1: 1 error") && said.contains("disk2 of VM web1: 1 error"),
        "{said}"
    );
}

/// The file with the blocks of a volume with one layer.
fn blocks_of(scratch: &Scratch, volume: &str) -> std::path::PathBuf {
    let entries = fs::read_dir(scratch.path(volume)).unwrap().map(|entry| entry.unwrap().path());
    let is_layer =
        |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("layer-");
    entries.into_iter().find(is_layer).unwrap()
}

#[test]
fn a_vm_that_runs_is_not_exported() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --disk 16M --machine pc {guest}"));
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let refused = serving.is_refused("vm export web1 none.raw --format raw");
    assert!(refused.contains("web1 is running") && refused.contains("strongroom vm stop web1"), "{refused}");
    assert!(!scratch.path("none.raw").exists());
    let refused = serving.is_refused("vm check web1");
    assert!(refused.contains("web1 is running") && refused.contains("strongroom vm stop web1"), "{refused}");
    serving.runs("vm stop web1 --force");
    serving.runs("vm export web1 out.raw --format raw");
}

#[test]
fn a_provider_that_vms_need_is_removed_on_purpose_and_comes_back() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 256M --disk 16M");
    let refused = serving.is_refused("key-provider remove embedded");
    assert!(refused.contains("1 VM (web1)") && refused.contains("--yes"), "{refused}");
    assert!(serving.runs("key-provider list").contains("embedded"));
    serving.runs("key-provider remove embedded --yes");
    assert!(!serving.runs("key-provider list").contains("embedded"));
    serving.end();
    serving.start_again();
    assert!(serving.runs("key-provider list").contains("embedded"));
    assert_eq!(serving.json("key list")["items"][0]["state"], "active");
}

fn key_of(serving: &Serving<'_>, vm: &str) -> String {
    serving.vm(vm)["key"]["key"].as_str().unwrap().to_owned()
}

fn in_list<'a>(listed: &'a Value, key: &str) -> &'a Value {
    let keys = listed["items"].as_array().unwrap();
    keys.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key} is not in {listed}"))
}

/// The refusals in the key server's record.
fn denied(scratch: &Scratch) -> Vec<Value> {
    let records = key_server::audit_lines(&scratch.path("home/keyserver/audit"));
    records.into_iter().filter(|record| record.to_string().contains("\"denied\"")).collect()
}
