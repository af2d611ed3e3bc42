//! What every key provider does.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderKeyId, WrappedKek};
use strongroom_memory::secret::SecretBytes;

use crate::error::ProviderError;

/// A source of KEKs. Calls block, and end: none takes longer than
/// [`CALL_LIMIT`](crate::CALL_LIMIT).
pub trait KeyProvider: Send + Sync {
    /// Makes an AES-256 key, active from now on. Asked again with the same request, it gives the
    /// key that the first call made, where the provider can find keys by such a mark at all.
    fn create(&self, request: KeyRequestId) -> Result<NewKey, ProviderError>;

    /// Makes a key as [`create`](Self::create) does, and does not ask for it: for a control plane,
    /// which never sees one.
    fn create_unseen(&self, _: KeyRequestId) -> Result<UnseenKey, ProviderError> {
        Err(ProviderError::Unsupported(
            "this kind of provider shows every key that it makes to whoever made it",
        ))
    }

    /// The key itself, for sealing and opening: active or, to open only, deactivated.
    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError>;

    /// The key itself, to seal something new under: only while it is active.
    /// Providers whose keys are never taken out of use give what [`fetch`](Self::fetch) gives.
    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.fetch(key)
    }

    /// The key itself, also one that was revoked as compromised: to move what it protects to
    /// another key.
    fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError>;

    /// In which state the key is, without the key.
    fn facts(&self, key: &ProviderKey) -> Result<KeyFacts, ProviderError>;

    /// Makes a key that was registered by others usable.
    fn activate(&self, key: &ProviderKey) -> Result<(), ProviderError>;

    /// Takes a key out of use.
    fn revoke(&self, key: &ProviderKey, why: Revocation) -> Result<(), ProviderError>;

    /// Destroys a key that was taken out of use. What it protects is gone with it.
    fn destroy(&self, key: &ProviderKey) -> Result<(), ProviderError>;

    /// The keys that this program made there, at most [`LISTED_KEYS_MAX`].
    fn list(&self) -> Result<Vec<ListedKey>, ProviderError>;

    /// How its servers are, in order of preference. Asks nobody: it tells what is known.
    fn health(&self) -> Vec<ServerHealth>;
}

/// The most keys that [`KeyProvider::list`] gives: answers stay within a message.
pub const LISTED_KEYS_MAX: usize = 1000;

/// A key that was just made.
#[derive(Debug)]
pub struct NewKey {
    /// What the provider calls it, or the key that it is wrapped under.
    pub key: ProviderKeyId,
    /// The wrapped key, of providers that keep none.
    pub wrapped: Option<WrappedKek>,
    /// The key.
    pub secret: SecretBytes,
}

/// A key that was just made, and that whoever made it has not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnseenKey {
    /// What the provider calls it, or the key that it is wrapped under.
    pub key: ProviderKeyId,
    /// The wrapped key, of providers that keep none.
    pub wrapped: Option<WrappedKek>,
}

/// Why a key is taken out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// Its time is over, or another one took its place. It still opens what it sealed.
    Superseded,
    /// Somebody may know it. Holders give it up.
    Compromised,
}

/// Where a key is in its life (KMIP 1.4, section 3.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// Made, not to be used yet.
    PreActive,
    /// In use.
    Active,
    /// Opens what it sealed.
    Deactivated,
    /// Somebody may know it.
    Compromised,
    /// Gone.
    Destroyed,
}

/// What a provider says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Where it is in its life.
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
    /// When the key should have been replaced: when the provider takes it out of use or, if
    /// earlier, when it has been active for its cryptoperiod (NIST SP 800-57 part 1, 5.3).
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
    /// What the provider says of it.
    pub facts: KeyFacts,
}

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    /// Nothing is known against it.
    Up,
    /// It left a request waiting; others are asked first.
    Slow,
    /// It failed; others are asked first.
    Down,
    /// It answers again, and must go on doing so before it is asked first.
    Recovering,
}

/// What is known of a server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerHealth {
    /// Its address.
    pub server: String,
    /// How it is.
    pub state: ServerState,
    /// Requests so far, health checks left out.
    pub requests: u64,
    /// How many of them the server left without an answer.
    pub failures: u64,
    /// How long an answer took on average, in microseconds.
    pub latency_mean_us: u64,
    /// The longest time an answer took, in microseconds.
    pub latency_max_us: u64,
    /// What the last failure was.
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
