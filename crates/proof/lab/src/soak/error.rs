//! Why a soak ends before its time.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use crate::vhost_user::front_end::FrontEndError;
use crate::vhost_user::verify::LoadError;

/// Why a soak ended. Each says of which volume, command or file.
#[derive(Debug, Error)]
pub enum SoakError {
    /// A program cannot be run.
    #[error(
        "cannot run {program}: {error}; build it with 'cargo build -p strongroom-cli', or say where it is with --program"
    )]
    Program {
        /// Which.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// A command failed.
    #[error("{command} failed with {status}: {said}")]
    Command {
        /// Its words.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// A command that says something else than is known of it.
    #[error("{command} answered {answer:?}, which is not understood")]
    Answer {
        /// Its words.
        command: String,
        /// What it said.
        answer: String,
    },
    /// Something took too long.
    #[error("volume {volume}: {what} did not come within {within:?}")]
    Late {
        /// Which volume's.
        volume: String,
        /// What.
        what: String,
        /// How long was waited.
        within: Duration,
    },
    /// A process that exposes a volume ended.
    #[error("volume {volume}: the process that exposes it ended with {status}; it said: {said}")]
    Ended {
        /// Which.
        volume: String,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        said: String,
    },
    /// The load found something.
    #[error("volume {volume}: {error}")]
    Load {
        /// On which.
        volume: String,
        /// What.
        error: LoadError,
    },
    /// A file.
    #[error("cannot {action} {}: {error}", path.display())]
    File {
        /// To do what.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The load of a volume has ended already.
    #[error("volume {0}: its load has ended")]
    NoLoad(String),
    /// A small file system cannot be had.
    #[error(
        "cannot mount a small file system of one's own: {0}; run it as root, allow user namespaces, or leave it out with --no-small"
    )]
    Mount(String),
    /// A person wants an end.
    #[error("ended by a signal")]
    Signal,
}

impl SoakError {
    /// A file's.
    pub fn file(action: &'static str, path: impl Into<PathBuf>, error: io::Error) -> Self {
        Self::File { action, path: path.into(), error }
    }

    /// A load's.
    pub fn load(volume: &str, error: impl Into<LoadError>) -> Self {
        Self::Load { volume: volume.to_owned(), error: error.into() }
    }
}

/// Whether a server is gone, so that its successor may be looked for.
pub fn is_gone(error: &LoadError) -> bool {
    match error {
        LoadError::Disconnected => true,
        LoadError::FrontEnd(error) => FrontEndError::is_gone(error),
        _ => false,
    }
}
