//! Errors of key providers.

use strongroom_keys::{Absence, ProviderName};
use strongroom_memory::secret::SecretError;
use thiserror::Error;

/// A provider that does not do what is asked, by its name.
#[derive(Debug, Error)]
#[error("key provider {name}: {error}")]
pub struct FailedProvider {
    /// Its name.
    pub name: ProviderName,
    /// Why.
    pub error: ProviderError,
}

/// Why a provider does not return, make or change a key. Each message names the next step; the
/// caller adds the provider and the key.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// No server can be reached. It ends by itself when a server is back.
    #[error("{reason}")]
    Unavailable {
        /// The attempts, server by server.
        reason: String,
    },
    /// The key's server is the broker of another provider, which is unavailable. It ends by itself
    /// when that is back.
    #[error("it comes from key provider {upstream}, which is unavailable: {reason}")]
    UpstreamUnavailable {
        /// The other provider.
        upstream: ProviderName,
        /// The key's name there, and the attempts.
        reason: String,
    },
    /// The server gives the key for another grant: none was sent, or one that is of no use any
    /// more.
    #[error("{reason}")]
    Ungranted {
        /// The server, and its message.
        reason: String,
    },
    /// A server refused. It ends when somebody changes the configuration or the permissions.
    #[error("{reason}")]
    Refused {
        /// The server, its message, and the next step.
        reason: String,
    },
    /// No server knows the key, and all were asked.
    #[error("no server of it has that key; was it created at another provider, or destroyed?")]
    NoSuchKey,
    /// The key was created but never activated.
    #[error("the key is not active yet; activate it at the key server")]
    NotActivated,
    /// The key was taken out of use: it still opens envelopes, but seals no new ones.
    #[error(
        "the key was taken out of use: it opens what it sealed, and nothing new is sealed under it; choose another one"
    )]
    Deactivated,
    /// The key was revoked as compromised: it opens envelopes only for re-keying.
    #[error(
        "the key was revoked as compromised; re-key what it protects with `strongroom volume rekey --kek`"
    )]
    Compromised,
    /// The key is gone for good.
    #[error("the key was destroyed; what it protects cannot be read any more")]
    Destroyed,
    /// This kind of provider has no such operation.
    #[error("{0}")]
    Unsupported(&'static str),
    /// The provider's configuration cannot work.
    #[error("{reason}")]
    Misconfigured {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl ProviderError {
    /// Whether the error may end by itself.
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::UpstreamUnavailable { .. })
    }

    /// Whether the key may be available later: when a server is back, or when somebody removes the
    /// obstacle.
    pub fn may_come_back(&self) -> bool {
        self.absence() != Absence::ForGood
    }

    /// What makes the key available.
    pub fn absence(&self) -> Absence {
        match self {
            Self::Unavailable { .. } | Self::Refused { .. } | Self::NotActivated => Absence::ForNow,
            Self::UpstreamUnavailable { upstream, .. } => Absence::Upstream(upstream.clone()),
            Self::Ungranted { .. } => Absence::Ungranted,
            Self::NoSuchKey
            | Self::Deactivated
            | Self::Compromised
            | Self::Destroyed
            | Self::Unsupported(_)
            | Self::Misconfigured { .. }
            | Self::Secret(_) => Absence::ForGood,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } | Self::UpstreamUnavailable { .. } => "provider_unavailable",
            Self::Refused { .. } | Self::Ungranted { .. } => "provider_refused",
            Self::NoSuchKey => "no_such_key",
            Self::NotActivated => "key_not_activated",
            Self::Deactivated => "key_deactivated",
            Self::Compromised => "key_compromised",
            Self::Destroyed => "key_destroyed",
            Self::Unsupported(_) => "provider_unsupported",
            Self::Misconfigured { .. } => "provider_misconfigured",
            Self::Secret(_) => "no_secret_memory",
        }
    }
}
