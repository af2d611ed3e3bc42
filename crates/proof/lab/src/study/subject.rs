//! Subjects and workloads of a study.

use std::error::Error;
use std::time::Duration;

use super::{Metric, Sample};

/// Why a subject cannot be measured, with the next step.
pub type SubjectError = Box<dyn Error + Send + Sync>;

/// A workload for all subjects of a study, with a descriptive name for records and tables.
pub trait Workload {
    /// Its name, unique within the study, such as `4 KiB random read, depth 32`.
    fn name(&self) -> &str;

    /// The metric by which subjects are compared first.
    fn headline(&self) -> Metric {
        Metric::OperationsPerSecond
    }

    /// Whether the load must saturate something. One operation at a time need not: it measures
    /// latency.
    fn must_saturate(&self) -> bool {
        false
    }
}

/// One of the compared ways.
pub trait Subject<W: Workload> {
    /// Its name, unique within the study.
    fn name(&self) -> &str;

    /// Whether it supports this workload. An unsupported one is omitted from the table, not counted
    /// as slow.
    fn supports(&self, workload: &W) -> bool;

    /// Prepares files, servers and clients, and everything the first operations would otherwise pay
    /// for. Everything it starts ends with the session.
    fn open(&mut self, workload: &W) -> Result<Box<dyn Session + '_>, SubjectError>;
}

/// A subject that is ready for one workload.
pub trait Session {
    /// Loads it for `warm_up`, which is not counted, and then for `duration`, which is.
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError>;
}
