//! Errors that end a study early.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::writer::WriterError;
use crate::programs::{ProgramError, its_log};

/// Why a study ended. Each names the server, program or file.
#[derive(Debug, Error)]
pub enum StudyError {
    /// A server or another program.
    #[error(transparent)]
    Program(ProgramError),
    /// A server failed to do a request.
    #[error("{server}: {error}{}", its_log(said))]
    Server {
        /// The server.
        server: String,
        /// The writer's error.
        error: WriterError,
        /// The end of what it printed.
        said: String,
    },
    /// An invalid answer.
    #[error("{command} did not answer as expected: {error}; is it a strongroom of this version?")]
    Answer {
        /// The command line.
        command: String,
        /// The parser's error.
        error: serde_json::Error,
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
    /// Inconsistent sizes.
    #[error("{0}")]
    Sizes(String),
    /// Stopped by a signal.
    #[error("a signal asked for the end; everything that was started has been ended")]
    Signal,
}

impl From<ProgramError> for StudyError {
    fn from(error: ProgramError) -> Self {
        match error {
            ProgramError::Signal => Self::Signal,
            error => Self::Program(error),
        }
    }
}
