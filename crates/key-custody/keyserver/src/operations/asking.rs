//! Requests of operations to external providers and to
//! [`Dependents`](crate::objects::dependents::Dependents).
//!
//! An operation does not wait. If it lacks an answer, it returns the request and its attempt is
//! dropped. The request is made between two attempts, where waiting is allowed, and the operation
//! is repeated with the answer.

use std::collections::HashMap;
use std::time::Instant;

use strongroom_keys::ProviderKey;
use strongroom_memory::secret::SecretBytes;

use crate::broker::UpstreamState;
use crate::failure::Failure;
use crate::objects::dependents::Unknown;
use crate::objects::id::ObjectId;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Asks the external provider of this key for the key.
    Key(ProviderKey),
    /// Asks it for the key's state.
    State(ProviderKey),
    /// Asks for the dependents of this object.
    Dependents(ObjectId),
}

/// The answers during one request. Dropped with it, which wipes the keys.
#[derive(Debug, Default)]
pub struct Answers {
    /// When providers must have answered, since the first of them was asked.
    pub(crate) deadline: Option<Instant>,
    pub(crate) keys: HashMap<ProviderKey, Result<SecretBytes, Failure>>,
    pub(crate) states: HashMap<ProviderKey, Result<UpstreamState, Failure>>,
    pub(crate) dependents: HashMap<ObjectId, Result<Vec<String>, Unknown>>,
}
