//! Why processes do not run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;

/// Why not.
#[derive(Debug, Error)]
pub enum ProcessesError {
    /// A lock is not taken, or a program not started.
    #[error("cannot {action} {path}: {error}")]
    File {
        /// What was tried, as in "lock".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A process ended before its first line.
    #[error("{name} ended before it was ready; what it said is above")]
    EndedEarly {
        /// What it is called in the log.
        name: &'static str,
    },
    /// A process wrote no first line in time.
    #[error("{name} was not ready in time")]
    NotReady {
        /// What it is called in the log.
        name: &'static str,
    },
    /// Another process has the place.
    #[error(
        "{} serves {what} {directory} already; {}, or name another one with {option} DIR, and other addresses with --listen, --listen-kmip and \
         --listen-enrolment",
        .pid.as_ref().map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")),
        .pid.as_ref().map_or_else(|| "end that one".to_owned(), |pid| format!("end that one (`kill {pid}`)"))
    )]
    ServedAlready {
        /// What the place is called.
        what: &'static str,
        /// The place.
        directory: PathBuf,
        /// The option that names another place.
        option: &'static str,
        /// The process, as its lock says; nothing if the lock cannot be read.
        pid: Option<String>,
    },
    /// An address cannot be listened at.
    #[error(
        "{of} cannot be served at {address}: {why}; end that program, or name another address with {option} ADDRESS:PORT"
    )]
    Address {
        /// What is to be served there.
        of: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why not.
        why: String,
        /// The option that names another address.
        option: &'static str,
    },
    /// Signals cannot be awaited.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// A signal came before the processes were ready.
    #[error("interrupted")]
    Interrupted,
}

impl ProcessesError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::EndedEarly { .. }
            | Self::NotReady { .. }
            | Self::ServedAlready { .. }
            | Self::Address { .. } => "usage",
            Self::Signals(_) => "signals",
            Self::Interrupted => "interrupted",
        }
    }
}
