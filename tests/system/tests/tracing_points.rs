//! The program's file has its static tracing points, as bpftrace and gdb read them.

use std::collections::BTreeMap;
use std::process::Command;

use strongroom_system_tests::{CommandLine, Scratch};

/// The points with their numbers of arguments, as in docs/METRICS.md.
const POINTS: [(&str, usize); 5] = [
    ("flush_completed", 2),
    ("request_completed", 4),
    ("request_submitted", 1),
    ("request_taken", 3),
    ("worker_state", 1),
];

#[test]
fn the_program_has_its_tracing_points() {
    let scratch = Scratch::new();
    let program = CommandLine::new(&scratch).program();
    let notes = Command::new("readelf").arg("--notes").arg(program).output().unwrap();
    assert!(notes.status.success(), "{notes:?}");
    let notes = String::from_utf8(notes.stdout).unwrap();
    let (mut points, mut name) = (BTreeMap::new(), None);
    for line in notes.split("Provider: strongroom").skip(1).flat_map(|note| note.lines().take(4)) {
        match line.trim().split_once(": ") {
            Some(("Name", of)) => name = Some(of.to_owned()),
            Some(("Arguments", arguments)) => {
                points.insert(name.take().unwrap(), arguments.split_whitespace().count());
            }
            _ => {}
        }
    }
    let expected = POINTS.map(|(name, arguments)| (name.to_owned(), arguments));
    assert_eq!(points, BTreeMap::from(expected), "{notes}");
}
