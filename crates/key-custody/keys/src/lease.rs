//! KEKs under a lease: who uses one for longer than a moment keeps no copy of its own.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::KeyError;
use crate::kek::Kek;
use crate::provider::ProviderKey;

/// Whoever holds the KEKs of providers in memory, for as long as their providers let it. Nothing here waits for a
/// provider: keys are asked for and confirmed in the background.
pub trait Leases: Send + Sync + fmt::Debug {
    /// Holds a KEK that its provider has just handed out, from now on.
    ///
    /// # Errors
    /// If it is no provider's, or cannot be held.
    fn hold(&self, kek: Kek) -> Result<(), KeyError>;

    /// Holds a KEK as soon as its provider hands it out. Does nothing for one that is held or waited for, or was revoked.
    fn hold_when_back(&self, key: &ProviderKey);

    /// The KEK, if it is held, for one use: it is wiped when its lease has ended and whoever uses it lets go of it.
    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>>;

    /// Wipes a KEK, or stops waiting for it.
    fn forget(&self, key: &ProviderKey);

    /// How a KEK stands; none for one that nobody asked to hold.
    fn status(&self, key: &ProviderKey) -> Option<LeaseStatus>;

    /// What becomes of a volume that is in use when its KEK is revoked.
    fn on_revocation(&self, key: &ProviderKey) -> OnRevocation;

    /// Readable from when a KEK stands otherwise than before until [`take_changes`](Self::take_changes).
    fn changed(&self) -> Option<BorrowedFd<'_>>;

    /// Whether something has changed since this was last asked.
    fn take_changes(&self) -> bool;
}

/// How a KEK stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Whether it is held.
    #[serde(flatten)]
    pub state: LeaseState,
    /// Since when: seconds since 1970-01-01 00:00 UTC.
    pub since_unix_seconds: u64,
    /// Why it is not held, or not confirmed, where there is a reason.
    pub reason: Option<String>,
    /// Whether its time is over: it should be replaced.
    pub expired: bool,
}

/// Whether a KEK is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LeaseState {
    /// Held, and its provider said so at the last renewal.
    Held,
    /// Held while its provider cannot be reached, or refuses to say.
    Outage,
    /// Not held: it cannot be had, and is asked for until it can.
    Waiting,
    /// Not to be used any more, and wiped.
    Revoked {
        /// How.
        how: RevokedHow,
    },
}

/// Why a key is not to be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevokedHow {
    /// Somebody may know it.
    Compromised,
    /// It is gone.
    Destroyed,
}

/// "revoked as compromised", "destroyed".
impl fmt::Display for RevokedHow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compromised => "revoked as compromised",
            Self::Destroyed => "destroyed",
        })
    }
}

/// What becomes of a volume that is in use when its KEK is revoked as compromised, or destroyed. The KEK is wiped either
/// way, and nobody opens the volume with it any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnRevocation {
    /// It goes on, with the DEKs that it was given.
    #[default]
    KeepServing,
    /// It is closed in order.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_as_documented() {
        let status = LeaseStatus {
            state: LeaseState::Revoked { how: RevokedHow::Compromised },
            since_unix_seconds: 7,
            reason: None,
            expired: false,
        };
        let text =
            r#"{"state":"revoked","how":"compromised","since_unix_seconds":7,"reason":null,"expired":false}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), text);
        assert_eq!(serde_json::from_str::<LeaseStatus>(text).unwrap(), status);
        let held: LeaseStatus = serde_json::from_str(&text.replace("revoked", "held")).unwrap();
        assert_eq!(held.state, LeaseState::Held);
    }
}
