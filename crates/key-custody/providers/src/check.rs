//! Tests a provider: each server by itself, step by step, with times.

use std::fmt::Display;
use std::time::{Duration, Instant};

use serde::Serialize;
use strongroom_keys::{KEK_BYTES, KeyRequestId, ProviderKey, ProviderName};
use strongroom_kmip::client::{Client, ClientError, NewKey};
use strongroom_kmip::protocol::{AttributeValue, Operation, QueryFunction};

use crate::config::{KmipConfig, ProviderConfig, SourceConfig, VaultConfig};
use crate::error::ProviderError;
use crate::kmip::{Cluster, KEY_GROUP};
use crate::provider::KeyProvider;
use crate::vault::VaultProvider;

/// The KMIP operations that this program needs.
const NEEDED: [Operation; 8] = [
    Operation::Query,
    Operation::Create,
    Operation::Activate,
    Operation::Get,
    Operation::GetAttributes,
    Operation::Locate,
    Operation::Revoke,
    Operation::Destroy,
];

/// The result of one server's check.
#[derive(Clone, Debug, Serialize)]
pub struct ServerCheck {
    /// The server.
    pub server: String,
    /// The steps, in order, up to the first that failed.
    pub steps: Vec<Step>,
}

/// One step of a check.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The step's name, as in "get the key".
    pub step: &'static str,
    /// Whether it succeeded.
    pub ok: bool,
    /// The result, or the failure and the next step.
    pub detail: String,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

impl ServerCheck {
    /// Whether every step succeeded.
    pub fn is_well(&self) -> bool {
        self.steps.iter().all(|step| step.ok)
    }

    fn new(server: impl Display) -> Self {
        Self { server: server.to_string(), steps: Vec::new() }
    }

    /// Runs a step, records its result, and returns its value if it succeeded.
    fn step<Outcome, Error: Display>(
        &mut self,
        step: &'static str,
        action: impl FnOnce() -> Result<(Outcome, String), Error>,
    ) -> Option<Outcome> {
        let begun = Instant::now();
        let outcome = action();
        let took = begun.elapsed();
        match outcome {
            Ok((outcome, detail)) => {
                self.note(step, true, detail, took);
                Some(outcome)
            }
            Err(error) => {
                self.note(step, false, error.to_string(), took);
                None
            }
        }
    }

    fn note(&mut self, step: &'static str, ok: bool, detail: String, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.steps.push(Step { step, ok, detail, took_us });
    }
}

/// Checks every server of a provider: TCP, TLS, versions, operations, and the life cycle of a
/// throw-away key.
///
/// # Errors
/// [`ProviderError::Misconfigured`] if the configuration cannot be used. A server's failures are in
/// its check.
pub fn check(config: &ProviderConfig) -> Result<Vec<ServerCheck>, ProviderError> {
    config.check()?;
    match &config.source {
        SourceConfig::Kmip(kmip) | SourceConfig::Embedded(kmip) => {
            Ok(Cluster::new(kmip)?.clients().map(|client| check_kmip(client, kmip)).collect())
        }
        SourceConfig::Vault(vault) => Ok(vec![check_vault(vault)?]),
    }
}

fn check_kmip(client: &Client, config: &KmipConfig) -> ServerCheck {
    let mut check = ServerCheck::new(client.server());
    // Each step needs the one before; the first failure is recorded and suffices.
    let _ = try_kmip(&mut check, client, config);
    check
}

fn try_kmip(check: &mut ServerCheck, client: &Client, config: &KmipConfig) -> Option<()> {
    let begun = Instant::now();
    match client.probe() {
        Ok(probe) => {
            check.note("connect", true, "TCP".to_owned(), probe.tcp);
            check.note("shake hands", true, probe.tls_version.to_owned(), probe.tls);
        }
        Err(error) => {
            check.note("connect", false, error.to_string(), begun.elapsed());
            return None;
        }
    }
    check.step("agree on a version", || client.version().map(|version| ((), format!("KMIP {version}"))))?;
    check.step("ask what it offers", || offers(client))?;

    let mut key = NewKey::aes_256();
    if config.named_keys {
        key.unique_name = Some(format!("{KEY_GROUP}-test-{}", KeyRequestId::random()));
        key.attributes = vec![AttributeValue::ObjectGroup(format!("{KEY_GROUP}-test"))];
    }
    let id = check.step("create a key", || client.create(&key).map(|id| (id.clone(), id)))?;
    let got = check.step("get the key", || {
        client.get(&id).map(|got| {
            let bits = got.secret.len() * 8;
            (bits == KEK_BYTES * 8, format!("{bits} bits"))
        })
    });
    // The key is destroyed whatever the outcome.
    check.step("destroy the key", || client.destroy(&id).map(|()| ((), String::new())))?;
    if got == Some(false) {
        let detail = "the key has another length than was asked for; it cannot be used".to_owned();
        check.note("use the key", false, detail, Duration::ZERO);
    }
    Some(())
}

fn offers(client: &Client) -> Result<((), String), ClientError> {
    let answer = client.query(&[QueryFunction::Operations, QueryFunction::ServerInformation])?;
    let missing: Vec<_> = NEEDED
        .into_iter()
        .filter(|needed| !answer.operations.contains(needed))
        .map(|operation| operation.to_string())
        .collect();
    let vendor = answer.vendor_identification.unwrap_or_else(|| "unnamed vendor".to_owned());
    let count = answer.operations.len();
    // The check continues all the same: servers do not always list all their operations.
    let detail = match missing.as_slice() {
        [] => format!("{vendor}, {count} operations, all that are needed"),
        missing => format!("{vendor}, {count} operations; it does not name {}", missing.join(", ")),
    };
    Ok(((), detail))
}

fn check_vault(config: &VaultConfig) -> Result<ServerCheck, ProviderError> {
    let provider = VaultProvider::new(config)?;
    let mut check = ServerCheck::new(&config.url);
    let _ = try_vault(&mut check, &provider, config);
    Ok(check)
}

fn try_vault(check: &mut ServerCheck, provider: &VaultProvider, config: &VaultConfig) -> Option<()> {
    check.step("read the transit key", || {
        provider.check().map(|()| ((), config.key.clone())).map_err(explain)
    })?;
    let made = check.step("make a data key", || {
        provider.create(KeyRequestId::random()).map(|made| (made, String::new())).map_err(explain)
    })?;
    // No request to a transit engine contains the name.
    let name: ProviderName = "test".parse().ok()?;
    let key = ProviderKey { provider: name, key: made.key, wrapped: made.wrapped };
    check.step("open it again", || match provider.fetch(&key) {
        Ok(secret) if secret == made.secret => Ok(((), "the same key".to_owned())),
        Ok(_) => Err("it opens as another key".to_owned()),
        Err(error) => Err(explain(error)),
    })
}

fn explain(error: ProviderError) -> String {
    match error {
        ProviderError::NoSuchKey => {
            "there is no such mount or transit key; create it in the Vault".to_owned()
        }
        error => error.to_string(),
    }
}
