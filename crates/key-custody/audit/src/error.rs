//! Errors of the audit log.

use std::sync::Arc;

/// Why the log refused or failed. After any of these errors, release nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Beyond one of the [limits](crate::limits).
    #[error("{asked} {what}; {most} is the most a record may have")]
    TooLarge {
        /// The item over its limit.
        what: &'static str,
        /// The record's amount.
        asked: usize,
        /// The limit.
        most: usize,
    },
    /// More records wait than the log takes. Try again.
    #[error("the audit log has too many records waiting; try again")]
    Overloaded,
    /// The log's file system is full. Nothing of the record was kept; try again when there is room.
    #[error("the audit log's file system is full: {reason}")]
    Full {
        /// The system's error.
        reason: Arc<str>,
    },
    /// A write or sync failed, now or earlier; the record may be there or not. The log must be
    /// opened again.
    #[error("the audit log cannot be written until it is opened again: {reason}")]
    Failed {
        /// The system's error.
        reason: Arc<str>,
    },
    /// The log has been closed.
    #[error("the audit log is closed")]
    Closed,
    /// Another process has the log open.
    #[error("the audit log {log} is in use; only one process can write it")]
    InUse {
        /// The log's path.
        log: Arc<str>,
    },
    /// Durable content is missing or was changed. The log is left as it is.
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
    /// The log could not be opened, read or shortened.
    #[error("the audit log cannot be {doing}: {reason}")]
    Io {
        /// `opened`, `read` or `shortened`.
        doing: &'static str,
        /// The system's error.
        reason: Arc<str>,
    },
    /// A head could not be signed.
    #[error("the audit log's head cannot be signed: {reason}")]
    Unsigned {
        /// The signer's error.
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
