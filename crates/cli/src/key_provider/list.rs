//! `strongroom key-provider list`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::inventory::state_name;
use strongroom_keys::{OnRevocation, ProviderKeyId, ProviderName};
use strongroom_providers::{KeyState, LeaseConfig, ProviderConfig, Registry, open};
use strongroom_types::{unix_seconds, without_numbers};

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::{Output, Table, utc};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Contacts the servers only with --keys.

Examples:
  strongroom key-provider list
  strongroom key-provider list --keys --json | jq -r '.keys[] | select(.expires_unix_seconds < now) | .key'")]
pub struct ListArguments {
    /// Also list the keys created there, with their states and due dates
    #[arg(long)]
    keys: bool,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Listing {
    #[serde(rename = "items")]
    providers: Vec<ListedProvider>,
    broken: Vec<Broken>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Vec<ListedKey>>,
}

#[derive(Serialize)]
struct ListedProvider {
    name: ProviderName,
    kind: &'static str,
    servers: Vec<String>,
    lease: LeaseConfig,
    on_revocation: OnRevocation,
    cryptoperiod_days: Option<u32>,
}

/// A provider that cannot be read, or asked for its keys.
#[derive(Serialize)]
struct Broken {
    name: ProviderName,
    code: &'static str,
    reason: String,
}

#[derive(Serialize)]
struct ListedKey {
    provider: ProviderName,
    key: ProviderKeyId,
    state: KeyState,
    created_unix_seconds: Option<u64>,
    expires_unix_seconds: Option<u64>,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.providers.is_empty() && self.broken.is_empty() {
            return write!(f, "no key provider is set up here; add one with `strongroom key-provider add`");
        }
        let mut parts = Vec::new();
        if !self.providers.is_empty() {
            let head = ["NAME", "KIND", "LEASE", "OUTAGE", "REVOKED", "REPLACE AFTER", "SERVERS"];
            let rows = self.providers.iter().map(ListedProvider::row).collect();
            parts.push(Table { head, rows }.to_string());
        }
        if let Some(keys) = self.keys.as_deref().filter(|keys| !keys.is_empty()) {
            let head = ["PROVIDER", "KEY", "STATE", "CREATED", "EXPIRES"];
            parts.push(format!("\n{}", Table { head, rows: keys.iter().map(ListedKey::row).collect() }));
        }
        parts.extend(self.broken.iter().map(|broken| format!("broken: {}: {}", broken.name, broken.reason)));
        f.write_str(&parts.join("\n"))
    }
}

impl ListedProvider {
    fn row(&self) -> [String; 7] {
        let days = self.cryptoperiod_days.map_or("-".to_owned(), |days| format!("{days} days"));
        [
            self.name.to_string(),
            self.kind.to_owned(),
            format!("{} s", self.lease.lease_seconds),
            format!("{} s", self.lease.outage_allowance_seconds),
            match self.on_revocation {
                OnRevocation::KeepServing => "keep serving".to_owned(),
                OnRevocation::Stop => "stop".to_owned(),
            },
            days,
            self.servers.join(" "),
        ]
    }
}

impl ListedKey {
    fn row(&self) -> [String; 5] {
        let time = |seconds: Option<u64>| seconds.map_or("-".to_owned(), utc);
        [
            self.provider.to_string(),
            self.key.to_string(),
            state_name(self.state).to_owned(),
            time(self.created_unix_seconds),
            time(self.expires_unix_seconds),
        ]
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let mut listing =
            Listing { providers: Vec::new(), broken: Vec::new(), keys: self.keys.then(Vec::new) };
        for registered in Registry::of_home(&self.home.path()?).list()? {
            let name = registered.name;
            let config = match registered.config {
                Ok(config) => config,
                Err(error) => {
                    let (code, reason) = (error.code(), without_numbers(&error.to_string()));
                    listing.broken.push(Broken { name, code, reason });
                    continue;
                }
            };
            listing.providers.push(ListedProvider {
                name: name.clone(),
                kind: config.source.kind(),
                servers: config.source.servers(),
                lease: config.lease,
                on_revocation: config.on_revocation,
                cryptoperiod_days: config.cryptoperiod_days,
            });
            let Some(keys) = &mut listing.keys else { continue };
            match keys_of(&name, &config) {
                Ok(found) => keys.extend(found),
                Err(error) => {
                    let (code, reason) = (error.code(), without_numbers(&error.to_string()));
                    listing.broken.push(Broken { name, code, reason });
                }
            }
        }
        output.answer(&listing)
    }
}

fn keys_of(
    name: &ProviderName,
    config: &ProviderConfig,
) -> Result<Vec<ListedKey>, strongroom_providers::ProviderError> {
    let listed = open(config)?.list()?;
    let keys = listed.into_iter().map(|listed| ListedKey {
        provider: name.clone(),
        state: listed.facts.state,
        created_unix_seconds: listed.facts.created.map(unix_seconds),
        expires_unix_seconds: listed.facts.expires(config.cryptoperiod()).map(unix_seconds),
        key: listed.key,
    });
    Ok(keys.collect())
}
