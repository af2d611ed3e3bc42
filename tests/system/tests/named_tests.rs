//! The tests that the documents name exist: each sentence that states a rule has one, by file and
//! function.
//!
//! A test is named as `crates/x/tests/y.rs::name`.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The texts in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tests that a document names: file and function.
fn named(text: &str) -> Vec<(&str, &str)> {
    let is_test = |quote: &&str| quote.starts_with("crates/") || quote.starts_with("tests/");
    quoted(text).filter(is_test).filter_map(|quote| quote.split_once(".rs::")).collect()
}

/// Whether a file has the test: a function, or the first word of a case in tests with a `main` of
/// their own.
fn has(source: &str, name: &str) -> bool {
    let is_listed = || source.split(&format!("\"{name}\"")).skip(1).any(|rest| rest.starts_with(','));
    source.contains(&format!("fn {name}(")) || is_listed()
}

fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for place in ["docs", "docs/decisions"] {
        let entries = std::fs::read_dir(root().join(place)).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    found
}

#[test]
fn tests_that_the_documents_name_are_there() {
    let (mut missing, mut count) = (Vec::new(), 0);
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for (file, name) in named(&text) {
            count += 1;
            let source = std::fs::read_to_string(root().join(format!("{file}.rs"))).unwrap_or_default();
            if !has(&source, name) {
                missing.push(format!("{}: {file}.rs::{name}", document.display()));
            }
        }
    }
    assert_eq!(missing, [""; 0], "of {count}");
    assert!(count > 40, "{count} tests are named");
}

/// Each section of these documents that states rules ends with the tests that enforce them.
#[test]
fn sections_that_state_rules_name_their_tests() {
    // Layout pictures, and sections about what is not promised, have none.
    let exempt =
        ["A volume is a directory", "What is not promised", "How the orders are shown", "Key server"];
    for document in ["docs/ON_DISK.md", "docs/THREAT_MODEL.md"] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let sections = text.split("\n## ").skip(1);
        let bare = sections.filter(|section| named(section).is_empty());
        let titles = bare.filter_map(|section| section.lines().next());
        let left: Vec<&str> = titles.filter(|title| !exempt.contains(title)).collect();
        assert_eq!(left, [""; 0], "{document}");
    }
}

/// A file beside the others is part of the program of whole-system tests.
#[test]
fn every_file_of_whole_system_tests_is_run() {
    let place = root().join("tests/system/tests");
    let main = std::fs::read_to_string(place.join("main.rs")).unwrap();
    let files = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let names: Vec<String> = sources.map(|path| path.file_stem().unwrap().display().to_string()).collect();
    let missing: Vec<&String> =
        names.iter().filter(|name| *name != "main" && !main.contains(&format!("\nmod {name};\n"))).collect();
    assert!(missing.is_empty(), "main.rs does not name {missing:?}");
    assert!(names.len() > 60, "{} files", names.len());
}

/// The deliberate mistakes can still be applied, and the tests that must catch them exist.
#[test]
fn mistakes_made_on_purpose_still_apply() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("scripts/mistakes")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let field = |name: &str, end: &str| {
            let begin = text.split_once(&format!("{name} = {end}")).unwrap().1;
            begin.split_once(end).unwrap().0.trim_start_matches('\n').to_owned()
        };
        let source = std::fs::read_to_string(root().join(field("file", "\""))).unwrap();
        let times = source.matches(&field("old", "'''")).count();
        assert_eq!(times, 1, "{} does not apply: its text is there {times} times", path.display());
        assert!(field("test", "\"").contains(" -- "), "{} names its test", path.display());
        count += 1;
    }
    assert!(count > 20, "{count} mistakes");
}

/// The table of places to change names existing files and folders, relative to their room.
#[test]
fn places_to_change_things_are_there() {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap();
    let table = text.split_once("## Where do I change X").unwrap().1.split_once("\n## ").unwrap().0;
    let rooms = rooms();
    let mut missing = Vec::new();
    let (mut rows, mut places) = (0, 0);
    for row in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        rows += 1;
        for quote in quoted(row) {
            let (room, rest) = quote.split_once('/').unwrap_or((quote, ""));
            let Some(room) = rooms.get(room) else { continue };
            places += 1;
            let place = room.join("src").join(rest);
            if !place.exists() && !place.with_extension("rs").exists() {
                missing.push(quote);
            }
        }
    }
    assert_eq!(missing, [""; 0]);
    assert!(rows >= 20 && places > rows, "{rows} rows name {places} places");
}

/// The crates by the names of their folders.
fn rooms() -> std::collections::HashMap<String, PathBuf> {
    let crates = walk(&root().join("crates"), 2);
    let is_room = |path: &PathBuf| path.join("Cargo.toml").exists();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    crates.into_iter().filter(is_room).map(|path| (name(&path), path)).collect()
}

fn walk(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match depth > 1 && path.is_dir() {
        true => walk(&path, depth - 1).into_iter().chain([path]).collect(),
        false => vec![path],
    };
    entries.flat_map(below).collect()
}

#[test]
fn a_name_that_is_not_there_is_noticed() {
    let text = "Held by `crates/x/tests/y.rs::it_is` and `z::other`; see `docs/A.md`.";
    assert_eq!(named(text), [("crates/x/tests/y", "it_is")]);
    assert!(has("#[test]\nfn it_is() {", "it_is") && !has("fn it_is_not() {", "it_is"));
    assert!(has("trial(\"it_is\", it)", "it_is"));
}
