//! What reading all blocks of a volume has shown, for people and programs.

use std::fmt;

use serde::Serialize;
use strongroom_datastore::file::tags::TagCounts;
use strongroom_datastore::file::{Finding, Severity};
use strongroom_io::IoError;
use strongroom_types::{BLOCK_BYTES, Extent, display_bytes};
use strongroom_worker::read_through::{FailedBlocks, ReadThrough};

/// Runs of blocks that are named in one answer; how many more there are is said.
const RUNS_NAMED: usize = 16;

/// What the blocks showed.
#[derive(Debug, Serialize)]
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
#[derive(Debug, Serialize)]
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
    pub fn of(read: &ReadThrough, tags: Option<TagCounts>) -> Self {
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
    pub fn findings(&self, read: &ReadThrough) -> Vec<Finding> {
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
