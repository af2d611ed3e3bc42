//! The walls as the sources have them. From the manifests: the walls between planes, as in
//! docs/ARCHITECTURE.md, and that a panic ends the released program, on which its locks rely. From
//! the modules: no folders of a room need each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use strongroom_system_tests::datastore::files_under;

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
const KEYLESS: [&str; 14] = [
    "api",
    "vm",
    "hypervisor",
    "host",
    "hostd",
    "control",
    "courier",
    "oidc",
    "page",
    "store",
    "confine",
    "serving",
    "wire",
    "types",
];
/// Rooms with such types.
const KEYED: [&str; 8] =
    ["crypto", "memory", "keys", "kmip", "providers", "keyserver", "worker", "vm-supervisor"];
/// The only room of the control plane with keys, and where it gets them.
const VM_SUPERVISOR: &str = "vm-supervisor";
const KEYS_OF_VMS: [&str; 2] = ["keys", "providers"];

/// The only room of proof that knows the control plane: simulated hosts are behind hostd's own
/// server, with certificates of the key server.
const ESTATE: &str = "estate";
const USED_BY_ESTATE: [&str; 4] = ["api", "host", "hostd", "keyserver"];

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
    let all = dependencies(manifest);
    all.iter().filter_map(|name| name.strip_prefix("strongroom-")).map(str::to_owned).collect()
}

/// The crates under `[dependencies]` of a manifest, without optional ones.
fn dependencies(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]\n"));
    let lines = section.unwrap_or_default().lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| line.contains('=') && !line.contains("optional = true"));
    lines.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
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
                || (name == VM_SUPERVISOR && KEYS_OF_VMS.contains(&used.as_str()))
                || (name == ESTATE && USED_BY_ESTATE.contains(&used.as_str()));
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
        ("lab", "hostd"),
        ("estate", "control"),
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

/// `scripts/fuzz` builds with `--locked`, in a workspace of its own.
#[test]
fn the_lock_file_of_the_fuzzers_has_every_dependency() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lock = std::fs::read_to_string(root.join("fuzz/Cargo.lock")).unwrap();
    let manifests = files_under(&root.join("crates"));
    let manifests = manifests.into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let mut compared = 0;
    for manifest in manifests.map(|path| std::fs::read_to_string(path).unwrap()) {
        let name = manifest.lines().find(|line| line.starts_with("name = ")).unwrap();
        let Some(package) = lock.split("[[package]]\n").find(|package| package.starts_with(name)) else {
            continue;
        };
        compared += 1;
        let quoted = package.lines().filter_map(|line| line.strip_prefix(" \""));
        let locked: Vec<&str> = quoted.filter_map(|line| line.split(['"', ' ']).next()).collect();
        for dependency in dependencies(&manifest) {
            assert!(locked.contains(&dependency.as_str()), "{name} needs {dependency}: scripts/fuzz fails");
        }
    }
    assert!(compared >= 8, "{compared}");
}

/// docs/decisions/0024-one-lock-without-poison.md: a lock does not report that its holder panicked.
#[test]
fn a_panic_ends_the_released_program() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let release = manifest.split("\n[").find_map(|section| section.strip_prefix("profile.release]\n"));
    assert!(release.unwrap().lines().any(|line| line == "panic = \"abort\""), "{release:?}");
}

/// A module, by its path from the crate's root.
type Module = Vec<String>;

/// The folders that each folder needs, with the files that need them. A folder is a module with
/// children.
type Needs<'s> = BTreeMap<Module, BTreeMap<Module, BTreeSet<&'s str>>>;

/// The sources of a room, without its tests.
struct Sources {
    /// Of each module, its file and its words.
    modules: BTreeMap<Module, (String, Vec<String>)>,
    /// The paths of the items that modules show as their own: `pub use` hides no need.
    shown: BTreeMap<(Module, String), Module>,
}

impl Sources {
    /// The files, by their paths below `src`, with their texts.
    fn of(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_left_out = |file: &str| {
            file.ends_with("tests.rs") || file.split('/').any(|part| ["tests", "bin"].contains(&part))
        };
        let files = files.into_iter().filter(|(file, _)| !is_left_out(file));
        let modules = files.map(|(file, text)| (module_of(&file), (file, words(&text)))).collect();
        let mut sources = Self { modules, shown: BTreeMap::new() };
        let mut shown = BTreeMap::new();
        for (module, (_, words)) in &sources.modules {
            for path in public_uses(words) {
                let path = absolute(module, &path);
                // Items of other crates look as if they were of this module.
                if let Some(name) = path.last().filter(|_| sources.place_of(&path) != *module) {
                    shown.insert((module.clone(), name.clone()), path);
                }
            }
        }
        sources.shown = shown;
        sources
    }

    /// The module that the item at a path is in.
    fn place_of(&self, path: &[String]) -> Module {
        let is_module = |length: &usize| self.modules.contains_key(&path[..*length]);
        let (module, item) = path.split_at((0..=path.len()).rev().find(is_module).unwrap_or(0));
        let shown = item.first().and_then(|name| self.shown.get(&(module.to_vec(), name.clone())));
        shown.map_or_else(|| module.to_vec(), |shown| self.place_of(&[shown, &item[1..]].concat()))
    }

    /// The folder that a module is, or is in.
    fn folder_of<'m>(&self, module: &'m [String]) -> &'m [String] {
        let is_folder = |length: &usize| {
            self.modules.keys().any(|other| other.len() > *length && other.starts_with(&module[..*length]))
        };
        &module[..(0..=module.len()).rev().find(is_folder).unwrap_or(0)]
    }

    /// A folder and the folders in it are one: neither needs the other.
    fn needs(&self) -> Needs<'_> {
        let mut needs = Needs::new();
        for (module, (file, words)) in &self.modules {
            let folder = self.folder_of(module);
            for path in paths(words) {
                let place = self.place_of(&absolute(module, &path));
                let needed = self.folder_of(&place);
                if !needed.starts_with(folder) && !folder.starts_with(needed) {
                    let needed_of = needs.entry(folder.to_vec()).or_default();
                    needed_of.entry(needed.to_vec()).or_default().insert(file);
                }
            }
        }
        needs
    }

    /// Each need that is part of a circle.
    fn circles(&self) -> Vec<String> {
        let needs = self.needs();
        let all = needs.iter().flat_map(|(folder, needed)| needed.iter().map(move |need| (folder, need)));
        let circular = all.filter(|(folder, (needed, _))| reached_from(needed, &needs).contains(*folder));
        let shown = circular.map(|(folder, (needed, files))| {
            let files: Vec<&str> = files.iter().copied().collect();
            format!("{} needs {} in {}", folder.join("/"), needed.join("/"), files.join(", "))
        });
        shown.collect()
    }
}

/// The folders that a folder needs, those that they need, and so on.
fn reached_from(folder: &Module, needs: &Needs<'_>) -> BTreeSet<Module> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![folder.clone()]);
    while let Some(folder) = left.pop() {
        let needed = needs.get(&folder).into_iter().flatten().map(|(needed, _)| needed.clone());
        left.extend(needed.filter(|needed| reached.insert(needed.clone())));
    }
    reached
}

fn module_of(file: &str) -> Module {
    let mut parts: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        parts.pop();
    }
    parts
}

/// The words of a source and the signs between them, without comments and unit tests.
fn words(text: &str) -> Vec<String> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut words = Vec::new();
    for mut line in lines.filter_map(|line| line.split(" // ").next()) {
        while let Some(first) = line.chars().next() {
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let length = match first {
                letter if is_word(letter) => line.find(|letter| !is_word(letter)).unwrap_or(line.len()),
                ':' if line.starts_with("::") => 2,
                sign => sign.len_utf8(),
            };
            let (word, rest) = line.split_at(length);
            if !word.trim().is_empty() {
                words.push(word.to_owned());
            }
            line = rest;
        }
    }
    words
}

/// The paths within the crate, wherever they stand.
fn paths(words: &[String]) -> Vec<Vec<String>> {
    let begins = |at: &usize| {
        let is_first = ["crate", "super", "self"].contains(&words[*at].as_str());
        is_first && words.get(at + 1).is_some_and(|next| next == "::") && (*at == 0 || words[at - 1] != "::")
    };
    (0..words.len()).filter(begins).flat_map(|mut at| paths_at(words, &mut at)).collect()
}

/// The paths of the items that a module shows as its own.
fn public_uses(words: &[String]) -> Vec<Vec<String>> {
    let is_public = |at: &usize| words[*at] == "use" && ["pub", ")"].contains(&words[at - 1].as_str());
    (1..words.len()).filter(is_public).flat_map(|at| paths_at(words, &mut (at + 1))).collect()
}

/// The paths of the tree that begins at `at`: of `a::{b, c::d}` they are `a::b` and `a::c::d`.
fn paths_at(words: &[String], at: &mut usize) -> Vec<Vec<String>> {
    let mut path = Vec::new();
    while let Some(word) = words.get(*at) {
        *at += 1;
        if word == "{" {
            let mut ends = Vec::new();
            while let Some(word) = words.get(*at).filter(|word| *word != "}") {
                match word.as_str() {
                    "," => *at += 1,
                    "as" => *at += 2,
                    _ => ends.extend(paths_at(words, at)),
                }
            }
            *at += 1;
            return ends.into_iter().map(|end| [path.clone(), end].concat()).collect();
        }
        path.push(word.clone());
        if words.get(*at).is_none_or(|next| next != "::") {
            break;
        }
        *at += 1;
    }
    vec![path]
}

/// A path as it is from the crate's root; `path` stands in `module`.
fn absolute(module: &[String], path: &[String]) -> Module {
    let mut place = module.to_vec();
    for word in path {
        match word.as_str() {
            "crate" => place.clear(),
            "super" => drop(place.pop()),
            "self" => {}
            _ => place.push(word.clone()),
        }
    }
    place
}

/// The sources of all rooms, and of the program.
fn sources() -> BTreeMap<String, Sources> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let mut files: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for path in files_under(&crates) {
        let below = path.strip_prefix(&crates).unwrap().to_str().unwrap();
        let source = below.split_once("/src/").filter(|(_, file)| file.ends_with(".rs"));
        let Some((room, file)) = source else { continue };
        let text = std::fs::read_to_string(&path).unwrap();
        files.entry(room.to_owned()).or_default().push((file.to_owned(), text));
    }
    files.into_iter().map(|(room, files)| (room, Sources::of(files))).collect()
}

/// So a folder can be read, and changed, with those alone in mind that it needs. There is no
/// exception; one would be named here, with its reason.
#[test]
fn no_folders_of_a_room_need_each_other_in_a_circle() {
    let rooms = sources();
    let needs: usize = rooms.values().flat_map(|room| room.needs().into_values()).map(|of| of.len()).sum();
    assert!(rooms.len() > 25 && needs > 100, "{} rooms, {needs} needs", rooms.len());
    let circles = rooms.iter().flat_map(|(room, sources)| {
        sources.circles().into_iter().map(move |circle| format!("{room}: {circle}"))
    });
    assert_eq!(circles.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_circle_between_folders_is_noticed() {
    let circles = |one: &str, other: &str| {
        let files = [
            ("lib.rs", "mod low;\nmod one;\nmod other;\npub use other::deep::Shown;"),
            ("low.rs", "use crate::one;"),
            ("one/mod.rs", "pub mod here;\npub use here::Item;"),
            ("one/here.rs", one),
            ("one/here_tests.rs", "use crate::other;"),
            ("other/mod.rs", "pub mod deep;"),
            ("other/deep.rs", other),
        ];
        Sources::of(files.map(|(file, text)| (file.to_owned(), text.to_owned()))).circles()
    };
    let back = "use super::super::one::here::Item;";
    let circle = ["one needs other in one/here.rs", "other needs one in other/deep.rs"];
    for one in [
        "use crate::other;",
        "use crate::{low, other::{self, deep::Shown}};",
        "fn f() -> crate::other::deep::Shown {}",
        "use super::super::other::deep as far;",
        "use crate::Shown;",
    ] {
        assert_eq!(circles(one, back), circle, "{one}");
        assert_eq!(circles(one, "pub(in crate::other) struct Shown;"), [""; 0], "{one}");
    }
    for one in [
        "//! As [`crate::other`].",
        "use super::Item; // see crate::other",
        "use crate::low;",
        "#[cfg(test)]\nmod tests { use crate::other; }",
    ] {
        assert_eq!(circles(one, back), [""; 0], "{one}");
    }
}
