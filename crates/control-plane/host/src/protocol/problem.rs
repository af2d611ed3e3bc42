//! Errors.

use serde::{Deserialize, Serialize};
use strongroom_datastore::file::DatastoreError;

use crate::vm_directory::VmDirectoryError;

/// An error, for a program and for a person. The body of every answer with a status of 400 or more
/// is `{"error": {...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A stable name for programs.
    pub code: String,
    /// The error, as a sentence without its full stop.
    pub message: String,
    /// The next step, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// A [`Problem`] as an answer's body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemBody {
    /// The problem.
    pub error: Problem,
}

impl Problem {
    /// A problem without a next step.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), next_step: None }
    }

    /// The system has refused something that a process needs: memory, a thread, a file.
    #[must_use]
    pub fn system(error: impl std::fmt::Display) -> Self {
        Self::new("system", error.to_string())
    }

    /// Adds a next step.
    #[must_use]
    pub fn with_next_step(self, next_step: impl Into<String>) -> Self {
        Self { next_step: Some(next_step.into()), ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        self.next_step.as_ref().map_or(Ok(()), |next| write!(f, "; {next}"))
    }
}

impl std::error::Error for Problem {}

impl From<DatastoreError> for Problem {
    fn from(error: DatastoreError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<VmDirectoryError> for Problem {
    fn from(error: VmDirectoryError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
