//! What a study gives.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::Figures;
use crate::processes::Memory;

/// What is measured of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Random first writes, as many bytes as the log holds.
    FirstUntilFull,
    /// Going on from there, until ten times that.
    FirstBeyond,
    /// Both together.
    FirstAll,
    /// Random writes to a disk that was written before.
    Over,
    /// Sequential first writes of 64 KiB.
    First64K,
    /// The same over what was written before.
    Over64K,
    /// Sequential first writes of 512 KiB.
    First512K,
    /// The same over what was written before.
    Over512K,
}

/// What a product's rounds gave.
#[derive(Debug, Default, Serialize)]
pub struct SubjectResult {
    /// Which product.
    pub name: String,
    /// By phase, a figure for each round.
    pub phases: BTreeMap<Phase, Vec<Figures>>,
    /// From the start of the program to the first answered read, after `kill -9` with a full log.
    pub reopen_full_ms: Vec<f64>,
    /// The same after an orderly end.
    pub reopen_empty_ms: Vec<f64>,
    /// How long an orderly end took after ten times the log's size, everything being at its place.
    pub close_ms: Vec<f64>,
    /// Memory of the process that serves, after a guest connected and read.
    pub memory_idle: Vec<Memory>,
    /// The same after first writes until the log is full.
    pub memory_full: Vec<Memory>,
    /// The same of all processes of the server.
    pub memory_full_all: Vec<Memory>,
    /// Of the process that serves, after ten times the log's size, and everything brought to its
    /// place.
    pub memory_settled: Vec<Memory>,
}

/// What a file system's rounds gave.
#[derive(Debug, Serialize)]
pub struct FileSystemResult {
    /// Its type.
    pub file_system: String,
    /// How many bytes count as the log's.
    pub log_bytes: u64,
    /// Whether the log said so itself.
    pub log_told: bool,
    /// Load averages of a minute before and after: what shared the machine.
    pub load_averages: [f64; 2],
    /// By product.
    pub subjects: Vec<SubjectResult>,
}

impl SubjectResult {
    /// Of a product that has no rounds yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Adds what a phase of a round gave.
    pub fn add(&mut self, phase: Phase, figures: Figures) {
        self.phases.entry(phase).or_default().push(figures);
    }

    /// A phase's rounds.
    pub fn rounds(&self, phase: Phase) -> &[Figures] {
        self.phases.get(&phase).map_or(&[], Vec::as_slice)
    }
}
