//! The results of a study.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::Figures;
use crate::processes::Memory;

/// A measured phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Random first writes, up to the log's capacity.
    FirstUntilFull,
    /// Further random first writes, up to ten times that.
    FirstBeyond,
    /// Both together.
    FirstAll,
    /// Random writes right after a snapshot of a fully written disk, up to the log's capacity.
    AfterSnapshotUntilFull,
    /// Further such writes, up to ten times that.
    AfterSnapshotBeyond,
    /// Both together.
    AfterSnapshotAll,
    /// Random writes to a disk that was written before.
    Over,
    /// Sequential first writes of 64 KiB.
    First64K,
    /// The same to written space.
    Over64K,
    /// Sequential first writes of 512 KiB.
    First512K,
    /// The same to written space.
    Over512K,
}

/// The results of a product's rounds.
#[derive(Debug, Default, Serialize)]
pub struct SubjectResult {
    /// The product.
    pub name: String,
    /// By phase, a figure for each round.
    pub phases: BTreeMap<Phase, Vec<Figures>>,
    /// From the start of the program to the first answered read, after `kill -9` with a full log.
    pub reopen_full_ms: Vec<f64>,
    /// The same after an orderly end.
    pub reopen_empty_ms: Vec<f64>,
    /// How long an orderly end took after writing ten times the log's size, with everything
    /// destaged.
    pub close_ms: Vec<f64>,
    /// Memory of the serving process, after a guest connected and read.
    pub memory_idle: Vec<Memory>,
    /// The same after first writes until the log is full.
    pub memory_full: Vec<Memory>,
    /// The same of all processes of the server.
    pub memory_full_all: Vec<Memory>,
    /// Memory of the serving process after writing ten times the log's size, with everything
    /// destaged.
    pub memory_settled: Vec<Memory>,
}

/// The results of a file system's rounds.
#[derive(Debug, Serialize)]
pub struct FileSystemResult {
    /// Its type.
    pub file_system: String,
    /// The assumed capacity of the log in bytes.
    pub log_bytes: u64,
    /// Whether the product reported that capacity.
    pub log_told: bool,
    /// One-minute load averages before and after, which show other load.
    pub load_averages: [f64; 2],
    /// By product.
    pub subjects: Vec<SubjectResult>,
}

impl SubjectResult {
    /// The results of a product without rounds yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds the figures of a phase of a round.
    pub fn add(&mut self, phase: Phase, figures: Figures) {
        self.phases.entry(phase).or_default().push(figures);
    }

    /// A phase's rounds.
    pub fn rounds(&self, phase: Phase) -> &[Figures] {
        self.phases.get(&phase).map_or(&[], Vec::as_slice)
    }
}
