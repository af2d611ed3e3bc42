//! What is measured, and by what.

use std::error::Error;
use std::time::Duration;

use super::{Metric, Sample};

/// Why a subject cannot be measured, told so that a person can act on it.
pub type SubjectError = Box<dyn Error + Send + Sync>;

/// What a study asks of all its subjects: a name for records and tables, which says all that
/// matters.
pub trait Workload {
    /// Its name, unique within the study, such as `4 KiB random read, depth 32`.
    fn name(&self) -> &str;

    /// By what the subjects are compared first.
    fn headline(&self) -> Metric {
        Metric::OperationsPerSecond
    }

    /// Whether the load is to drive something to its limit. One operation at a time does not, and
    /// is not to: it measures latency.
    fn must_saturate(&self) -> bool {
        false
    }
}

/// One of the ways that are compared.
pub trait Subject<W: Workload> {
    /// Its name, unique within the study.
    fn name(&self) -> &str;

    /// Whether it can do this at all. What it cannot is left out of the table, not counted as slow.
    fn supports(&self, workload: &W) -> bool;

    /// Gets ready: files, servers and clients, and whatever the first operations would pay for the
    /// rest. What it started ends with the session.
    fn open(&mut self, workload: &W) -> Result<Box<dyn Session + '_>, SubjectError>;
}

/// A subject that is ready for one workload.
pub trait Session {
    /// Loads it for `warm_up`, which is not counted, and then for `duration`, which is.
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError>;
}
