//! The interface to external providers.

use std::fmt;

use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_memory::secret::SecretBytes;

/// Reaches external providers. Calls block, up to each provider's own deadline.
pub trait Upstream: fmt::Debug + Send + Sync {
    /// The key itself, whether active, deactivated or compromised: the caller checks the state
    /// separately, and decides.
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, UpstreamError>;

    /// The key's state.
    fn state(&self, key: &ProviderKey) -> Result<UpstreamState, UpstreamError>;

    /// Has a key made, without fetching it. A second call with the same request returns the same
    /// key, if the provider can find it.
    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<ProviderKey, UpstreamError>;

    /// The reachable providers.
    fn providers(&self) -> Vec<ProviderName>;
}

/// A key's state at its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamState {
    /// In use.
    Active,
    /// It still opens envelopes.
    Deactivated,
    /// It may be known to an attacker.
    Compromised,
}

/// Why a call to a provider failed. The reason is for people, and names no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// It cannot be reached now.
    #[error("{reason}")]
    Unavailable {
        /// The attempts.
        reason: String,
    },
    /// It refuses, or is not configured here.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: String,
    },
    /// It does not, or no longer, have the key.
    #[error("{reason}")]
    Gone {
        /// The provider's message.
        reason: String,
    },
}
