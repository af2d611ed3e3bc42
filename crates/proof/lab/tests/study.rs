//! A study that is killed, refused, stopped and continued, in separate processes.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strongroom_lab::study::{
    Baseline, Machine, Metric, Pace, Report, ReportSettings, Sample, Session, Store, Study, StudyError,
    Subject, SubjectError, Verdict, Workload,
};

struct Named(&'static str, bool);

impl Workload for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn must_saturate(&self) -> bool {
        self.1
    }
}

/// Answers from a script, without taking any time.
struct Scripted {
    name: &'static str,
    figure: f64,
    /// Called before each measurement.
    before: Rc<dyn Fn() -> Result<(), SubjectError>>,
}

impl Subject<Named> for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, workload: &Named) -> bool {
        !(self.name == "c" && workload.0 == "write")
    }

    fn open(&mut self, _workload: &Named) -> Result<Box<dyn Session + '_>, SubjectError> {
        Ok(Box::new(Answer(self)))
    }
}

struct Answer<'a>(&'a Scripted);

impl Session for Answer<'_> {
    fn measure(&mut self, _warm_up: Duration, _duration: Duration) -> Result<Sample, SubjectError> {
        (self.0.before)()?;
        let mut sample = Sample::default();
        sample.set(Metric::OperationsPerSecond, self.0.figure);
        sample.set(Metric::ServerCpuUsPerOperation, 1e6 / self.0.figure * 0.95);
        Ok(sample)
    }
}

fn study(rounds: u32, before: impl Fn() -> Result<(), SubjectError> + 'static) -> Study<'static, Named> {
    let before: Rc<dyn Fn() -> Result<(), SubjectError>> = Rc::new(before);
    let subject = |name, figure| -> Box<dyn Subject<Named>> {
        Box::new(Scripted { name, figure, before: Rc::clone(&before) })
    };
    Study {
        name: "scripted".to_owned(),
        settings: BTreeMap::from([("seed".to_owned(), "7".to_owned())]),
        subjects: vec![subject("a", 1000.0), subject("b", 500.0), subject("c", 1000.0)],
        workloads: vec![Named("read", true), Named("write", false)],
        pace: Pace { rounds, warm_up: Duration::ZERO, duration: Duration::from_secs(1) },
    }
}

fn machine() -> Machine {
    Machine { kernel: "6.1".to_owned(), processors: 2, ..Machine::default() }
}

fn run(directory: &Path, study: &mut Study<'_, Named>) -> Result<Store, StudyError> {
    let mut store = Store::open(directory, &study.plan(), &machine())?;
    study.run(&mut store, &|_| {}, &AtomicBool::new(false))?;
    Ok(store)
}

fn assert_is_as_planned(store: &Store) {
    let plan = store.plan();
    let steps = plan.steps();
    assert_eq!(store.measurements().len(), steps.len());
    for (found, step) in store.measurements().iter().zip(&steps) {
        assert_eq!((found.round, found.position), (step.round, step.position));
        assert_eq!(found.workload, plan.workloads[step.workload].name);
        assert_eq!(found.subject, plan.subjects[step.subject]);
    }
}

const DIRECTORY: &str = "STRONGROOM_LAB_TEST_DIRECTORY";
const MEASUREMENTS: &str = "STRONGROOM_LAB_TEST_MEASUREMENTS";

/// Not a test by itself, but the process that [`child`] starts. It performs some measurements, and
/// then blocks in one.
#[test]
fn the_study_that_is_killed() {
    let (Ok(directory), Ok(most)) = (std::env::var(DIRECTORY), std::env::var(MEASUREMENTS)) else { return };
    let most: u32 = most.parse().unwrap();
    let count = Cell::new(0);
    let stand_still = move || {
        if count.replace(count.get() + 1) == most {
            println!("standing still");
            // Until it is killed.
            std::io::stdin().read_to_end(&mut Vec::new())?;
        }
        Ok(())
    };
    run(Path::new(&directory), &mut study(4, stand_still)).unwrap();
}

fn child(directory: &Path, measurements: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_study_that_is_killed", "--nocapture"]);
    command.env(DIRECTORY, directory).env(MEASUREMENTS, measurements.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Kills the child while it measures.
fn kill_when_it_stands_still(mut child: Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("standing still")));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_study_that_is_killed_at_any_step_goes_on_from_there() {
    let directory = tempfile::tempdir().unwrap();
    let all = study(4, || Ok(())).plan().steps().len();
    let mut done = 0;
    for attempt in 0_usize.. {
        // Zero, one or two measurements before the kill.
        let measured = attempt % 3;
        if done + measured >= all {
            break;
        }
        kill_when_it_stands_still(child(directory.path(), measured as u32));
        done += measured;
        let samples = directory.path().join("samples.jsonl");
        let text = fs::read_to_string(&samples).unwrap();
        assert_eq!(text.lines().count(), done);
        // A kill during the writing of a line leaves part of it.
        let torn = text.lines().next().unwrap_or("{\"round\":");
        let torn = &torn[..torn.len() * (attempt + 1) / (all + 1)];
        OpenOptions::new().append(true).open(&samples).unwrap().write_all(torn.as_bytes()).unwrap();
    }
    assert!(done > all / 2);
    let count = Rc::new(Cell::new(0));
    let counted = Rc::clone(&count);
    let mut rest = study(4, move || {
        counted.set(counted.get() + 1);
        Ok(())
    });
    let store = run(directory.path(), &mut rest).unwrap();
    assert_eq!(count.get(), all - done);
    assert_is_as_planned(&store);
    // A complete study makes no further measurements.
    drop(store);
    assert_is_as_planned(&run(directory.path(), &mut rest).unwrap());
    assert_eq!(count.get(), all - done);
}

#[test]
fn a_study_that_was_killed_while_it_began_begins_again() {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &mut study(2, || Ok(()))).unwrap();
    for (kept, torn) in [(&["machine.json"][..], "plan.new"), (&[], "machine.new")] {
        let partial = tempfile::tempdir().unwrap();
        for file in kept {
            fs::copy(directory.path().join(file), partial.path().join(file)).unwrap();
        }
        fs::write(partial.path().join(torn), "{\"stu").unwrap();
        fs::write(partial.path().join("samples.jsonl"), "").unwrap();
        assert_is_as_planned(&run(partial.path(), &mut study(2, || Ok(()))).unwrap());
    }
}

#[test]
fn another_study_is_refused_and_more_rounds_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |study: &Study<'_, Named>, machine: &Machine| {
        let error = Store::open(directory.path(), &study.plan(), machine).unwrap_err().to_string();
        let (start, end) = (
            format!("{} holds another study: its ", directory.path().display()),
            " is not the same; choose another directory, or delete this one",
        );
        let what = error.strip_prefix(&start).and_then(|rest| rest.strip_suffix(end));
        what.unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    drop(run(directory.path(), &mut study(2, || Ok(()))).unwrap());
    let mut other = study(2, || Ok(()));
    other.settings.insert("seed".to_owned(), "8".to_owned());
    assert_eq!(refused(&other, &machine()), "setting \"seed\"");
    let mut other = study(2, || Ok(()));
    other.subjects.truncate(2);
    assert_eq!(refused(&other, &machine()), "list of subjects");
    let kernel = Machine { kernel: "6.2".to_owned(), ..machine() };
    assert_eq!(refused(&study(2, || Ok(())), &kernel), "machine's kernel");
    let programs = Machine { programs: BTreeMap::from([("x".to_owned(), "2".to_owned())]), ..machine() };
    assert_eq!(refused(&study(2, || Ok(())), &programs), "machine's list of programs and their versions");
    assert_is_as_planned(&run(directory.path(), &mut study(6, || Ok(()))).unwrap());
    assert_eq!(refused(&study(2, || Ok(())), &machine()), "number of rounds");
}

#[test]
fn a_store_is_one_runs_alone_and_its_lines_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let store = run(directory.path(), &mut study(2, || Ok(()))).unwrap();
    let error = Store::open(directory.path(), store.plan(), &machine()).unwrap_err();
    assert!(matches!(error, StudyError::InUse { .. }), "{error}");
    let plan = store.plan().clone();
    drop(store);
    let samples = directory.path().join("samples.jsonl");
    let text = fs::read_to_string(&samples).unwrap();
    fs::write(&samples, text.replacen("round", "ruond", 2)).unwrap();
    let error = Store::open(directory.path(), &plan, &machine()).unwrap_err().to_string();
    assert!(error.contains("samples.jsonl, line 1, is not a record of a study"), "{error}");
    // Whole lines of another plan.
    let lines: Vec<&str> = text.lines().rev().collect();
    fs::write(&samples, lines.join("\n") + "\n").unwrap();
    let error = Store::open(directory.path(), &plan, &machine()).unwrap_err().to_string();
    assert!(error.contains("its list of measurements is not the same"), "{error}");
    // An unrelated file of the same name is unchanged.
    fs::remove_file(directory.path().join("plan.json")).unwrap();
    fs::write(&samples, "theirs").unwrap();
    let error = Store::open(directory.path(), &plan, &machine()).unwrap_err().to_string();
    assert!(error.contains("its plan, which is missing, is not the same"), "{error}");
    assert_eq!(fs::read_to_string(&samples).unwrap(), "theirs");
}

#[test]
fn what_fails_once_is_told_and_what_fails_twice_ends_the_study() {
    let directory = tempfile::tempdir().unwrap();
    let count = Cell::new(0);
    let once = move || match count.replace(count.get() + 1) {
        3 => Err("no route to disk".into()),
        _ => Ok(()),
    };
    let store = run(directory.path(), &mut study(2, once)).unwrap();
    assert_is_as_planned(&store);
    let failed: Vec<_> =
        store.measurements().iter().filter_map(|found| found.failed_before.clone()).collect();
    assert_eq!(failed, ["no route to disk"]);
    let text = Report::of(&store, &ReportSettings::new(Vec::new())).to_string();
    assert!(text.contains("1 of its measurements failed at first: no route to disk"), "{text}");

    let directory = tempfile::tempdir().unwrap();
    let error = run(directory.path(), &mut study(2, || Err("no route to disk".into()))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a, read: no route to disk; what was measured is kept, and the same command goes on from there"
    );
}

#[test]
fn a_sample_without_what_is_compared_is_a_failure() {
    struct Strange(f64, Metric);
    impl Subject<Named> for Strange {
        fn name(&self) -> &str {
            "strange"
        }
        fn supports(&self, _workload: &Named) -> bool {
            true
        }
        fn open(&mut self, _workload: &Named) -> Result<Box<dyn Session + '_>, SubjectError> {
            Ok(Box::new(Strange(self.0, self.1)))
        }
    }
    impl Session for Strange {
        fn measure(&mut self, _warm_up: Duration, _duration: Duration) -> Result<Sample, SubjectError> {
            Ok(Sample(BTreeMap::from([(self.1, self.0)])))
        }
    }
    for (figure, metric, says) in [
        (1.0, Metric::ElapsedMs, "it did not measure IOPS, by which it is compared"),
        (f64::NAN, Metric::OperationsPerSecond, "it measured NaN as IOPS"),
        (-1.0, Metric::OperationsPerSecond, "it measured -1 as IOPS"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut study = Study { subjects: vec![Box::new(Strange(figure, metric))], ..study(2, || Ok(())) };
        let error = run(directory.path(), &mut study).unwrap_err().to_string();
        assert!(error.starts_with(&format!("strange, read: {says};")), "{error}");
    }
}

#[test]
fn a_signal_ends_it_between_measurements() {
    let directory = tempfile::tempdir().unwrap();
    let stop = Rc::new(AtomicBool::new(false));
    let (count, its_stop) = (Cell::new(0), Rc::clone(&stop));
    let mut study = study(2, move || {
        its_stop.store(count.replace(count.get() + 1) == 2, Ordering::Relaxed);
        Ok(())
    });
    let mut store = Store::open(directory.path(), &study.plan(), &machine()).unwrap();
    let error = study.run(&mut store, &|_| {}, &stop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ended by a signal after 3 of 10 measurements; the same command goes on from there"
    );
    let report = Report::of(&store, &ReportSettings::new(Vec::new()));
    assert!(!report.is_complete && report.to_string().contains("**Not complete**"));
}

#[test]
fn ratios_are_taken_within_a_round() {
    /// Twice as fast each time.
    struct Growing(&'static str, f64);
    impl Subject<Named> for Growing {
        fn name(&self) -> &str {
            self.0
        }
        fn supports(&self, _workload: &Named) -> bool {
            true
        }
        fn open(&mut self, _workload: &Named) -> Result<Box<dyn Session + '_>, SubjectError> {
            self.1 *= 2.0;
            Ok(Box::new(Now(self.1)))
        }
    }
    struct Now(f64);
    impl Session for Now {
        fn measure(&mut self, _warm_up: Duration, _duration: Duration) -> Result<Sample, SubjectError> {
            Ok(Sample(BTreeMap::from([(Metric::OperationsPerSecond, self.0)])))
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let subjects: Vec<Box<dyn Subject<Named>>> =
        vec![Box::new(Growing("a", 1000.0)), Box::new(Growing("b", 800.0))];
    let mut study = Study { subjects, workloads: vec![Named("read", false)], ..study(8, || Ok(())) };
    let store = run(directory.path(), &mut study).unwrap();
    let baseline = Baseline { title: "a".to_owned(), subjects: vec!["a".to_owned()] };
    let report = Report::of(&store, &ReportSettings::new(vec![baseline]));
    let b = report.workload("read").unwrap().row("b").unwrap();
    let comparison = b.comparison(0, Metric::OperationsPerSecond).unwrap();
    let close = |ratio: f64| (ratio - 0.8).abs() < 1e-9;
    assert!(close(comparison.ratio.low) && close(comparison.ratio.high), "{comparison:?}");
    assert_eq!((comparison.rounds, comparison.verdict), (8, Verdict::Worse));
}

#[test]
fn a_report_holds_every_value_and_what_follows_from_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = run(directory.path(), &mut study(6, || Ok(()))).unwrap();
    let baseline = |title: &str, subjects: &[&str]| Baseline {
        title: title.to_owned(),
        subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
    };
    let settings = ReportSettings::new(vec![baseline("a", &["a"]), baseline("the best peer", &["b", "c"])]);
    let report = Report::of(&store, &settings);
    let read = report.workload("read").unwrap();
    assert_eq!(read.baselines[1].subject, "c");
    let b = read.row("b").unwrap();
    assert_eq!(b.comparison(0, Metric::OperationsPerSecond).unwrap().verdict, Verdict::Worse);
    let c = read.row("c").unwrap();
    assert_eq!(c.comparison(0, Metric::OperationsPerSecond).unwrap().verdict, Verdict::NoDifference);
    assert_eq!((c.median(Metric::OperationsPerSecond), c.comparisons.len()), (Some(1000.0), 2));
    let text = report.to_string();
    for line in [
        "### read",
        "|  | IOPS | of a | of the best peer, c | server CPU per operation, us | at its limit |",
        "| a | 1,000 | 1.00 | 1.00, no difference found | 950 | server |",
        "| b | 500 | 0.50, slower | 0.50, slower | 1,900 | server |",
        "| c | 1,000 | 1.00, no difference found | 1.00 | 950 | server |",
        "|  | IOPS | of a | of the best peer, b | server CPU per operation, us |",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
    }
    let json = serde_json::to_value(&report).unwrap();
    let row = &json["workloads"][0]["rows"][1];
    assert_eq!(row["metrics"]["operations_per_second"]["rounds"].as_array().unwrap().len(), 6);
    assert_eq!(row["comparisons"][0]["verdict"], "worse");
    assert_eq!(json["machine"]["kernel"], "6.1");
}
