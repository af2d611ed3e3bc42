//! The promises of the manifests: the walls between planes, as in docs/ARCHITECTURE.md, and that a
//! panic ends the released program, on which its locks rely.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The allowed dependencies of a plane: other planes, and single rooms of others.
struct Wall {
    plane: &'static str,
    planes: &'static [&'static str],
    rooms: &'static [&'static str],
}

const WALLS: [Wall; 6] = [
    Wall { plane: "base", planes: &[], rooms: &[] },
    Wall { plane: "key-custody", planes: &["base"], rooms: &[] },
    Wall { plane: "data-path", planes: &["base"], rooms: &["keys"] },
    Wall { plane: "control-plane", planes: &["base", "data-path"], rooms: &["store"] },
    Wall { plane: "machine", planes: &["base", "data-path", "key-custody", "control-plane"], rooms: &[] },
    Wall { plane: "proof", planes: &["base", "data-path"], rooms: &[] },
];

/// Rooms that may depend on no room with a type that can hold a key.
const KEYLESS: [&str; 11] =
    ["api", "vm", "hypervisor", "host", "hostd", "control", "store", "confine", "serving", "wire", "types"];
/// Rooms with such types.
const KEYED: [&str; 8] =
    ["crypto", "memory", "keys", "kmip", "providers", "keyserver", "worker", "vm-supervisor"];
/// The only room of the control plane with keys, and where it gets them.
const VM_SUPERVISOR: &str = "vm-supervisor";
const KEYS_OF_VMS: [&str; 2] = ["keys", "providers"];

/// A room: its plane, and its dependencies without those of tests.
struct Room {
    plane: String,
    uses: Vec<String>,
}

fn rooms() -> BTreeMap<String, Room> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let inside = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let mut found = BTreeMap::new();
    for plane in inside(&crates) {
        for room in inside(&plane) {
            let Ok(manifest) = std::fs::read_to_string(room.join("Cargo.toml")) else { continue };
            found.insert(name(&room), Room { plane: name(&plane), uses: uses(&manifest) });
        }
    }
    found
}

/// The rooms under `[dependencies]` of a manifest.
fn uses(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]\n"));
    let names = section.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("strongroom-"));
    names.map(|name| name.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

/// The dependencies that breach a wall.
fn breaches(rooms: &BTreeMap<String, Room>) -> Vec<String> {
    let mut breaches = Vec::new();
    for (name, room) in rooms {
        let wall = WALLS.iter().find(|wall| wall.plane == room.plane).unwrap();
        for used in &room.uses {
            let plane = rooms[used].plane.as_str();
            let is_allowed = plane == room.plane
                || wall.planes.contains(&plane)
                || wall.rooms.contains(&used.as_str())
                || (name == VM_SUPERVISOR && KEYS_OF_VMS.contains(&used.as_str()));
            let is_keyless = KEYLESS.contains(&name.as_str()) && KEYED.contains(&used.as_str());
            if !is_allowed || is_keyless {
                breaches.push(format!("{name} uses {used}"));
            }
        }
    }
    breaches
}

#[test]
fn no_room_reaches_through_a_wall() {
    let rooms = rooms();
    assert!(rooms.len() > 25, "{} rooms", rooms.len());
    assert_eq!(breaches(&rooms), [""; 0]);
}

#[test]
fn a_dependency_through_a_wall_is_noticed() {
    for (room, used) in [
        ("types", "io"),
        ("frontend", "hostd"),
        ("hypervisor", "keys"),
        ("control", "providers"),
        ("control", "keys"),
        ("host", "crypto"),
        ("hostd", "keys"),
        ("hostd", "vm-supervisor"),
        ("kmip", "api"),
        ("hostd", "processes"),
        ("keyserver", "processes"),
        ("lab", "processes"),
        ("processes", "sim"),
        ("vm-supervisor", "libvirt"),
        ("keyserver", "jobs"),
        ("hostd", "doctor"),
    ] {
        let mut rooms = rooms();
        rooms.get_mut(room).unwrap().uses.push(used.to_owned());
        assert_eq!(breaches(&rooms), [format!("{room} uses {used}")]);
    }
    let manifest = "[package]\nname = \"x\"\n\n[dependencies]\nstrongroom-a.workspace = true\n\
                    strongroom-b = { workspace = true }\nserde.workspace = true\n\n[dev-dependencies]\nstrongroom-c.workspace = true\n";
    assert_eq!(uses(manifest), ["a", "b"]);
}

/// docs/decisions/0024-one-lock-without-poison.md: a lock does not report that its holder panicked.
#[test]
fn a_panic_ends_the_released_program() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let release = manifest.split("\n[").find_map(|section| section.strip_prefix("profile.release]\n"));
    assert!(release.unwrap().lines().any(|line| line == "panic = \"abort\""), "{release:?}");
}
