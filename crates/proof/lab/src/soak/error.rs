//! Errors that end a soak early.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use crate::vhost_user::front_end::FrontEndError;
use crate::vhost_user::verify::LoadError;

/// Why a soak ended. Each names the volume, command or file.
#[derive(Debug, Error)]
pub enum SoakError {
    /// A program cannot be run.
    #[error(
        "cannot run {program}: {error}; build it with 'cargo build -p strongroom-cli', or say where it is with --program"
    )]
    Program {
        /// The program.
        program: String,
        /// The system's error.
        error: io::Error,
    },
    /// A command failed.
    #[error("{command} failed with {status}: {said}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The output.
        said: String,
    },
    /// A command's unexpected output.
    #[error("{command} answered {answer:?}, which is not understood")]
    Answer {
        /// The command line.
        command: String,
        /// The output.
        answer: String,
    },
    /// Something took too long.
    #[error("volume {volume}: {what} did not come within {within:?}")]
    Late {
        /// The volume.
        volume: String,
        /// The awaited condition.
        what: String,
        /// How long the soak waited.
        within: Duration,
    },
    /// A process that exposes a volume ended.
    #[error("volume {volume}: the process that exposes it ended with {status}; it said: {said}")]
    Ended {
        /// The volume.
        volume: String,
        /// The exit status.
        status: ExitStatus,
        /// The end of its log.
        said: String,
    },
    /// The load found a problem.
    #[error("volume {volume}: {error}")]
    Load {
        /// The volume.
        volume: String,
        /// The problem.
        error: LoadError,
    },
    /// A file.
    #[error("cannot {action} {}: {error}", path.display())]
    File {
        /// The attempted action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The load of a volume has ended already.
    #[error("volume {0}: its load has ended")]
    NoLoad(String),
    /// A small file system cannot be mounted.
    #[error(
        "cannot mount a small file system of one's own: {0}; run it as root, allow user namespaces, or leave it out with --no-small"
    )]
    Mount(String),
    /// Stopped by a signal.
    #[error("ended by a signal")]
    Signal,
}

impl SoakError {
    /// The error for a file.
    pub fn file(action: &'static str, path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::File { action, path: path.into(), error }
    }

    /// The error for a load.
    pub fn load(volume: &str, error: impl Into<LoadError>) -> Self {
        Self::Load { volume: volume.to_owned(), error: error.into() }
    }
}

/// Whether a server is gone, so that its successor may be awaited.
pub fn is_gone(error: &LoadError) -> bool {
    match error {
        LoadError::Disconnected => true,
        LoadError::FrontEnd(error) => FrontEndError::is_gone(error),
        _ => false,
    }
}
