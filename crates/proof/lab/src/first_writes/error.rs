//! Why a study ends before its time.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::writer::WriterError;
use crate::programs::{ProgramError, its_log};

/// Why a study ended. Each says of which server, program or file.
#[derive(Debug, Error)]
pub enum StudyError {
    /// A server or another program.
    #[error(transparent)]
    Program(ProgramError),
    /// A server did not do what it was asked.
    #[error("{server}: {error}{}", its_log(said))]
    Server {
        /// Which.
        server: String,
        /// What happened.
        error: WriterError,
        /// The end of what it printed.
        said: String,
    },
    /// An answer that is not what it should be.
    #[error("{command} did not answer as expected: {error}; is it a strongroom of this version?")]
    Answer {
        /// The command line.
        command: String,
        /// Why.
        error: serde_json::Error,
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
    /// Sizes that do not go together.
    #[error("{0}")]
    Sizes(String),
    /// A person wants it to end.
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
