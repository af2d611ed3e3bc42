//! No other room defines a limit of VMs.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::{Path, PathBuf};

/// Whether a constant of this name, defined in this file, is a limit of VMs: `CPUS_MAX`,
/// `MAX_MEMORY_BYTES`, `NIC_COUNT_MAX`. Other rooms have memory of their own to bound.
fn is_limit_of_vms(name: &str, file: &Path) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    let has = |any: &[&str]| words.iter().any(|word| any.contains(word));
    let is_of_hardware = has(&["CPU", "CPUS", "PROCESSORS", "DISKS", "NICS", "VLAN", "VLANS", "DUMPS"])
        || (has(&["MEMORY"]) && speaks_of_vms(file))
        || (has(&["DUMP"]) && has(&["LABEL"]))
        || (has(&["KERNEL"]) && has(&["ARGUMENTS"]))
        || (has(&["INTERFACE"]) && has(&["NAME"]));
    is_of_hardware && has(&["MAX", "MIN", "MOST", "LEAST", "UNIT", "STEP"])
}

/// Whether a file is a source of the control plane's rooms, and no test.
fn speaks_of_vms(file: &Path) -> bool {
    let is = |part: &str| file.iter().any(|component| component == part);
    is("control-plane") && is("src")
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of the constants in a text.
fn constants(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (before, rest) = line.split_once("const ")?;
        let is_definition = before.trim().is_empty() || before.trim_start().starts_with("pub");
        is_definition.then_some(rest.split_once(':')?.0)
    })
}

#[test]
fn limits_of_vms_are_defined_in_one_room() {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(room.ancestors().nth(2).unwrap(), &mut files);
    let mut here = 0;
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for name in constants(&text).filter(|name| is_limit_of_vms(name, file)) {
            let is_here = *file == room.join("src/limits.rs");
            assert!(
                is_here,
                "{} defines {name}; crates/control-plane/vm/src/limits.rs is where limits of VMs are",
                file.display()
            );
            here += 1;
        }
    }
    assert_eq!(here, 13, "the limits that this test knows by their names");
}
