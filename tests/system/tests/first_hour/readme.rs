//! The README's commands, run as they are written. `first_hour/readme.txt` has the outcome of each.

use std::path::PathBuf;

use strongroom_system_tests::Scratch;

use super::steps::Step;
use super::user::{ENDS_WITHIN, User};

#[test]
fn the_readmes_commands_work_as_they_are_written() {
    let steps =
        Step::read_all("readme.txt", |block| block.starts_with("The commands") || block.starts_with("/srv"));
    let planned: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(planned, commands_of_the_readme(), "readme.txt on the left, README.md on the right");
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let mut beside = Vec::new();
    for step in &steps {
        beside.extend(step.take(&mut user));
    }
    let run = steps.iter().filter(|step| step.is_run()).count();
    assert!(run >= 15, "only {run} of them were run");
    // Processes end in reverse order, since all need `serve`. No error has occurred, so there are
    // no warnings.
    while let Some(process) = beside.pop() {
        let log = process.stderr_log().with_extension("stdout");
        let status = process.terminate(ENDS_WITHIN);
        let log = std::fs::read_to_string(log).unwrap();
        assert!(status.success(), "{status}: {log}");
        let warnings: Vec<&str> = log.lines().filter(|line| is_a_warning(line)).collect();
        assert!(warnings.is_empty(), "{}", warnings.join("\n"));
    }
}

fn is_a_warning(line: &str) -> bool {
    ["WARN", "ERROR"].iter().any(|level| line.split_whitespace().take(2).any(|word| word == *level))
}

#[test]
fn warnings_of_a_log_are_found() {
    assert!(is_a_warning(" WARN a key server does not answer"));
    assert!(is_a_warning("2026-11-23T20:18:00Z ERROR the disk is gone"));
    assert!(!is_a_warning(" INFO the word WARN stands here"));
}

/// The lines of the README's blocks, without comments.
fn commands_of_the_readme() -> Vec<String> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../README.md"].iter().collect();
    let readme = std::fs::read_to_string(path).unwrap();
    let blocks = readme.split("```").skip(1).step_by(2).flat_map(|block| block.lines().skip(1));
    let without_remarks = blocks.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned());
    without_remarks.filter(|line| !line.is_empty()).collect()
}
