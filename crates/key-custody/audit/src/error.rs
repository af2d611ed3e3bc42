//! Errors of the audit log.

use std::sync::Arc;

/// Why the log refused or failed. After any of these errors, release nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Beyond one of the [limits](crate::limits).
    #[error("{asked} {what}; {most} is the most a record may have")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// More records wait than the log takes. Try again.
    #[error("the audit log has too many records waiting; try again")]
    Overloaded,
    /// There is no room on its file system. Nothing of the record is there; try again when there
    /// is.
    #[error("the audit log's file system is full: {reason}")]
    Full {
        /// What the system said.
        reason: Arc<str>,
    },
    /// A write or sync failed, now or earlier; the record may be there or not. The log must be
    /// opened again.
    #[error("the audit log cannot be written until it is opened again: {reason}")]
    Failed {
        /// What the system said.
        reason: Arc<str>,
    },
    /// The log has been closed.
    #[error("the audit log is closed")]
    Closed,
    /// Another process has it open.
    #[error("the audit log {log} is in use; only one process can write it")]
    InUse {
        /// Where it lies.
        log: Arc<str>,
    },
    /// Something that had been durable is not there any more, or was changed. The log is left as it
    /// is.
    #[error(
        "the audit log is damaged at {file}, line {line}, and was left as it is: {reason}. Put it aside and verify it"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// It could not be opened or read.
    #[error("the audit log cannot be {doing}: {reason}")]
    Io {
        /// `opened`, `read` or `shortened`.
        doing: &'static str,
        /// What the system said.
        reason: Arc<str>,
    },
    /// A head could not be signed.
    #[error("the audit log's head cannot be signed: {reason}")]
    Unsigned {
        /// What the signer said.
        reason: Arc<str>,
    },
}

impl AuditError {
    pub(crate) fn opening(error: &std::io::Error) -> Self {
        Self::Io { doing: "opened", reason: error.to_string().into() }
    }

    pub(crate) fn removing(error: &std::io::Error) -> Self {
        Self::Io { doing: "shortened", reason: error.to_string().into() }
    }

    pub(crate) fn reading(error: &std::io::Error) -> Self {
        Self::Io { doing: "read", reason: error.to_string().into() }
    }
}
