//! What was to be reached, beside what was found.

use super::after::{OURS, PEER};
use super::chains::{CHAIN, CHAIN_OF_PIECES, FLAT, RANDOM, SEQUENTIAL};
use super::create::EXPOSED;
use super::gap::ENCRYPTED;
use super::jobs::Job;
use super::merge::MERGING;
use super::pairs::{Pooled, signed};
use super::rewrite;
use crate::first_writes::figures::{Figures, Spread};
use crate::first_writes::result::{FileSystemResult, Phase};
use crate::markdown::write_table;
use crate::study::{Metric, Report};

/// The longest gap beyond that of control windows, in milliseconds: the median and the 99th
/// percentile.
const GAP_MS: [f64; 2] = [5.0, 15.0];
const GAP_OF_CLEAR: f64 = 1.1;
const CREATE_MS: f64 = 25.0;
const CHAIN_OF_FLAT: f64 = 0.95;
const AFTER_UNTIL_FULL: f64 = 0.8;
const AFTER_ALL: f64 = 0.55;
const AFTER_OF_PEER: f64 = 2.0;
const MERGE_OF_RESTING: f64 = 0.8;
const JOB_OF_RESTING: f64 = 0.8;
const REWRITING_OF_COPY: f64 = 0.85;

/// A goal, and how far from it we are.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What.
    pub what: String,
    /// How much.
    pub wanted: String,
    /// What was found.
    pub found: String,
    /// Whether it was reached.
    pub is_met: bool,
}

impl Goal {
    fn at_most(what: String, unit: &str, most: f64, found: f64) -> Self {
        let shown = signed(found);
        let (wanted, found_text) = (format!("{most}{unit}"), format!("{shown}{unit}"));
        Self { what, wanted, found: found_text, is_met: found <= most }
    }

    fn at_least(what: String, least: f64, found: f64) -> Self {
        Self { what, wanted: least.to_string(), found: format!("{found:.2}"), is_met: found >= least }
    }
}

/// The table of goals.
pub fn table(goals: &[Goal]) -> String {
    let row = |goal: &Goal| {
        let verdict = if goal.is_met { "met" } else { "missed" };
        vec![goal.what.clone(), goal.wanted.clone(), goal.found.clone(), verdict.to_owned()]
    };
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = write_table(&mut text, &["", "goal", "found", ""], &goals.iter().map(row).collect::<Vec<_>>());
    text
}

/// Of the largest groups, whose workloads have these names.
pub fn of_gaps(pooled: &[Pooled], report: &Report, largest: &[String]) -> Vec<Goal> {
    let mut goals = Vec::new();
    let found = pooled.iter().filter(|found| found.subject == ENCRYPTED && largest.contains(&found.workload));
    for found in found {
        let name = &found.workload;
        let what = format!("{name}: longest gap beyond control, median");
        goals.push(Goal::at_most(what, " ms", GAP_MS[0], found.beyond_ms));
        let what = format!("{name}: the same, 99th percentile of {} pairs", found.pairs);
        goals.push(Goal::at_most(what, " ms", GAP_MS[1], found.beyond_p99_ms));
        let row = report.workload(name).and_then(|workload| workload.row(ENCRYPTED));
        if let Some(of_clear) = row.and_then(|row| row.comparison(0, Metric::LongestGapMs)) {
            let what = format!("{name}: longest gap, encrypted of clear");
            goals.push(Goal::at_most(what, "", GAP_OF_CLEAR, of_clear.ratio.median));
        }
    }
    goals
}

/// Of making a snapshot.
pub fn of_creation(report: &Report) -> Vec<Goal> {
    let goal = |workload: &crate::study::WorkloadReport| {
        let median = workload.row(EXPOSED)?.median(Metric::ElapsedMs)?;
        Some(Goal::at_most(format!("{}, {EXPOSED}", workload.name), " ms", CREATE_MS, median))
    };
    report.workloads.iter().filter_map(goal).collect()
}

/// Of reads through a chain.
pub fn of_chains(report: &Report) -> Vec<Goal> {
    let of = |workload: &str, subject: &str| {
        let goals = ratios(report, subject, &format!("{subject}, of {FLAT}"), CHAIN_OF_FLAT);
        goals.into_iter().filter(|goal| goal.what.starts_with(workload)).collect::<Vec<_>>()
    };
    [of(RANDOM, CHAIN), of(SEQUENTIAL, CHAIN_OF_PIECES)].concat()
}

/// Of a guest during a merge.
pub fn of_merges(report: &Report) -> Vec<Goal> {
    ratios(report, MERGING, "IOPS while layers are merged", MERGE_OF_RESTING)
}

/// Of a guest during a job.
pub fn of_job(report: &Report, job: Job) -> Vec<Goal> {
    ratios(report, job.name(), &format!("IOPS {}", job.name()), JOB_OF_RESTING)
}

/// Of a re-encryption that has the machine to itself.
pub fn of_rewriting(report: &Report) -> Vec<Goal> {
    ratios(report, rewrite::OURS, "new data keys, of a raw copy", REWRITING_OF_COPY)
}

/// The ratios of a subject to the first baseline.
fn ratios(report: &Report, subject: &str, what: &str, least: f64) -> Vec<Goal> {
    let goal = |workload: &crate::study::WorkloadReport| {
        let ratio = workload.row(subject)?.comparison(0, workload.headline)?.ratio.median;
        Some(Goal::at_least(format!("{}: {what}", workload.name), least, ratio))
    };
    report.workloads.iter().filter_map(goal).collect()
}

/// Of writes right after a snapshot.
pub fn of_writes(result: &FileSystemResult) -> Vec<Goal> {
    let ratio = |(name, phase), (by, by_phase)| {
        let (rounds, by) = (rounds(result, name, phase), rounds(result, by, by_phase));
        Spread::of_ratios(rounds, by, |figures| figures.iops)
    };
    let over = (OURS, Phase::Over);
    let (full, all) = (Phase::AfterSnapshotUntilFull, Phase::AfterSnapshotAll);
    let goals = [
        ("until the log is full, of overwriting", AFTER_UNTIL_FULL, ratio((OURS, full), over)),
        ("to ten times the log, of overwriting", AFTER_ALL, ratio((OURS, all), over)),
        ("until the log is full, of qcow2 with LUKS", AFTER_OF_PEER, ratio((OURS, full), (PEER, full))),
        ("to ten times the log, of qcow2 with LUKS", AFTER_OF_PEER, ratio((OURS, all), (PEER, all))),
    ];
    let goal = |(what, least, ratio): (&str, f64, Option<Spread>)| {
        Some(Goal::at_least(format!("writes right after a snapshot, {what}"), least, ratio?.median))
    };
    goals.into_iter().filter_map(goal).collect()
}

fn rounds<'result>(result: &'result FileSystemResult, name: &str, phase: Phase) -> &'result [Figures] {
    let subject = result.subjects.iter().find(|subject| subject.name == name);
    subject.map_or(&[], |subject| subject.rounds(phase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::first_writes::result::SubjectResult;

    #[test]
    fn writes_are_compared_with_overwriting_and_with_the_peer() {
        let subject = |name: &str, full, all, over| {
            let mut subject = SubjectResult::new(name);
            let phases =
                [(Phase::AfterSnapshotUntilFull, full), (Phase::AfterSnapshotAll, all), (Phase::Over, over)];
            for (phase, iops) in phases {
                subject.add(phase, Figures { iops, ..Figures::default() });
            }
            subject
        };
        let result = FileSystemResult {
            file_system: "ext4".to_owned(),
            log_bytes: 16 << 20,
            log_told: true,
            load_averages: [0.0; 2],
            subjects: vec![subject(OURS, 90.0, 50.0, 100.0), subject(PEER, 30.0, 40.0, 80.0)],
        };
        let goals = of_writes(&result);
        let found: Vec<(&str, bool)> = goals.iter().map(|goal| (goal.found.as_str(), goal.is_met)).collect();
        assert_eq!(found, [("0.90", true), ("0.50", false), ("3.00", true), ("1.25", false)]);
        let text = table(&goals);
        assert!(text.contains("of overwriting | 0.8 | 0.90 | met |"), "{text}");
    }

    #[test]
    fn less_than_nothing_is_met() {
        let goal = Goal::at_most(String::new(), " ms", 5.0, -1.5);
        assert_eq!((goal.wanted.as_str(), goal.found.as_str(), goal.is_met), ("5 ms", "-1.50 ms", true));
    }
}
