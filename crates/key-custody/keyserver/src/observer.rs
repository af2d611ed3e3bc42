//! The interface to the audit record: every operation and refusal is recorded durably before the
//! answer leaves.
//!
//! "No durable record, no release": [`Observer::record`] is awaited after a request was executed
//! and before its response is sent. If it fails, the response is discarded, key material is wiped,
//! and the client receives an error. The request's changes stay; the next successful record shows
//! them.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use strongroom_keys::ProviderKey;
use strongroom_kmip::protocol::{Operation, ResultReason};

use crate::access::{ClientId, Identity};
use crate::grant::{GrantId, VmGeneration, VmId};
use crate::objects::clock::UnixSeconds;
use crate::objects::id::ObjectId;

/// The future of [`Observer::record`].
pub type Recording<'a> = Pin<Box<dyn Future<Output = Result<(), RecordError>> + Send + 'a>>;

/// Keeps the record.
pub trait Observer: Send + Sync {
    /// Records the events of one request, in their order. The future completes when they are
    /// durable. If it is dropped, they may still become durable.
    fn record<'a>(&'a self, events: &'a [Event]) -> Recording<'a>;
}

/// The record cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record cannot be kept: {0}")]
pub struct RecordError(pub String);

/// One operation that was done or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time.
    pub at: UnixSeconds,
    /// Who asked.
    pub who: Who,
    /// The operation; `None` if it could not be decoded.
    pub operation: Option<Operation>,
    /// The objects; more than one for a Re-key (old, new) and a wrapped Get (key, wrapping key).
    pub objects: Vec<ObjectId>,
    /// The outcome.
    pub outcome: EventOutcome,
    /// The grant that was used or refused.
    pub grant: Option<ShownGrant>,
    /// The key's place at an external provider, if one was asked for it.
    pub upstream: Option<ProviderKey>,
}

/// A grant that came with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShownGrant {
    /// It was accepted.
    Accepted {
        /// Its id.
        id: GrantId,
        /// The VM.
        vm: VmId,
        /// The VM's generation.
        generation: VmGeneration,
        /// Who signed it.
        signer: ClientId,
        /// Whether the request used it up.
        is_used: bool,
    },
    /// It was refused, and its contents are not trusted.
    Refused {
        /// The id that it claims.
        claimed: Option<GrantId>,
    },
}

/// The client of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The identity from the certificate.
    pub identity: Arc<Identity>,
    /// The client's address.
    pub address: Option<SocketAddr>,
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventOutcome {
    /// A secret was released, plain or wrapped.
    Released {
        /// Whether it was wrapped under another key.
        wrapped: bool,
    },
    /// It was done without releasing a secret.
    Done,
    /// It was refused or failed, and nothing changed.
    Refused {
        /// The reason that the client received.
        reason: ResultReason,
        /// The reason in words; for a grant, the code of its refusal.
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
