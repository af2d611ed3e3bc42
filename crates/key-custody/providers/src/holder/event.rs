//! What a holder tells.

use std::time::SystemTime;

use strongroom_keys::{ProviderKey, RevokedHow};

/// Something that happened to a key that is held or waited for. Each is told once, when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderEvent {
    /// The provider does not answer for the key, or refuses to: a key that is held is held on, one
    /// that is waited for cannot be had.
    Outage {
        /// The key.
        key: ProviderKey,
        /// Why.
        reason: String,
    },
    /// The provider answers for the key again: it is held.
    Back {
        /// The key.
        key: ProviderKey,
    },
    /// The key is not to be used any more, and was wiped.
    Revoked {
        /// The key.
        key: ProviderKey,
        /// How.
        how: RevokedHow,
    },
    /// The key's time is over: replace it. It is held on, for it still opens what it sealed.
    Expired {
        /// The key.
        key: ProviderKey,
        /// Since when, if the provider says.
        since: Option<SystemTime>,
    },
    /// An outage outlasted lease and allowance, or a refusal the lease: the key was wiped. It is
    /// waited for from now on.
    LeaseEnded {
        /// The key.
        key: ProviderKey,
    },
}
