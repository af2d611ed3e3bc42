//! Why a study ends before its time.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use super::writer::WriterError;

/// Why a study ended. Each says of which server, program or file.
#[derive(Debug, Error)]
pub enum StudyError {
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
    /// A server ended, or did not begin.
    #[error("{server} ended with {status}{}", its_log(said))]
    Ended {
        /// Which.
        server: String,
        /// How.
        status: ExitStatus,
        /// The end of what it printed.
        said: String,
    },
    /// A server takes too long.
    #[error("{server} did not {what} within {within:?}{}", its_log(said))]
    Late {
        /// Which.
        server: String,
        /// To do what.
        what: &'static str,
        /// How long it was waited.
        within: Duration,
        /// The end of what it printed.
        said: String,
    },
    /// A program cannot be run.
    #[error("cannot run {program}: {error}; {next}")]
    Program {
        /// Which.
        program: String,
        /// Why.
        error: io::Error,
        /// What helps.
        next: &'static str,
    },
    /// A program says that it failed.
    #[error("{command} failed with {status}: {said}")]
    Command {
        /// The command line.
        command: String,
        /// How.
        status: ExitStatus,
        /// What it said.
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
    /// A process cannot be asked or told.
    #[error("cannot {action} process {id} of {server}: {error}; measuring needs root")]
    Process {
        /// To do what.
        action: &'static str,
        /// Which.
        id: u32,
        /// Of which server.
        server: String,
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

fn its_log(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; it said: {said}") }
}
