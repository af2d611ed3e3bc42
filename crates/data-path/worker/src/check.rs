//! Checks the blocks of a volume, by reading all of them.

use std::sync::Arc;

use strongroom_datastore::file::tags::TagCounts;
use strongroom_datastore::file::{DataFacts, FailedRun, Finding, OpenVolume, Severity};
use strongroom_io::IoError;
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::layers::{StackError, plain_blocks_over};
use crate::read_through::{FailedBlocks, ReadThrough, read_through};
use crate::transfer::{Progress, TransferError};

/// The most runs of blocks that one finding names; further ones are only counted.
const RUNS_NAMED: usize = 16;

/// Reading the blocks could not begin, or was stopped. Wrong or unreadable blocks are findings, not
/// errors.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The volume's files cannot be assembled into a disk.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// There is no memory or event loop to read with, or the check was stopped.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Reads all blocks of a volume as a guest does. Adds to `findings` what the returned counts do not
/// show.
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
    let facts = facts_of(&read, blocks.tags.map(|tags| tags.counts()));
    findings.extend(findings_of(&facts, &read));
    Ok(facts)
}

/// The results of reading and of comparing with tags.
fn facts_of(read: &ReadThrough, tags: Option<TagCounts>) -> DataFacts {
    let seen = tags.unwrap_or_default();
    DataFacts {
        read_bytes: read.read_bytes,
        integrity: tags.is_some(),
        verified_blocks: if tags.is_some() { read.read_bytes / BLOCK_BYTES - seen.adopted } else { 0 },
        unsettled_blocks: seen.adopted,
        wrong_blocks: read.wrong.count,
        unreadable_blocks: read.unreadable.count,
        failed_runs: read.wrong.runs.iter().chain(&read.unreadable.runs).map(failed_run).collect(),
    }
}

fn failed_run((run, error): &(Extent, IoError)) -> FailedRun {
    FailedRun { offset_bytes: run.offset(), length_bytes: run.length(), error: error.to_string() }
}

/// The findings that the counts do not show.
fn findings_of(facts: &DataFacts, read: &ReadThrough) -> Vec<Finding> {
    let finding = |severity, message: String| Finding { severity, message };
    let mut findings = Vec::new();
    if facts.wrong_blocks > 0 {
        let message = format!(
            "{} {} damaged or put back to an earlier content; restore the volume from a backup",
            named(&read.wrong),
            if facts.wrong_blocks == 1 { "is" } else { "are" }
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
    if facts.unsettled_blocks > 0 {
        let message = format!(
            "{} blocks do not match their tags, and may be what was being written when power or process failed; they are \
             tagged anew when the volume is used. If it was closed in order, somebody has changed them",
            facts.unsettled_blocks
        );
        findings.push(finding(Severity::Notice, message));
    }
    if !facts.integrity {
        let message = "the volume has no tags (volume create --integrity): it was checked whether its blocks can be read, and \
                       not whether they are what was last written there";
        findings.push(finding(Severity::Notice, message.to_owned()));
    }
    findings
}

/// The failed blocks by number, at most [`RUNS_NAMED`] runs.
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
