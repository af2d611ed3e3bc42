//! KEKs that a transit engine creates and unwraps.

use std::time::Instant;

use base64ct::{Base64, Encoding};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use strongroom_keys::{KEK_BYTES, KeyRequestId, ProviderKey, ProviderKeyId, WrappedKek};
use strongroom_memory::secret::SecretBytes;

use super::http::{Answer, Http};
use super::login::Login;
use crate::config::{VaultConfig, misconfigured};
use crate::error::ProviderError;
use crate::provider::{
    KeyFacts, KeyProvider, KeyState, ListedKey, NewKey, Revocation, ServerHealth, ServerState, UnseenKey,
};

/// A transit engine as a provider.
pub struct VaultProvider {
    http: Http,
    login: Login,
    mount: String,
    key: ProviderKeyId,
    record: Mutex<ServerHealth>,
}

#[derive(Deserialize)]
struct Envelope<Data> {
    data: Data,
}

/// The answer of `datakey/plaintext` and `decrypt`. The plain text is borrowed from the answer's
/// buffer, which is wiped.
#[derive(Deserialize)]
struct Plain<'a> {
    plaintext: &'a str,
    ciphertext: Option<&'a str>,
}

#[derive(Deserialize)]
struct Wrapped<'a> {
    ciphertext: &'a str,
}

#[derive(Serialize)]
struct CiphertextRequest<'a> {
    ciphertext: &'a str,
}

/// The state of a transit key.
#[derive(Deserialize)]
struct TransitKey {
    min_decryption_version: u64,
    #[serde(default)]
    soft_deleted: bool,
}

impl VaultProvider {
    /// The provider of a configuration. It connects to no server yet.
    ///
    /// # Errors
    /// [`ProviderError::Misconfigured`].
    pub fn new(config: &VaultConfig) -> Result<Self, ProviderError> {
        let record = ServerHealth {
            server: config.url.clone(),
            state: ServerState::Up,
            requests: 0,
            failures: 0,
            latency_mean_us: 0,
            latency_max_us: 0,
            last_failure: None,
        };
        Ok(Self {
            http: Http::new(config)?,
            login: Login::new(config.login.clone()),
            mount: config.mount.clone(),
            key: config.key.parse().map_err(misconfigured)?,
            record: Mutex::new(record),
        })
    }

    /// Checks that the Vault is initialised, unsealed and active, and that our login may read the
    /// transit key.
    ///
    /// # Errors
    /// The first failed condition.
    pub fn check(&self) -> Result<(), ProviderError> {
        self.transit_key().map(drop)
    }

    /// The same KEK under the newest version of the engine's key. This process never sees the plain
    /// KEK.
    ///
    /// # Errors
    /// [`ProviderError`].
    pub fn rewrap(&self, key: &ProviderKey) -> Result<WrappedKek, ProviderError> {
        let body = ciphertext_request(ciphertext_of(key)?)?;
        let path = format!("{}/rewrap/{}", self.mount, key.key);
        let answer = self.ask(&path, Some(&body), "rewrap")?;
        let parsed: Envelope<Wrapped<'_>> = self.parse(&answer)?;
        WrappedKek::new(parsed.data.ciphertext.as_bytes().to_vec()).map_err(misconfigured)
    }

    fn transit_key(&self) -> Result<TransitKey, ProviderError> {
        let answer =
            self.ask(&format!("{}/keys/{}", self.mount, self.key), None, "reading the transit key")?;
        let parsed: Envelope<TransitKey> = self.parse(&answer)?;
        Ok(parsed.data)
    }

    /// Sends a request, and again with a new token if that of an earlier login is refused.
    fn ask(&self, path: &str, body: Option<&[u8]>, doing: &str) -> Result<Answer, ProviderError> {
        let ask_once = || {
            let token = self.login.token(&self.http)?;
            match body {
                Some(body) => self.http.post(path, Some(&token), body),
                None => self.http.get(path, Some(&token)),
            }
        };
        let begun = Instant::now();
        let mut answer = ask_once();
        if matches!(&answer, Ok(answer) if answer.status == 403) && self.login.forget() {
            answer = ask_once();
        }
        let answer = answer.and_then(|answer| {
            if answer.is_success() { Ok(answer) } else { Err(answer.error(self.http.url(), doing)) }
        });
        self.keep_account(begun, answer.as_ref().err());
        answer
    }

    fn keep_account(&self, begun: Instant, error: Option<&ProviderError>) {
        let mut record = self.record.lock();
        record.requests += 1;
        match error {
            Some(error) if error.ends_by_itself() => {
                record.failures += 1;
                record.state = ServerState::Down;
                record.last_failure = Some(error.to_string());
            }
            _ => {
                let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                let answers = record.requests - record.failures;
                record.latency_max_us = record.latency_max_us.max(took_us);
                let sum_us = record.latency_mean_us.saturating_mul(answers - 1).saturating_add(took_us);
                record.latency_mean_us = sum_us / answers;
                record.state = ServerState::Up;
            }
        }
    }

    fn parse<'a, Data: Deserialize<'a>>(&self, answer: &'a Answer) -> Result<Data, ProviderError> {
        // The parser's message may quote the answer, and with it a key.
        serde_json::from_slice(&answer.body).map_err(|_| ProviderError::Unavailable {
            reason: format!("{}: its answer makes no sense; is this a Vault?", self.http.url()),
        })
    }

    fn kek(&self, base64: &str) -> Result<SecretBytes, ProviderError> {
        let mut secret = SecretBytes::zeroed(KEK_BYTES)?;
        match Base64::decode(base64, secret.expose_mut()) {
            Ok(decoded) if decoded.len() == KEK_BYTES => Ok(secret),
            _ => Err(ProviderError::Refused {
                reason: format!("{}: what it opened is no AES-256 key", self.http.url()),
            }),
        }
    }
}

impl KeyProvider for VaultProvider {
    fn create(&self, _: KeyRequestId) -> Result<NewKey, ProviderError> {
        // The engine stores nothing, so a repeated request leaves nothing behind.
        let path = format!("{}/datakey/plaintext/{}", self.mount, self.key);
        let answer = self.ask(&path, Some(br#"{"bits":256}"#), "making a data key")?;
        let parsed: Envelope<Plain<'_>> = self.parse(&answer)?;
        let Some(ciphertext) = parsed.data.ciphertext else {
            return Err(ProviderError::Refused {
                reason: format!("{}: it gives no wrapped key", self.http.url()),
            });
        };
        let wrapped = WrappedKek::new(ciphertext.as_bytes().to_vec()).map_err(misconfigured)?;
        Ok(NewKey { key: self.key.clone(), wrapped: Some(wrapped), secret: self.kek(parsed.data.plaintext)? })
    }

    fn create_unseen(&self, _: KeyRequestId) -> Result<UnseenKey, ProviderError> {
        let path = format!("{}/datakey/wrapped/{}", self.mount, self.key);
        let answer = self.ask(&path, Some(br#"{"bits":256}"#), "making a data key")?;
        let parsed: Envelope<Wrapped<'_>> = self.parse(&answer)?;
        let wrapped = WrappedKek::new(parsed.data.ciphertext.as_bytes().to_vec()).map_err(misconfigured)?;
        Ok(UnseenKey { key: self.key.clone(), wrapped: Some(wrapped) })
    }

    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        let body = ciphertext_request(ciphertext_of(key)?)?;
        let path = format!("{}/decrypt/{}", self.mount, key.key);
        let answer = self.ask(&path, Some(&body), "opening a wrapped key")?;
        let parsed: Envelope<Plain<'_>> = self.parse(&answer)?;
        self.kek(parsed.data.plaintext)
    }

    fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.fetch(key)
    }

    fn facts(&self, key: &ProviderKey) -> Result<KeyFacts, ProviderError> {
        let version = version_of(ciphertext_of(key)?);
        let transit = self.transit_key()?;
        // In transit, a key taken out of use is a version below the least that may decrypt.
        let gone =
            transit.soft_deleted || version.is_some_and(|version| version < transit.min_decryption_version);
        let state = if gone { KeyState::Destroyed } else { KeyState::Active };
        Ok(KeyFacts { state, created: None, activated: None, deactivates: None })
    }

    fn activate(&self, _: &ProviderKey) -> Result<(), ProviderError> {
        Ok(())
    }

    fn revoke(&self, _: &ProviderKey, _: Revocation) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported(
            "a transit engine takes versions of its own key out of use, not single KEKs; raise its min_decryption_version",
        ))
    }

    fn destroy(&self, _: &ProviderKey) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported(
            "a transit engine keeps no KEKs; whoever deletes the volume deletes its wrapped KEK",
        ))
    }

    fn list(&self) -> Result<Vec<ListedKey>, ProviderError> {
        Err(ProviderError::Unsupported("a transit engine keeps no KEKs; each volume has its own, wrapped"))
    }

    fn health(&self) -> Vec<ServerHealth> {
        vec![self.record.lock().clone()]
    }
}

/// The wrapped key of a descriptor, as Vault wrote it: `vault:v1:` and base64.
fn ciphertext_of(key: &ProviderKey) -> Result<&str, ProviderError> {
    let wrapped = key.wrapped.as_ref().and_then(|wrapped| std::str::from_utf8(wrapped.as_bytes()).ok());
    wrapped.ok_or_else(|| misconfigured("the key carries nothing that a transit engine could open"))
}

fn version_of(ciphertext: &str) -> Option<u64> {
    ciphertext.strip_prefix("vault:v")?.split(':').next()?.parse().ok()
}

fn ciphertext_request(ciphertext: &str) -> Result<Vec<u8>, ProviderError> {
    serde_json::to_vec(&CiphertextRequest { ciphertext }).map_err(misconfigured)
}
