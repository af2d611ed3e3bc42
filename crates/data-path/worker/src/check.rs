//! What a check of a volume shows, for people and programs: on this machine, or told by the host of its VM.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_datastore::file::tags::TagCounts;
use strongroom_datastore::file::{Finding, OpenVolume, Severity};
use strongroom_io::IoError;
use strongroom_types::{BLOCK_BYTES, Extent, display_bytes};

use crate::layers::{StackError, plain_blocks_over};
use crate::read_through::{FailedBlocks, ReadThrough, read_through};
use crate::transfer::{Progress, TransferError};

/// Runs of blocks that are named in one answer; how many more there are is said.
const RUNS_NAMED: usize = 16;

/// Findings in one report. A volume's directory may hold any number of strange files, each of which is one.
const FINDINGS_MAX: usize = 64;

/// What a check of one volume shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Errors first, no more than people read.
    pub findings: Vec<Finding>,
    /// What the blocks showed, if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataFacts>,
}

impl CheckReport {
    /// Sorts the findings, and leaves out those beyond the limit.
    pub fn new(mut findings: Vec<Finding>, data: Option<DataFacts>) -> Self {
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if let Some(more) = findings.len().checked_sub(FINDINGS_MAX).filter(|more| *more > 0) {
            let severity = findings[FINDINGS_MAX].severity;
            findings.truncate(FINDINGS_MAX);
            findings.push(Finding { severity, message: format!("there are {more} more findings") });
        }
        Self { findings, data }
    }

    /// How many errors are among the findings. Without any the volume is sound, as far as it was read.
    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error).count()
    }
}

/// Reading the blocks could not begin, or was stopped. That blocks are wrong or unreadable is a finding, and no such error.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// No disk can be made of the volume's files.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// There is no memory or event loop to read with, or it was stopped.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Reads all blocks of a volume as a guest does. What they show beside the numbers is added to `findings`.
///
/// # Errors
/// [`CheckError`].
pub fn check_blocks(
    mut volume: OpenVolume,
    findings: &mut Vec<Finding>,
    progress: &mut Progress<'_>,
) -> Result<DataFacts, CheckError> {
    let blocks = Arc::clone(&volume.disk);
    let blocks = plain_blocks_over(blocks, &mut volume)?;
    let read = read_through(&*blocks.disk, progress)?;
    let facts = DataFacts::of(&read, blocks.tags.map(|tags| tags.counts()));
    findings.extend(facts.findings(&read));
    Ok(facts)
}

/// What the blocks showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Bytes that were read; what is known to be a hole is not.
    read_bytes: u64,
    /// Whether blocks were compared with tags; otherwise it is only known that they can be read.
    integrity: bool,
    /// Blocks that match their tags.
    verified_blocks: u64,
    /// Blocks that do not, and may be what was in flight when the volume was last used and not closed in order.
    unsettled_blocks: u64,
    /// Blocks that are not what was last written there.
    wrong_blocks: u64,
    /// Blocks that cannot be read.
    unreadable_blocks: u64,
    /// Where blocks are wrong or cannot be read: the first runs of them.
    failed_runs: Vec<FailedRun>,
}

/// Blocks beside each other that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FailedRun {
    /// The first byte of the volume that is in them.
    offset_bytes: u64,
    length_bytes: u64,
    /// How the first of them failed.
    error: String,
}

impl FailedRun {
    fn of((run, error): &(Extent, IoError)) -> Self {
        Self { offset_bytes: run.offset(), length_bytes: run.length(), error: error.to_string() }
    }
}

impl DataFacts {
    /// What was read, and what the tags say.
    fn of(read: &ReadThrough, tags: Option<TagCounts>) -> Self {
        let seen = tags.unwrap_or_default();
        Self {
            read_bytes: read.read_bytes,
            integrity: tags.is_some(),
            verified_blocks: if tags.is_some() { read.read_bytes / BLOCK_BYTES - seen.adopted } else { 0 },
            unsettled_blocks: seen.adopted,
            wrong_blocks: read.wrong.count,
            unreadable_blocks: read.unreadable.count,
            failed_runs: read.wrong.runs.iter().chain(&read.unreadable.runs).map(FailedRun::of).collect(),
        }
    }

    /// What is worth saying beside the numbers.
    fn findings(&self, read: &ReadThrough) -> Vec<Finding> {
        let finding = |severity, message: String| Finding { severity, message };
        let mut findings = Vec::new();
        if self.wrong_blocks > 0 {
            let message = format!(
                "{} {} damaged or put back to an earlier content; restore the volume from a backup",
                named(&read.wrong),
                if self.wrong_blocks == 1 { "is" } else { "are" }
            );
            findings.push(finding(Severity::Error, message));
        }
        if let Some((_, error)) = read.unreadable.runs.first() {
            let message = format!(
                "{} of {BLOCK_BYTES} bytes cannot be read, and nothing is known of them: {error}; see to the device, or restore \
                 the volume from a backup",
                named(&read.unreadable)
            );
            findings.push(finding(Severity::Error, message));
        }
        if self.unsettled_blocks > 0 {
            let message = format!(
                "{} blocks do not match their tags, and may be what was being written when power or process failed; they are \
                 tagged anew when the volume is used. If it was closed in order, somebody has changed them",
                self.unsettled_blocks
            );
            findings.push(finding(Severity::Notice, message));
        }
        if !self.integrity {
            let message = "the volume has no tags (volume create --integrity): it was checked whether its blocks can be read, and \
                           not whether they are what was last written there";
            findings.push(finding(Severity::Notice, message.to_owned()));
        }
        findings
    }
}

impl fmt::Display for DataFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verified_blocks, unsettled_blocks, wrong_blocks, unreadable_blocks, .. } = self;
        let read = display_bytes(self.read_bytes);
        match self.integrity {
            true => write!(
                f,
                "data: {read} read; {verified_blocks} blocks verified, {unsettled_blocks} unsettled, {wrong_blocks} wrong, \
                 {unreadable_blocks} unreadable"
            ),
            false => write!(f, "data: {read} read, nothing verified; {unreadable_blocks} blocks unreadable"),
        }
    }
}

/// The blocks, by number: as many runs as a person reads.
fn named(failed: &FailedBlocks) -> String {
    let mut named_count = 0;
    let runs = failed.runs.iter().take(RUNS_NAMED).map(|(run, _)| {
        let (first, end) = (run.offset() / BLOCK_BYTES, run.end() / BLOCK_BYTES);
        named_count += end - first;
        if end - first == 1 { first.to_string() } else { format!("{first} to {}", end - 1) }
    });
    let runs = runs.collect::<Vec<_>>().join(", ");
    let noun = if failed.count == 1 { "block" } else { "blocks" };
    match failed.count - named_count.min(failed.count) {
        0 => format!("{noun} {runs}"),
        more => format!("{noun} {runs} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_errors_first_and_has_an_end() {
        let notice = |at| Finding { severity: Severity::Notice, message: format!("{at}") };
        let error = Finding { severity: Severity::Error, message: "bad".to_owned() };
        let mut findings: Vec<_> = (0..FINDINGS_MAX + 9).map(notice).collect();
        findings.push(error.clone());
        let report = CheckReport::new(findings, None);
        assert_eq!((report.findings.len(), report.errors()), (FINDINGS_MAX + 1, 1));
        assert_eq!(report.findings[0], error);
        assert_eq!(report.findings[FINDINGS_MAX].message, "there are 10 more findings");
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.starts_with(r#"{"findings":[{"severity":"error","message":"bad"},"#), "{text}");
        assert_eq!(serde_json::from_str::<CheckReport>(&text).unwrap(), report);
    }

    #[test]
    fn blocks_are_named_in_runs_and_not_without_end() {
        let run = |first: u64, count: u64| {
            let extent = Extent::between(first * BLOCK_BYTES, (first + count) * BLOCK_BYTES);
            (extent, IoError::Integrity { block: first })
        };
        let failed = |count, runs| FailedBlocks { count, runs };
        assert_eq!(named(&failed(1, vec![run(7, 1)])), "block 7");
        assert_eq!(named(&failed(4, vec![run(7, 1), run(9, 3)])), "blocks 7, 9 to 11");
        let many: Vec<_> = (0..20).map(|at| run(2 * at, 1)).collect();
        assert!(named(&failed(99, many)).ends_with("28, 30 and 83 more"));
    }
}
