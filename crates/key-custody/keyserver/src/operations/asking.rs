//! What operations have to ask of others: of external providers, and of whoever knows what needs a
//! key.
//!
//! An operation does not wait. One that lacks an answer says what it wants to ask, and nothing of
//! it counts; it is asked between two attempts, where there may be waiting, and the operation is
//! done again with the answer.

use std::collections::HashMap;

use strongroom_keys::ProviderKey;
use strongroom_memory::secret::SecretBytes;

use super::failure::Failure;
use crate::broker::UpstreamState;
use crate::objects::dependents::Unknown;
use crate::objects::id::ObjectId;

/// What is to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The external provider that keeps this key, for it.
    Key(ProviderKey),
    /// The same, for where the key is in its life.
    State(ProviderKey),
    /// What needs this object.
    Dependents(ObjectId),
}

/// What was answered while one request was worked on. Dropped with it, which wipes the keys.
#[derive(Debug, Default)]
pub struct Answers {
    pub(crate) keys: HashMap<ProviderKey, Result<SecretBytes, Failure>>,
    pub(crate) states: HashMap<ProviderKey, Result<UpstreamState, Failure>>,
    pub(crate) dependents: HashMap<ObjectId, Result<Vec<String>, Unknown>>,
}
