//! Errors that end a run early.

use std::fmt;
use std::time::Duration;

use strongroom_memory::GuestError;
use thiserror::Error;

use super::oracle::Finding;
use crate::vhost_user::front_end::FrontEndError;
use crate::vhost_user::queue::{Operation, QueueError};

/// The most findings in a report: the first ones suffice.
pub const FINDINGS_MAX: usize = 16;

/// Why a run ended.
#[derive(Debug, Error)]
pub enum LoadError {
    /// Sectors with wrong content.
    #[error("{}", Sentences(.0))]
    Wrong(Vec<Finding>),
    /// A request failed, or its answer violates the standard.
    #[error(
        "queue {queue}: {operation:?} was answered with status {status} and {written_bytes} bytes written"
    )]
    Answer {
        /// The queue.
        queue: usize,
        /// The request.
        operation: Operation,
        /// The status byte.
        status: u8,
        /// The number of bytes that the device reports as written.
        written_bytes: u32,
    },
    /// Nothing was answered for too long.
    #[error("no answer in {after:?}, with {in_flight} requests in flight")]
    Stalled {
        /// The duration.
        after: Duration,
        /// The number of requests in flight.
        in_flight: usize,
    },
    /// The server reports a queue as broken.
    #[error("the server gave up queue {0}")]
    BrokenQueue(usize),
    /// The server went away.
    #[error("the server is gone")]
    Disconnected,
    /// A read-only disk, whose required content is unknown.
    #[error("the disk is read-only")]
    ReadOnly,
    /// A disk without a whole sector.
    #[error("there is no sector to use")]
    NoArea,
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
}

impl From<QueueError> for LoadError {
    fn from(error: QueueError) -> Self {
        FrontEndError::from(error).into()
    }
}

impl From<GuestError> for LoadError {
    fn from(error: GuestError) -> Self {
        FrontEndError::from(error).into()
    }
}

struct Sentences<'findings>(&'findings [Finding]);

impl fmt::Display for Sentences<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} wrong sectors", self.0.len())?;
        self.0.iter().take(FINDINGS_MAX).try_for_each(|finding| write!(f, "\n  {finding}"))
    }
}
