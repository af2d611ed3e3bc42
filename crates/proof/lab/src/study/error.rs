//! Why a study does not begin, or ends before its time.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::SubjectError;

/// Why a study ended. What was measured before is kept.
#[derive(Debug, Error)]
pub enum StudyError {
    /// Something in a plan that does not go together.
    #[error("study {study}: {what}")]
    Plan {
        /// Which.
        study: String,
        /// What.
        what: String,
    },
    /// More is to be measured than the time is enough for.
    #[error(
        "{measurements} measurements need {} at least, and there are {}; allow more time, or choose fewer subjects or \
         workloads",
        told(*least),
        told(*budget)
    )]
    Budget {
        /// How many, with the fewest rounds.
        measurements: usize,
        /// What they need.
        least: Duration,
        /// What there is.
        budget: Duration,
    },
    /// A file or directory.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// To do what.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A record that is not as it was written.
    #[error("{path}, line {line}, is not a record of a study: {error}; choose another directory")]
    Record {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// The directory holds something else.
    #[error(
        "{path} holds another study: its {what} is not the same; choose another directory, or delete this one"
    )]
    OtherStudy {
        /// The directory.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// Two runs at a time.
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
        /// Which.
        subject: String,
        /// At what.
        workload: String,
        /// Why.
        error: SubjectError,
    },
    /// A person wants it to end.
    #[error("ended by a signal after {done} of {of} measurements; the same command goes on from there")]
    Stopped {
        /// Measurements that are kept.
        done: usize,
        /// All of them.
        of: usize,
    },
}

/// A span of time, as a person says it.
pub(super) fn told(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}
