//! The examples in every command's help, run as they are written. `first_hour/help.txt` has the
//! outcome of each, in an order in which each makes what later ones need.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use strongroom_system_tests::Scratch;

use super::steps::Step;
use super::user::{ENDS_WITHIN, User};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn the_examples_of_the_help_work_as_they_are_written() {
    let scratch = Scratch::new();
    let mut user = User::new(&scratch);
    let steps = Step::read_all("help.txt", |block| {
        ["The examples", "Directories"].iter().any(|text| block.starts_with(text))
    });
    let planned: BTreeSet<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    let mut written = BTreeSet::new();
    collect(&user, "", &mut written);
    let written: BTreeSet<&str> = written.iter().map(String::as_str).collect();
    let unplanned: Vec<_> = written.difference(&planned).collect();
    let unwritten: Vec<_> = planned.difference(&written).collect();
    assert!(
        unplanned.is_empty() && unwritten.is_empty(),
        "help.txt lacks {unplanned:#?}\nand has {unwritten:#?}"
    );
    let (mut beside, mut failed) = (Vec::new(), Vec::new());
    for step in &steps {
        // Steps that need the home's processes to be gone come after the last step that uses them.
        if step.command.starts_with("strongroom keyserver run") && step.is_run() {
            end(&mut beside);
        }
        // All failures are reported together.
        match catch_unwind(AssertUnwindSafe(|| step.take(&mut user))) {
            Ok(process) => beside.extend(process),
            Err(_) => failed.push(step.command.as_str()),
        }
    }
    end(&mut beside);
    assert!(failed.is_empty(), "{failed:#?}; what each of them said is above");
    let run = steps.iter().filter(|step| step.is_run()).count();
    assert!(run > 100, "only {run} of {} were run", steps.len());
}

fn end(processes: &mut Vec<strongroom_system_tests::Process>) {
    while let Some(process) = processes.pop() {
        let status = process.terminate(ENDS_WITHIN);
        assert!(status.success(), "{status}");
    }
}

/// The lines with this program in the help of a command and of all its subcommands.
fn collect(user: &User<'_>, command: &str, examples: &mut BTreeSet<String>) {
    let help = user.runs(&format!("COLUMNS=1000 strongroom {command} --help")).success();
    let mut lines = help.lines().skip_while(|line| !line.starts_with("Example"));
    lines.next();
    let lines: Vec<&str> = lines.take_while(|line| line.starts_with("  ")).collect();
    let lines = lines.join("\n").replace("\\\n", " ");
    let calls = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    examples.extend(calls.filter(|line| line.contains("strongroom ")));
    let inner = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let inner = inner.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    for name in inner.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        collect(user, &format!("{command} {name}"), examples);
    }
}
