//! The report of a check of a volume, for people and programs: made on this machine, or received
//! from the host of its VM.
//!
//! It holds only data: a program that shows a report needs neither the volume nor a key.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_types::display_bytes;

use super::check::{Finding, Severity};

/// The most findings in one report. A volume's directory may hold any number of foreign files, each
/// of which is a finding.
const FINDINGS_MAX: usize = 64;

/// The report of a check of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The findings, errors first, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// The results of reading the blocks, if they were read.
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

    /// The count of errors among the findings. With none, the volume is sound as far as it was
    /// read.
    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error).count()
    }
}

/// The results of reading a volume's blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    /// Bytes that were read; known holes are not read.
    pub read_bytes: u64,
    /// Whether blocks were compared with tags; if not, the check only shows that they can be read.
    pub integrity: bool,
    /// Blocks that match their tags.
    pub verified_blocks: u64,
    /// Blocks that do not match, but may have been in flight when the volume was last used and not
    /// closed in order.
    pub unsettled_blocks: u64,
    /// Blocks whose content is not what was last written.
    pub wrong_blocks: u64,
    /// Blocks that cannot be read.
    pub unreadable_blocks: u64,
    /// The first runs of blocks that are wrong or cannot be read.
    pub failed_runs: Vec<FailedRun>,
}

/// Adjacent blocks that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRun {
    /// Their offset in the volume, in bytes.
    pub offset_bytes: u64,
    /// Their length, in bytes.
    pub length_bytes: u64,
    /// How the first of them failed.
    pub error: String,
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
}
