//! Events of a holder.

use std::time::SystemTime;

use strongroom_keys::{ProviderKey, RevokedHow};

/// An event of a key that is held or awaited. Each is reported once, when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HolderEvent {
    /// The provider does not answer for the key, or refuses to. A held key stays held; an awaited
    /// key is not available.
    Outage {
        /// The key.
        key: ProviderKey,
        /// The reason.
        reason: String,
    },
    /// The provider answers for the key again, and the key is held.
    Back {
        /// The key.
        key: ProviderKey,
    },
    /// The key must no longer be used, and was wiped.
    Revoked {
        /// The key.
        key: ProviderKey,
        /// The kind of revocation.
        how: RevokedHow,
    },
    /// The key has expired: replace it. It stays held, because it still opens envelopes.
    Expired {
        /// The key.
        key: ProviderKey,
        /// The time of expiry, if the provider states it.
        since: Option<SystemTime>,
    },
    /// An outage outlasted lease and allowance, or a refusal outlasted the lease. The key was
    /// wiped, and is now awaited.
    LeaseEnded {
        /// The key.
        key: ProviderKey,
    },
}
