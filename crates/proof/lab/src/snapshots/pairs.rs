//! All pairs of windows, one without and one with a snapshot, and their table.
//!
//! The metrics of a measurement are medians of its pairs. A 99th percentile needs the pairs of all
//! measurements, so these are kept in a file beside the samples.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::markdown::{figure, write_table};
use crate::study::{Metric, Report};

/// A window without a snapshot, and the one with a snapshot after it. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The longest gap in the window without.
    pub control_ms: f64,
    /// The longest gap in the window with a snapshot.
    pub snapshot_ms: f64,
    /// The longest wait of clients by the program's own account.
    pub told_ms: f64,
    /// How long the commands took that made the snapshot.
    pub command_ms: f64,
}

impl Pair {
    /// How much longer guests waited for the snapshot's sake.
    pub fn beyond_ms(&self) -> f64 {
        self.snapshot_ms - self.control_ms
    }
}

/// The pairs of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The subject.
    pub subject: String,
    /// The workload.
    pub workload: String,
    /// The pairs.
    pub pairs: Vec<Pair>,
}

/// The file of all pairs, which is known when the study begins.
#[derive(Debug, Default)]
pub struct PairFile(OnceLock<PathBuf>);

impl PairFile {
    /// Keeps later pairs in this file, behind those of an interrupted run.
    pub fn keep_in(&self, path: PathBuf) -> io::Result<()> {
        self.0.set(path).map_err(|_| io::Error::other("the pairs have a file already"))
    }

    /// Adds a measurement's pairs.
    pub fn append(&self, line: &Line) -> io::Result<()> {
        let Some(path) = self.0.get() else { return Ok(()) };
        let mut file = File::options().create(true).append(true).open(path)?;
        // A killed run may have left the beginning of a line.
        file.write_all(format!("\n{}\n", serde_json::to_string(line)?).as_bytes())?;
        file.sync_data()
    }

    /// All of them. A torn line, of a run that was killed, is left out: its measurement was
    /// repeated.
    pub fn read(&self) -> io::Result<Vec<Line>> {
        let Some(path) = self.0.get() else { return Ok(Vec::new()) };
        let text = fs::read_to_string(path)?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

/// The figures of all pairs of a subject at a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pooled {
    /// The subject.
    pub subject: String,
    /// The workload.
    pub workload: String,
    /// Their number.
    pub pairs: usize,
    /// Medians and percentiles, in milliseconds.
    pub control_ms: f64,
    /// The same of windows with a snapshot.
    pub snapshot_ms: f64,
    /// The median of the differences.
    pub beyond_ms: f64,
    /// Their 99th percentile.
    pub beyond_p99_ms: f64,
    /// The median of the program's own account.
    pub told_ms: f64,
    /// The median duration of the commands.
    pub command_ms: f64,
}

/// The figures of all subjects at all workloads, in the order of `lines`.
pub fn pooled(lines: &[Line]) -> Vec<Pooled> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for line in lines {
        let kind = (line.workload.as_str(), line.subject.as_str());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let of = |(workload, subject): (&str, &str)| {
        let is_it = |line: &&Line| line.workload == workload && line.subject == subject;
        let pairs: Vec<Pair> = lines.iter().filter(is_it).flat_map(|line| line.pairs.clone()).collect();
        let quantile = |share, value: &dyn Fn(&Pair) -> f64| quantile(&pairs, share, value);
        Pooled {
            subject: subject.to_owned(),
            workload: workload.to_owned(),
            pairs: pairs.len(),
            control_ms: quantile(0.5, &|pair| pair.control_ms),
            snapshot_ms: quantile(0.5, &|pair| pair.snapshot_ms),
            beyond_ms: quantile(0.5, &Pair::beyond_ms),
            beyond_p99_ms: quantile(0.99, &Pair::beyond_ms),
            told_ms: quantile(0.5, &|pair| pair.told_ms),
            command_ms: quantile(0.5, &|pair| pair.command_ms),
        }
    };
    kinds.into_iter().map(of).collect()
}

/// The value of which `share` of the pairs have at most as much.
pub fn quantile(pairs: &[Pair], share: f64, value: &dyn Fn(&Pair) -> f64) -> f64 {
    let mut values: Vec<f64> = pairs.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil().max(1.0) as usize;
    values.get(rank - 1).copied().unwrap_or_default()
}

const HEAD: [&str; 9] = [
    "",
    "longest gap beyond control, median, ms",
    "99th percentile, ms",
    "pairs",
    "control, ms",
    "with a snapshot, ms",
    "of clear",
    "told, ms",
    "command, ms",
];

/// The table, in the order of the report's workloads. `baseline` is the report's subject that the
/// longest gaps with a snapshot are compared with.
pub fn table(pooled: &[Pooled], report: &Report) -> String {
    let mut rows = Vec::new();
    for workload in &report.workloads {
        for row in &workload.rows {
            let is_it = |found: &&Pooled| found.workload == workload.name && found.subject == row.subject;
            let Some(found) = pooled.iter().find(is_it) else { continue };
            let of_clear = row.comparison(0, Metric::LongestGapMs).map_or("-".to_owned(), |comparison| {
                format!("{:.2}, {}", comparison.ratio.median, comparison.verdict)
            });
            rows.push(vec![
                format!("{}, {}", workload.name, row.subject),
                signed(found.beyond_ms),
                signed(found.beyond_p99_ms),
                found.pairs.to_string(),
                figure(found.control_ms),
                figure(found.snapshot_ms),
                of_clear,
                figure(found.told_ms),
                figure(found.command_ms),
            ]);
        }
    }
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = write_table(&mut text, &HEAD, &rows);
    text
}

pub(super) fn signed(value: f64) -> String {
    if value < 0.0 { format!("-{}", figure(-value)) } else { figure(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: &str, pairs: &[(f64, f64)]) -> Line {
        let pair = |(control_ms, snapshot_ms): &(f64, f64)| Pair {
            control_ms: *control_ms,
            snapshot_ms: *snapshot_ms,
            told_ms: 1.0,
            command_ms: 50.0,
        };
        let pairs = pairs.iter().map(pair).collect();
        Line { subject: subject.to_owned(), workload: "4 volumes".to_owned(), pairs }
    }

    #[test]
    fn pairs_of_all_measurements_are_taken_together() {
        let found = pooled(&[
            line("a", &[(1.0, 4.0), (2.0, 2.5)]),
            line("b", &[(5.0, 4.0)]),
            line("a", &[(1.0, 11.0)]),
        ]);
        let [a, b] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((a.pairs, a.beyond_ms, a.beyond_p99_ms), (3, 3.0, 10.0));
        assert_eq!((b.pairs, b.beyond_ms), (1, -1.0));
        assert_eq!((signed(b.beyond_ms), signed(3.0)), ("-1.00".to_owned(), "3.00".to_owned()));
        assert_eq!(quantile(&[], 0.5, &Pair::beyond_ms), 0.0);
    }

    #[test]
    fn a_torn_line_of_a_killed_run_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pairs.jsonl");
        let file = PairFile::default();
        file.append(&line("lost", &[])).unwrap();
        assert!(file.read().unwrap().is_empty());
        fs::write(&path, "{\"subject\": \"a\", \"wor").unwrap();
        file.keep_in(path).unwrap();
        file.append(&line("a", &[(1.0, 2.0)])).unwrap();
        assert_eq!(file.read().unwrap(), [line("a", &[(1.0, 2.0)])]);
    }
}
