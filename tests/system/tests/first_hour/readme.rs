//! The README's commands, as they are written there. `first_hour/readme.txt` says what becomes of each.

use std::path::{Path, PathBuf};

use strongroom_system_tests::Scratch;

use crate::user::{ENDS_WITHIN, User};

/// What becomes of a command.
enum Call {
    Runs,
    Stays { ready: String },
    Asks { question: String, keys: String },
    Shows { text: String },
    NotRun,
}

struct Step {
    command: String,
    before: Vec<String>,
    call: Call,
}

#[test]
fn the_readmes_commands_work_as_they_are_written() {
    let steps = steps();
    let planned: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(planned, commands_of_the_readme(), "readme.txt on the left, README.md on the right");
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let mut beside = Vec::new();
    for Step { command, before, call } in &steps {
        for line in before {
            user.runs(line).success();
        }
        match call {
            Call::Runs => drop(user.runs(command).success()),
            Call::Stays { ready } => beside.push(user.starts(command, ready)),
            Call::Asks { question, keys } => {
                let mut terminal = user.runs_at_terminal(command);
                terminal.shows(question);
                terminal.types(&format!("{keys}\r"));
                let (status, shown) = terminal.ends();
                assert!(status.success(), "{command}: {shown}");
            }
            Call::Shows { text } => {
                let mut terminal = user.runs_at_terminal(command);
                terminal.shows(text);
                terminal.types("\u{1d}");
                let (status, shown) = terminal.ends();
                assert!(status.success(), "{command}: {shown}");
            }
            Call::NotRun => {}
        }
    }
    let run = steps.iter().filter(|step| !matches!(step.call, Call::NotRun)).count();
    assert!(run >= 15, "only {run} of them were run");
    // What was begun last is ended first: `serve` is needed by all. Nothing went wrong, so nobody warns.
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

fn steps() -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("first_hour/readme.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let blocks =
        text.split("\n\n").filter(|block| block.starts_with("strongroom ") || block.contains("\n  "));
    let blocks = blocks.filter(|block| !block.starts_with(' ') && !block.starts_with("The commands"));
    blocks.map(step).collect()
}

fn step(block: &str) -> Step {
    let mut lines = block.lines();
    let command = lines.next().unwrap().to_owned();
    let (mut before, mut call) = (Vec::new(), None);
    for line in lines.map(str::trim) {
        let (word, rest) = line.split_once(": ").unwrap_or((line, ""));
        let rest = rest.to_owned();
        match word {
            "before" => before.push(rest),
            "runs" => call = Some(Call::Runs),
            "stays, and says" => call = Some(Call::Stays { ready: rest }),
            "shows" => call = Some(Call::Shows { text: rest }),
            "not run" => call = Some(Call::NotRun),
            "asks" => {
                let (question, keys) = rest.rsplit_once(' ').unwrap();
                call = Some(Call::Asks { question: question.to_owned(), keys: keys.to_owned() });
            }
            other => panic!("{command}: what is '{other}'?"),
        }
    }
    let call = call.unwrap_or_else(|| panic!("{command}: what becomes of it?"));
    Step { command, before, call }
}

/// The lines of the README's blocks, without remarks.
fn commands_of_the_readme() -> Vec<String> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../README.md"].iter().collect();
    let readme = std::fs::read_to_string(path).unwrap();
    let blocks = readme.split("```").skip(1).step_by(2).flat_map(|block| block.lines().skip(1));
    let without_remarks = blocks.map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned());
    without_remarks.filter(|line| !line.is_empty()).collect()
}
