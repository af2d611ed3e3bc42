//! What lies on the datastore is not believed.

use std::process::Command;

use crate::machine::{Machine, link, machine, name, wait_until};

/// Attaches `device` in vain, and returns why.
#[track_caller]
fn is_not_attached(machine: &Machine, device: &str, why: &str) {
    machine.runs(&["device", "attach", device, "--no-wait"]);
    wait_until(&format!("{device} is refused: {why}"), || {
        machine.listed(device)["status"]["reason"].as_str().is_some_and(|reason| reason.contains(why))
    });
    assert!(link(device).symlink_metadata().is_err());
    machine.runs(&["device", "detach", device]);
}

#[test]
fn another_volume_an_old_one_and_a_clear_one_are_refused() {
    let Some(mut machine) = machine() else { return };
    let [one, two] = ["one", "two"].map(name);
    machine.create(&one, "16M", &["--cluster", "c"]);
    machine.create(&two, "16M", &["--cluster", "c"]);
    assert_eq!(machine.listed(&one)["kek_id"], machine.listed(&two)["kek_id"], "a cluster shares its key");
    machine.start_service();
    let ds = machine.path("ds");
    let rename = |from: &str, to: &str| std::fs::rename(ds.join(from), ds.join(to)).unwrap();

    // Another device's volume, under the same key.
    rename(&one, "aside");
    rename(&two, &one);
    is_not_attached(&machine, &one, "another volume");
    machine.is_refused(&["device", "remove", &one, "--yes"], "another volume");
    machine.is_refused(&["device", "rekey", &one], "another volume");
    rename(&one, &two);

    // A clear one.
    machine.runs(&["volume", "create", &format!("ds/{one}"), "--size", "16M", "--unencrypted"]);
    is_not_attached(&machine, &one, "not encrypted");
    std::fs::remove_dir_all(ds.join(&one)).unwrap();

    // The descriptor from before a re-key, under the key that was replaced for a reason.
    rename("aside", &one);
    let copied = Command::new("cp").args(["-a", &one, "old"]).current_dir(&ds).status().unwrap();
    assert!(copied.success());
    machine.runs(&["device", "rekey", &one]);
    rename(&one, "new");
    rename("old", &one);
    is_not_attached(&machine, &one, "generation");
    std::fs::remove_dir_all(ds.join(&one)).unwrap();
    rename("new", &one);
    machine.runs(&["device", "attach", &one, &two]);
}
