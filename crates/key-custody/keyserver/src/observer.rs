//! The seam to the record: whatever is done or refused is written down durably before the answer
//! leaves.
//!
//! "No durable record, no release": [`Observer::record`] is awaited after a request has been worked
//! through and before its response is sent. If it fails, the response is thrown away, key material
//! is wiped, and the client is told that nothing can be given out. What the request changed stays
//! changed; the next record that succeeds shows it.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use strongroom_keys::ProviderKey;
use strongroom_kmip::protocol::{Operation, ResultReason};

use crate::access::{ClientId, Identity};
use crate::grant::{GrantId, VmGeneration, VmId};
use crate::objects::clock::UnixSeconds;
use crate::objects::id::ObjectId;

/// What an [`Observer`] gives back.
pub type Recording<'a> = Pin<Box<dyn Future<Output = Result<(), RecordError>> + Send + 'a>>;

/// Keeps the record.
pub trait Observer: Send + Sync {
    /// Writes the events of one request down, in their order. The future is done when they are
    /// durable; it may be dropped, and they may be durable all the same.
    fn record<'a>(&'a self, events: &'a [Event]) -> Recording<'a>;
}

/// The record cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be kept: {0}")]
pub struct RecordError(pub String);

/// One thing that was done or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: UnixSeconds,
    /// Who asked.
    pub who: Who,
    /// What was asked for; `None` where that could not be read.
    pub operation: Option<Operation>,
    /// Of which objects; more than one for a Re-key (old, new) and a wrapped Get (key, wrapping
    /// key).
    pub objects: Vec<ObjectId>,
    /// How it ended.
    pub outcome: EventOutcome,
    /// The grant that it was done under, or that was refused.
    pub grant: Option<ShownGrant>,
    /// Where an external provider keeps the key, if one was asked for it.
    pub upstream: Option<ProviderKey>,
}

/// A grant that came with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShownGrant {
    /// It was taken.
    Redeemed {
        /// Its id.
        id: GrantId,
        /// For which VM.
        vm: VmId,
        /// For which generation of it.
        generation: VmGeneration,
        /// Who signed it.
        signer: ClientId,
    },
    /// It was refused, and nothing that it says is believed.
    Refused {
        /// The id that it claims.
        claimed: Option<GrantId>,
    },
}

/// Who asked for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// As the certificate says.
    pub identity: Identity,
    /// From where.
    pub address: Option<SocketAddr>,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventOutcome {
    /// A secret was given out, in the clear or under a wrap.
    Released {
        /// Whether it was wrapped under another key.
        wrapped: bool,
    },
    /// It was done, and no secret was given out.
    Done,
    /// It was refused or failed, and nothing changed.
    Refused {
        /// What the client was told.
        reason: ResultReason,
        /// Why, in words: for a grant, the word of its refusal.
        message: String,
    },
    /// It was done, and undone because a later item of its batch failed.
    Undone,
}

impl fmt::Display for EventOutcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released { wrapped: false } => formatter.write_str("released"),
            Self::Released { wrapped: true } => formatter.write_str("released wrapped"),
            Self::Done => formatter.write_str("done"),
            Self::Refused { reason, message } => write!(formatter, "refused, {reason}: {message}"),
            Self::Undone => formatter.write_str("undone"),
        }
    }
}
