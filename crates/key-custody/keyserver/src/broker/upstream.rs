//! The seam to external providers.

use std::fmt;

use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_memory::secret::SecretBytes;

/// Reaches external providers. Calls block, and end: each has a deadline of the provider's own.
pub trait Upstream: fmt::Debug + Send + Sync {
    /// The key itself, whether it is active, deactivated or compromised: who asks is told the
    /// state, and decides.
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, UpstreamError>;

    /// Where the key is in its life.
    fn state(&self, key: &ProviderKey) -> Result<UpstreamState, UpstreamError>;

    /// Has a key made, without asking for it. Asked again with the same request, the provider gives
    /// the same one, where it can.
    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<ProviderKey, UpstreamError>;

    /// The providers that are reached.
    fn providers(&self) -> Vec<ProviderName>;
}

/// Where a provider says that a key is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamState {
    /// In use.
    Active,
    /// It opens what it sealed.
    Deactivated,
    /// Somebody may know it.
    Compromised,
}

/// Why a provider does not do what it was asked. The reason is for people, and names no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// It cannot be reached now.
    #[error("{reason}")]
    Unavailable {
        /// What was tried.
        reason: String,
    },
    /// It says no, or is none that is reached from here.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// It does not have the key, or has it no longer.
    #[error("{reason}")]
    Gone {
        /// In its words.
        reason: String,
    },
}
