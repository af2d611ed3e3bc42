//! Keys through KMIP operations. Re-key is not used: a new key is created, and the DEKs under the
//! old one are wrapped again, which works with every server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strongroom_keys::{KEK_BYTES, KeyRequestId, ProviderKey, ProviderKeyId};
use strongroom_kmip::client::{Client, ClientError, GrantedKey, NewKey as NewKmipKey};
use strongroom_kmip::message::{GetAttributesRequest, RequestPayload, ResponsePayload};
use strongroom_kmip::protocol::{AttributeName, AttributeValue, ResultReason, RevocationReasonCode, State};
use strongroom_kmip::ttlv::DateTime;
use strongroom_memory::secret::SecretBytes;

use super::cluster::{Asked, Cluster};
use crate::config::{KmipConfig, misconfigured};
use crate::error::ProviderError;
use crate::grants::{GrantSource, KeyGrant};
use crate::provider::{
    KeyFacts, KeyProvider, KeyState, LISTED_KEYS_MAX, ListedKey, NewKey, Revocation, ServerHealth, UnseenKey,
};

/// The Object Group of every key that this program makes, by which keys are listed.
pub const KEY_GROUP: &str = "strongroom";

/// How many keys one message of a listing covers.
const LISTED_IN_ONE_MESSAGE: usize = 50;

/// A cluster of KMIP servers as a provider.
pub struct KmipProvider {
    cluster: Cluster,
    named_keys: bool,
    grants: Option<Arc<dyn GrantSource>>,
}

/// A key together with its attributes.
struct Fetched {
    facts: KeyFacts,
    secret: SecretBytes,
}

impl Fetched {
    /// The key, if it may seal new data.
    fn into_sealing_key(self) -> Result<SecretBytes, ProviderError> {
        match self.facts.state {
            KeyState::Active => Ok(self.secret),
            KeyState::PreActive => Err(ProviderError::NotActivated),
            KeyState::Deactivated => Err(ProviderError::Deactivated),
            KeyState::Compromised => Err(ProviderError::Compromised),
            KeyState::Destroyed => Err(ProviderError::Destroyed),
        }
    }
}

impl KmipProvider {
    /// The provider of a configuration. It connects to no server yet.
    ///
    /// # Errors
    /// [`ProviderError::Misconfigured`].
    pub fn new(config: &KmipConfig) -> Result<Self, ProviderError> {
        Ok(Self { cluster: Cluster::new(config)?, named_keys: config.named_keys, grants: None })
    }

    /// The same, and sends a grant with each fetch of a key that has one.
    #[must_use]
    pub fn with_grants(self, grants: Option<Arc<dyn GrantSource>>) -> Self {
        Self { grants, ..self }
    }

    /// The servers.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn fetched(&self, key: &ProviderKey) -> Result<Fetched, ProviderError> {
        if let Some(grants) = &self.grants
            && let Some(grant) = grants.take(&key.key)
        {
            return self.fetched_under(grant, grants.as_ref(), key);
        }
        let id = key.key.to_string();
        self.cluster.call(move |client| {
            let facts = facts_of(client, &id)?;
            // The key of a destroyed object is not requested: the refusal would differ between
            // servers.
            let secret = match facts.state {
                KeyState::Destroyed => SecretBytes::zeroed(0)?,
                _ => client.get(&id)?.secret,
            };
            Ok(Fetched { facts, secret })
        })
    }
}

impl KmipProvider {
    /// The template of a key that can be found by its request.
    fn wanted(&self, request: KeyRequestId) -> NewKmipKey {
        let mut wanted = NewKmipKey::aes_256();
        if self.named_keys {
            wanted.unique_name = Some(format!("{KEY_GROUP}-{request}"));
            wanted.attributes = vec![AttributeValue::ObjectGroup(KEY_GROUP.to_owned())];
        }
        wanted
    }

    /// Fetches a key under a grant. The first server that may have seen it uses it up, unless it
    /// says that the provider behind it is unavailable.
    fn fetched_under(
        &self,
        grant: KeyGrant,
        grants: &dyn GrantSource,
        key: &ProviderKey,
    ) -> Result<Fetched, ProviderError> {
        let outcome = self.cluster.call_once(|client| {
            let GrantedKey { attributes, key } =
                client.get_granted(key.key.as_str(), &FACTS, grant.bytes())?;
            let facts = facts(attributes);
            let secret = match (facts.state, key) {
                (KeyState::Destroyed, _) => SecretBytes::zeroed(0)?,
                (_, Ok(key)) => key.secret,
                (_, Err(refusal)) => {
                    return Err(ClientError::Refused { server: client.server().clone(), refusal });
                }
            };
            Ok(Fetched { facts, secret })
        });
        outcome.map_err(|(error, asked)| {
            if asked == Asked::No || matches!(error, ProviderError::UpstreamUnavailable { .. }) {
                grants.put_back(grant);
            }
            error
        })
    }
}

impl KeyProvider for KmipProvider {
    fn create(&self, request: KeyRequestId) -> Result<NewKey, ProviderError> {
        let wanted = self.wanted(request);
        let (id, secret) = self.cluster.call(move |client| {
            let id = created(client, &wanted)?;
            let secret = client.get(&id)?.secret;
            Ok((id, secret))
        })?;
        if secret.len() != KEK_BYTES {
            return Err(refused(format!(
                "the server made a key of {} bytes instead of {KEK_BYTES}",
                secret.len()
            )));
        }
        Ok(NewKey { key: key_id(&id)?, wrapped: None, secret })
    }

    fn create_unseen(&self, request: KeyRequestId) -> Result<UnseenKey, ProviderError> {
        let wanted = self.wanted(request);
        let id = self.cluster.call(move |client| created(client, &wanted))?;
        Ok(UnseenKey { key: key_id(&id)?, wrapped: None })
    }

    fn fetch(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        match self.fetched(key)? {
            Fetched { facts: KeyFacts { state: KeyState::Deactivated, .. }, secret } => Ok(secret),
            fetched => fetched.into_sealing_key(),
        }
    }

    fn fetch_to_seal(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        self.fetched(key)?.into_sealing_key()
    }

    fn fetch_for_rekey(&self, key: &ProviderKey) -> Result<SecretBytes, ProviderError> {
        let Fetched { facts, secret } = self.fetched(key)?;
        if facts.state == KeyState::Destroyed { Err(ProviderError::Destroyed) } else { Ok(secret) }
    }

    fn facts(&self, key: &ProviderKey) -> Result<KeyFacts, ProviderError> {
        let id = key.key.to_string();
        self.cluster.call(move |client| facts_of(client, &id))
    }

    fn activate(&self, key: &ProviderKey) -> Result<(), ProviderError> {
        let id = key.key.to_string();
        self.cluster.call(move |client| {
            client.activate(&id).or_else(|error| done_before(client, &id, error, &[State::Active]))
        })
    }

    fn revoke(&self, key: &ProviderKey, why: Revocation) -> Result<(), ProviderError> {
        let id = key.key.to_string();
        let (code, outcome) = match why {
            Revocation::Superseded => (RevocationReasonCode::Superseded, [State::Deactivated; 2]),
            Revocation::Compromised => {
                (RevocationReasonCode::KeyCompromise, [State::Compromised, State::DestroyedCompromised])
            }
        };
        self.cluster.call(move |client| {
            client.revoke(&id, code, "").or_else(|error| done_before(client, &id, error, &outcome))
        })
    }

    fn destroy(&self, key: &ProviderKey) -> Result<(), ProviderError> {
        let id = key.key.to_string();
        self.cluster.call(move |client| client.destroy(&id))
    }

    fn list(&self) -> Result<Vec<ListedKey>, ProviderError> {
        if !self.named_keys {
            return Err(ProviderError::Unsupported(
                "keys without names cannot be listed; volumes say which they need",
            ));
        }
        let listed = self.cluster.call(|client| {
            let group = AttributeValue::ObjectGroup(KEY_GROUP.to_owned());
            let ids = client.locate(vec![group], u16::try_from(LISTED_KEYS_MAX).unwrap_or(u16::MAX))?;
            let mut listed = Vec::with_capacity(ids.len());
            for some in ids.chunks(LISTED_IN_ONE_MESSAGE) {
                listed.extend(facts_of_some(client, some)?);
            }
            Ok(listed)
        })?;
        listed.into_iter().map(|(id, facts)| Ok(ListedKey { key: key_id(&id)?, facts })).collect()
    }

    fn health(&self) -> Vec<ServerHealth> {
        self.cluster.health()
    }
}

/// Creates and activates a key, and returns its identifier.
fn created(client: &Client, wanted: &NewKmipKey) -> Result<String, ClientError> {
    let id = client.create(wanted)?;
    client.activate(&id).or_else(|error| done_before(client, &id, error, &[State::Active]))?;
    Ok(id)
}

/// A refused operation may have been done before: by the same call at a server that was silent
/// then, or by the same request before a crash.
fn done_before(client: &Client, id: &str, error: ClientError, outcome: &[State]) -> Result<(), ClientError> {
    let done = error.refusal().is_some() && outcome.contains(&client.state(id)?);
    if done { Ok(()) } else { Err(error) }
}

/// The attributes requested of a key.
const FACTS: [AttributeName; 5] = [
    AttributeName::State,
    AttributeName::InitialDate,
    AttributeName::ActivationDate,
    AttributeName::ProtectStopDate,
    AttributeName::DeactivationDate,
];

fn facts_of(client: &Client, id: &str) -> Result<KeyFacts, ClientError> {
    Ok(facts(client.get_attributes(id, &FACTS)?))
}

/// The attributes of some keys, in one message; keys removed meanwhile are left out.
fn facts_of_some(client: &Client, ids: &[String]) -> Result<Vec<(String, KeyFacts)>, ClientError> {
    let question = |id: &String| {
        RequestPayload::GetAttributes(GetAttributesRequest {
            unique_identifier: Some(id.clone()),
            attribute_names: FACTS.to_vec(),
        })
    };
    let mut found = Vec::new();
    let mut left = ids;
    while !left.is_empty() {
        let answers = client.batch(left.iter().map(question).collect())?;
        // The server stops at the first item that it refuses, which is skipped.
        let answered = answers.len().max(1).min(left.len());
        for (id, answer) in left.iter().zip(answers) {
            match answer {
                Ok(ResponsePayload::GetAttributes(answer)) => {
                    let attributes = answer.attributes.into_iter().map(|attribute| attribute.value);
                    found.push((id.clone(), facts(attributes.collect())));
                }
                Err(refusal) if refusal.reason != ResultReason::ItemNotFound => {
                    return Err(ClientError::Refused { server: client.server().clone(), refusal });
                }
                _ => {}
            }
        }
        left = &left[answered..];
    }
    Ok(found)
}

fn facts(attributes: Vec<AttributeValue>) -> KeyFacts {
    // A missing attribute is taken as absent: KMIP requires a state for every key.
    let mut facts =
        KeyFacts { state: KeyState::PreActive, created: None, activated: None, deactivates: None };
    for attribute in attributes {
        match attribute {
            AttributeValue::State(state) => facts.state = key_state(state),
            AttributeValue::InitialDate(date) => facts.created = time(date),
            AttributeValue::ActivationDate(date) => facts.activated = time(date),
            AttributeValue::ProtectStopDate(date) | AttributeValue::DeactivationDate(date) => {
                facts.deactivates = [facts.deactivates, time(date)].into_iter().flatten().min();
            }
            _ => {}
        }
    }
    facts
}

fn key_state(state: State) -> KeyState {
    match state {
        State::Active => KeyState::Active,
        State::Deactivated => KeyState::Deactivated,
        State::Destroyed | State::DestroyedCompromised => KeyState::Destroyed,
        State::Compromised => KeyState::Compromised,
        // A key in an unknown state must not come into use, and a key in use need not be dropped.
        _ => KeyState::PreActive,
    }
}

fn time(date: DateTime) -> Option<SystemTime> {
    // Some servers write "never" as the year 1970.
    let seconds = u64::try_from(date.0).ok().filter(|seconds| *seconds > 0)?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn key_id(id: &str) -> Result<ProviderKeyId, ProviderError> {
    id.parse().map_err(misconfigured)
}

fn refused(reason: String) -> ProviderError {
    ProviderError::Refused { reason }
}
