//! Studies: several ways to do the same thing, measured in one run, so that all are compared on the
//! same machine.
//!
//! A [`Subject`] is one of the ways, a [`Workload`] is the thing, and a measurement gives a
//! [`Sample`]. This room does not know disks: each study defines its subjects and drives them.
//!
//! **May not enter:** anything that knows what a subject is made of.

mod error;
mod machine;
mod pace;
mod plan;
mod report;
mod runner;
mod sample;
mod statistics;
mod store;
mod subject;
mod watch;

pub use error::StudyError;
pub use machine::{Machine, version_of};
pub use pace::{Pace, PaceLimits};
pub use plan::{Plan, PlannedWorkload, Step};
pub use report::{Baseline, Report, ReportSettings, Row, Saturated, Usage, WorkloadReport};
pub use runner::Study;
pub use sample::{Metric, Sample};
pub use statistics::{Comparison, Interval, Verdict};
pub use store::{Measurement, Store};
pub use subject::{Session, Subject, SubjectError, Workload};
pub use watch::{Disk, Watch};
