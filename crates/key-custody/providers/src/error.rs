//! Why a provider does not give, make or change a key.

use strongroom_memory::secret::SecretError;
use thiserror::Error;

/// Why not. Each says what to do; which provider and key it was, the caller knows and adds.
#[derive(Debug, Error)]
pub enum ProviderError {
    /// Nobody can be asked now. It ends by itself when a server is back.
    #[error("{reason}")]
    Unavailable {
        /// What was tried, server by server.
        reason: String,
    },
    /// A server answered, and said no. It ends when somebody changes something.
    #[error("{reason}")]
    Refused {
        /// Which server, what it said, what to do.
        reason: String,
    },
    /// Every server was asked, and none knows the key.
    #[error("no server of it has that key; was it created at another provider, or destroyed?")]
    NoSuchKey,
    /// The key was made and never activated.
    #[error("the key is not active yet; activate it at the key server")]
    NotActivated,
    /// The key was taken out of use: it opens what it sealed.
    #[error(
        "the key was taken out of use: it opens what it sealed, and nothing new is sealed under it; choose another one"
    )]
    Deactivated,
    /// The key was revoked as compromised: it opens what it sealed for re-keying alone.
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
    /// The provider is not set up so that it can work.
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
    /// Whether it may be over by itself.
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the key may be had later: when a server is back, or when somebody mends or allows
    /// what is in the way.
    pub fn may_come_back(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Refused { .. } | Self::NotActivated)
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "provider_unavailable",
            Self::Refused { .. } => "provider_refused",
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
