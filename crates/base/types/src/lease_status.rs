//! The state of a provider's KEK that a process holds under a lease. It does not contain the KEK.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ProviderName;

/// The state of a KEK.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// Whether it is held.
    #[serde(flatten)]
    pub state: LeaseState,
    /// When this state began, in seconds since 1970-01-01 00:00 UTC.
    pub since_unix_seconds: u64,
    /// Why it is not held or not confirmed, if there is a reason.
    pub reason: Option<String>,
    /// Whether it has expired and should be replaced.
    pub expired: bool,
    /// The provider that is unavailable, if it is another one than the key's own, which is its
    /// broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<ProviderName>,
}

/// Whether a KEK is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum LeaseState {
    /// Held, and confirmed by its provider at the last renewal.
    Held,
    /// Held, but its provider cannot be reached or does not answer.
    Outage,
    /// Not held: it is unavailable, and is requested until it is available.
    Waiting,
    /// Not usable any more, and wiped.
    Revoked {
        /// The reason.
        how: RevokedHow,
    },
}

/// The reasons why a key is not usable any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevokedHow {
    /// It may be known to others.
    Compromised,
    /// It was destroyed.
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
            upstream: None,
        };
        let text =
            r#"{"state":"revoked","how":"compromised","since_unix_seconds":7,"reason":null,"expired":false}"#;
        assert_eq!(serde_json::to_string(&status).unwrap(), text);
        assert_eq!(serde_json::from_str::<LeaseStatus>(text).unwrap(), status);
        let held: LeaseStatus = serde_json::from_str(&text.replace("revoked", "held")).unwrap();
        assert_eq!(held.state, LeaseState::Held);
        let behind = LeaseStatus { upstream: Some("corp".parse().unwrap()), ..status };
        let text = text.replace("false}", r#"false,"upstream":"corp"}"#);
        assert_eq!(serde_json::to_string(&behind).unwrap(), text);
        assert_eq!(serde_json::from_str::<LeaseStatus>(&text).unwrap(), behind);
    }
}
