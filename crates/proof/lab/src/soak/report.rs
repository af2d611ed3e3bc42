//! The result of a soak, for people and for programs.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::conductor::Happened;
use super::flat::{Limits, Verdict};
use crate::vhost_user::verify::Report;

/// The load on one volume, with every answer verified.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// The volume.
    pub volume: String,
    /// Its final size in bytes.
    pub bytes: u64,
    /// Requests that were answered.
    pub operations: u64,
    /// Answered reads.
    pub reads: u64,
    /// Answered writes.
    pub writes: u64,
    /// Answered flushes.
    pub flushes: u64,
    /// Answered discards.
    pub discards: u64,
    /// Answered zeroings.
    pub zeroings: u64,
    /// Bytes that were read and verified.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Sessions after the first.
    pub reconnects: u64,
    /// Requests in flight in a server that died, which its successor answered.
    pub replayed: u64,
    /// The longest time without an answer.
    pub longest_wait_ms: f64,
}

impl Done {
    /// Converts the load's own report.
    pub fn new(volume: &str, bytes: u64, report: &Report) -> Self {
        Self {
            volume: volume.to_owned(),
            bytes,
            operations: report.operations(),
            reads: report.reads,
            writes: report.writes,
            flushes: report.flushes,
            discards: report.discards,
            zeroings: report.zeroings,
            read_bytes: report.read_bytes,
            written_bytes: report.written_bytes,
            reconnects: report.reconnects,
            replayed: report.replayed,
            longest_wait_ms: report.longest_stall.as_secs_f64() * 1e3,
        }
    }
}

/// The result of a soak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SoakReport {
    /// The seed.
    pub seed: u64,
    /// The duration of the load, in seconds.
    pub seconds: f64,
    /// The requested duration, in seconds.
    pub asked_seconds: f64,
    /// The limit of requests a second over all volumes.
    pub rate: f64,
    /// The load, by volume; volumes whose load failed are missing.
    pub done: Vec<Done>,
    /// The events meanwhile.
    pub happened: Happened,
    /// Volumes that were read whole, closed in order, checked and deleted.
    pub checked: Vec<String>,
    /// The limits of growth.
    pub limits: Limits,
    /// The verdicts on the processes.
    pub processes: Vec<Verdict>,
    /// The violations; empty if there were none.
    pub violations: Vec<String>,
    /// The directory of logs and samples, if they were kept.
    pub kept: Option<PathBuf>,
    /// The samples, line by line.
    pub samples: PathBuf,
}

impl SoakReport {
    /// Whether there were no violations.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Requests of all volumes.
    pub fn operations(&self) -> u64 {
        self.done.iter().map(|done| done.operations).sum()
    }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, seconds, asked_seconds, rate, happened, .. } = self;
        writeln!(
            f,
            "A soak of {seconds:.0} s of {asked_seconds:.0} s, seed {seed}, at most {rate:.0} requests a second\n"
        )?;
        writeln!(
            f,
            "{:<9}{:>8}{:>12}{:>11}{:>11}{:>9}{:>9}{:>9}{:>10}{:>10}{:>6}{:>9}{:>9}",
            "volume",
            "MiB",
            "operations",
            "reads",
            "writes",
            "flushes",
            "discards",
            "zeroings",
            "GiB read",
            "written",
            "back",
            "replayed",
            "wait ms"
        )?;
        let gib = |bytes: u64| bytes as f64 / (1 << 30) as f64;
        for done in &self.done {
            writeln!(
                f,
                "{:<9}{:>8}{:>12}{:>11}{:>11}{:>9}{:>9}{:>9}{:>10.2}{:>10.2}{:>6}{:>9}{:>9.0}",
                done.volume,
                done.bytes >> 20,
                done.operations,
                done.reads,
                done.writes,
                done.flushes,
                done.discards,
                done.zeroings,
                gib(done.read_bytes),
                gib(done.written_bytes),
                done.reconnects,
                done.replayed,
                done.longest_wait_ms
            )?;
        }
        writeln!(
            f,
            "{} operations, every answer verified; a wait is the longest time without any\n",
            self.operations()
        )?;
        writeln!(f, "{:<12}{:>7}{:>18}", "event", "times", "longest wait ms")?;
        for (name, wait) in &happened.longest_wait_ms {
            let times = happened.events.get(name).map_or(String::new(), u64::to_string);
            writeln!(f, "{name:<12}{times:>7}{wait:>18.0}")?;
        }
        writeln!(
            f,
            "\n{:<9}{:<11}{:>4}{:>7}{:>10}  {:<17}{:<15}{:<17}{:<12}{:<11}{:<15}",
            "volume",
            "process",
            "all",
            "judged",
            "seconds",
            "anonymous MiB",
            "w/o buffers",
            "PSS MiB",
            "descriptors",
            "threads",
            "growth MiB/allowed"
        )?;
        self.processes.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))?;
        writeln!(f, "\nread whole, closed, checked, deleted: {}", self.checked.join(", "))?;
        if self.is_clean() {
            return write!(f, "no violation; nothing was left");
        }
        writeln!(f, "\n{} VIOLATIONS", self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "- {violation}"))?;
        let kept = self.kept.as_deref().unwrap_or(&self.samples).display();
        write!(
            f,
            "Logs, keys and samples are kept in {kept}. To repeat it: strongroom-lab soak --seed {seed} --seconds \
             {asked_seconds:.0} --rate {rate:.0}"
        )
    }
}
