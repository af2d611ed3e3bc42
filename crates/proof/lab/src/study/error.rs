//! Errors that prevent or end a study.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::SubjectError;

/// Why a study ended. Earlier measurements are kept.
#[derive(Debug, Error)]
pub enum StudyError {
    /// An inconsistent plan.
    #[error("study {study}: {what}")]
    Plan {
        /// The study.
        study: String,
        /// The inconsistency.
        what: String,
    },
    /// The time is too short for the measurements.
    #[error(
        "{measurements} measurements need {} at least, and there are {}; allow more time, or choose fewer subjects or \
         workloads",
        told(*least),
        told(*budget)
    )]
    Budget {
        /// Their number, with the fewest rounds.
        measurements: usize,
        /// The time they need.
        least: Duration,
        /// The available time.
        budget: Duration,
    },
    /// A file or directory.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A damaged record.
    #[error("{path}, line {line}, is not a record of a study: {error}; choose another directory")]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// The directory holds another study.
    #[error(
        "{path} holds another study: its {what} is not the same; choose another directory, or delete this one"
    )]
    OtherStudy {
        /// The directory.
        path: PathBuf,
        /// The part that differs.
        what: String,
    },
    /// Another run is using the directory.
    #[error("another run is measuring into {path}; wait for its end, or choose another directory")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A subject cannot be measured.
    #[error(
        "{subject}, {workload}: {error}; what was measured is kept, and the same command goes on from there"
    )]
    Subject {
        /// The subject.
        subject: String,
        /// The workload.
        workload: String,
        /// The subject's error.
        error: SubjectError,
    },
    /// Stopped by a signal.
    #[error("ended by a signal after {done} of {of} measurements; the same command goes on from there")]
    Stopped {
        /// Measurements that are kept.
        done: usize,
        /// All of them.
        of: usize,
    },
}

/// A time span in words.
pub(super) fn told(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}
