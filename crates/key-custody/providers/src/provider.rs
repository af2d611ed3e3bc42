//! The interface of every key provider.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderKeyId, WrappedKek};
use strongroom_memory::secret::SecretBytes;

use crate::error::ProviderError;

/// A source of KEKs. Calls block, for at most [`CALL_LIMIT`](crate::CALL_LIMIT).
pub trait KeyProvider: Send + Sync {
    /// Creates an active AES-256 key. A second call with the same request returns the key of the
    /// first, if the provider can find keys by such a mark.
    fn create(&self, request: KeyRequestId) -> Result<NewKey, ProviderError>;

    /// Creates a key like [`create`](Self::create) without fetching it, for a control plane, which
    /// never sees keys.
    fn create_unseen(&self, _: KeyRequestId) -> Result<UnseenKey, ProviderError> {
        Err(ProviderError::Unsupported(
            "this kind of provider shows every key that it makes to whoever made it",
        ))
    }

    /// The key itself, for sealing and opening: an active key or, for opening only, a deactivated
    /// one.
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError>;

    /// The key itself, to seal new data under; only while it is active. Providers whose keys are
    /// never taken out of use return the same as [`fetch`](Self::fetch).
    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.fetch(key)
    }

    /// The key itself, even if it was revoked as compromised, to move volumes to another key.
    fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError>;

    /// The key's state and dates, without the key.
    fn facts(&self, key: &ProviderKey) -> Result<KeyFacts, ProviderError>;

    /// Activates a key that others registered.
    fn activate(&self, key: &ProviderKey) -> Result<(), ProviderError>;

    /// Takes a key out of use.
    fn revoke(&self, key: &ProviderKey, why: Revocation) -> Result<(), ProviderError>;

    /// Destroys a key that was taken out of use. The data it protects is lost.
    fn destroy(&self, key: &ProviderKey) -> Result<(), ProviderError>;

    /// The keys that this program made there, at most [`LISTED_KEYS_MAX`].
    fn list(&self) -> Result<Vec<ListedKey>, ProviderError>;

    /// The last known health of its servers, in order of preference. It contacts no server.
    fn health(&self) -> Vec<ServerHealth>;
}

/// The most keys that [`KeyProvider::list`] returns, so that answers fit a message.
pub const LISTED_KEYS_MAX: usize = 1000;

/// A key that was just made.
#[derive(Debug)]
pub struct NewKey {
    /// Its name at the provider, or the key that it is wrapped under.
    pub key: ProviderKeyId,
    /// The wrapped key, of providers that keep none.
    pub wrapped: Option<WrappedKek>,
    /// The key.
    pub secret: SecretBytes,
}

/// A key that was just made, and that its maker has not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenKey {
    /// Its name at the provider, or the key that it is wrapped under.
    pub key: ProviderKeyId,
    /// The wrapped key, of providers that keep none.
    pub wrapped: Option<WrappedKek>,
}

/// Why a key is taken out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// It has expired or was replaced. It still opens envelopes.
    Superseded,
    /// It may be known to an attacker. Holders wipe it.
    Compromised,
}

/// The state of a key (KMIP 1.4, section 3.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// Created, and not usable yet.
    PreActive,
    /// In use.
    Active,
    /// Opens envelopes, and seals no new ones.
    Deactivated,
    /// May be known to an attacker.
    Compromised,
    /// Gone.
    Destroyed,
}

/// The state and dates of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Its state.
    pub state: KeyState,
    /// When it was made.
    pub created: Option<SystemTime>,
    /// When it became active.
    pub activated: Option<SystemTime>,
    /// When the provider will take it out of use, or did: the earlier of Protect Stop and
    /// Deactivation Date.
    pub deactivates: Option<SystemTime>,
}

impl KeyFacts {
    /// When the key should be replaced: when the provider takes it out of use or, if earlier, at
    /// the end of its cryptoperiod (NIST SP 800-57 part 1, 5.3).
    pub fn expires(&self, cryptoperiod: Option<Duration>) -> Option<SystemTime> {
        let begun = self.activated.or(self.created);
        let period_ends = begun.zip(cryptoperiod).and_then(|(begun, period)| begun.checked_add(period));
        [self.deactivates, period_ends].into_iter().flatten().min()
    }
}

/// A key in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedKey {
    /// Its name at the provider.
    pub key: ProviderKeyId,
    /// The provider's facts about the key.
    pub facts: KeyFacts,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// It has no known problem.
    Up,
    /// It left a request waiting; others are asked first.
    Slow,
    /// It failed; others are asked first.
    Down,
    /// It answers again, and must keep doing so before it is preferred.
    Recovering,
}

/// The health of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerHealth {
    /// Its address.
    pub server: String,
    /// Its state.
    pub state: ServerState,
    /// Requests so far, health checks left out.
    pub requests: u64,
    /// How many of them the server left without an answer.
    pub failures: u64,
    /// How long an answer took on average, in microseconds.
    pub latency_mean_us: u64,
    /// The longest time an answer took, in microseconds.
    pub latency_max_us: u64,
    /// The last failure.
    pub last_failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_expires_at_the_earlier_of_its_dates() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut facts =
            KeyFacts { state: KeyState::Active, created: Some(at(100)), activated: None, deactivates: None };
        assert_eq!(facts.expires(None), None);
        assert_eq!(facts.expires(Some(Duration::from_secs(50))), Some(at(150)));
        facts.activated = Some(at(200));
        assert_eq!(facts.expires(Some(Duration::from_secs(50))), Some(at(250)));
        facts.deactivates = Some(at(240));
        assert_eq!(facts.expires(Some(Duration::from_secs(50))), Some(at(240)));
        assert_eq!(facts.expires(Some(Duration::MAX)), Some(at(240)));
    }
}
