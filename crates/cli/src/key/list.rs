//! `strongroom key list`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::datastores::UnknownNeeds;
use strongroom_jobs::destructions::KeptDestructions;
use strongroom_jobs::inventory::{Broken, Inventory, Key, state_name};
use strongroom_keys::{ProviderKeyId, ProviderName};
use strongroom_keyserver::management::questions;
use strongroom_providers::KeyState;
use strongroom_types::{unix_seconds, without_numbers};

use super::DatastoreArguments;
use super::waiting::WaitingDestruction;
use crate::error::CliError;
use crate::keyserver::AdministrationArguments;
use crate::output::{Output, Table, utc};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(
    after_help = "Volumes are searched in every datastore in which this machine created a volume with a \
provider's key, and in those given with --datastore. The embedded key server is asked with the \
administrator's certificate, so that the list includes the keys of VMs, which their control plane owns; \
without it ('--identity DIR' gives another directory) only this machine's own keys are listed. A transit \
engine (Vault) stores no keys: those that volumes name are listed, with their KEK ids.

Exit status: 0 the list is complete; 1 a provider could not be asked, or a datastore could not be read.

Examples:
  strongroom key list
  strongroom key list --provider corp --json | jq -r '.items[] | select(.volumes == 0) | .key'"
)]
pub struct ListArguments {
    /// List only the keys of key provider NAME
    #[arg(long, value_name = "NAME")]
    provider: Option<ProviderName>,

    #[command(flatten)]
    datastores: DatastoreArguments,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Listing {
    #[serde(rename = "items")]
    keys: Vec<ListedKey>,
    /// Providers that could not be reached.
    broken: Vec<Broken>,
    /// Places with volumes that may not be counted.
    unknown: Vec<UnknownNeeds>,
}

#[derive(Serialize)]
struct ListedKey {
    provider: ProviderName,
    key: ProviderKeyId,
    kek_id: Option<String>,
    /// `None` if the provider did not return it.
    state: Option<KeyState>,
    created_unix_seconds: Option<u64>,
    expires_unix_seconds: Option<u64>,
    /// The count of volumes that need it.
    volumes: usize,
    /// The VMs with this key, by the names of their directories.
    vms: Vec<String>,
    destruction: Option<WaitingDestruction>,
    #[serde(skip)]
    is_wrapped: bool,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.keys.is_empty() {
            parts.push("no keys are known here".to_owned());
        } else {
            let head = ["PROVIDER", "KEY", "STATE", "CREATED", "EXPIRES", "VOLUMES", "VMS", "DESTRUCTION"];
            parts.push(Table { head, rows: self.keys.iter().map(ListedKey::row).collect() }.to_string());
        }
        parts.extend(self.broken.iter().map(|broken| format!("broken: {}: {}", broken.name, broken.reason)));
        parts.extend(self.unknown.iter().map(|unknown| format!("not counted: {unknown}")));
        f.write_str(&parts.join("\n"))
    }
}

impl ListedKey {
    fn new(key: &Key, destruction: Option<WaitingDestruction>) -> Self {
        let facts = key.facts.as_ref().ok();
        Self {
            provider: key.key.provider.clone(),
            key: key.key.key.clone(),
            kek_id: key.kek.map(|kek| kek.to_string()),
            state: facts.map(|facts| facts.state),
            created_unix_seconds: facts.and_then(|facts| facts.created).map(unix_seconds),
            expires_unix_seconds: key.expires.map(unix_seconds),
            volumes: key.volumes.len(),
            vms: key.vms(),
            destruction,
            is_wrapped: key.key.wrapped.is_some(),
        }
    }

    fn row(&self) -> [String; 8] {
        let time = |seconds: Option<u64>| seconds.map_or("-".to_owned(), utc);
        let key = match &self.kek_id {
            Some(kek) if self.is_wrapped => format!("{} (KEK {kek})", self.key),
            _ => self.key.to_string(),
        };
        [
            self.provider.to_string(),
            key,
            self.state.map_or("unknown", state_name).to_owned(),
            time(self.created_unix_seconds),
            time(self.expires_unix_seconds),
            self.volumes.to_string(),
            if self.vms.is_empty() { "-".to_owned() } else { self.vms.join(", ") },
            self.destruction.as_ref().map_or("-".to_owned(), ToString::to_string),
        ]
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let home = self.server.home()?;
        let mut inventory =
            Inventory::open(&home, &self.datastores.datastores, self.server.overseer().as_ref())?;
        let keys = inventory.keys(self.provider.as_ref());
        let mut destructions = Destructions::new(&home, &self.server);
        let mut listed = Vec::new();
        for key in &keys {
            let waiting = destructions.of(&inventory, key);
            let waiting = waiting.unwrap_or_else(|error| {
                inventory.broken.push(Broken {
                    name: key.key.provider.clone(),
                    code: error.code().to_owned(),
                    reason: without_numbers(&format!("its destructions cannot be listed: {error}")),
                });
                None
            });
            listed.push(ListedKey::new(key, waiting));
        }
        for key in &keys {
            let name = &key.key.provider;
            let is_told = inventory.broken.iter().any(|broken| broken.name == *name);
            if let (None, false, Err(reason)) = (inventory.config(name), is_told, &key.facts) {
                let code = "no_such_key_provider".to_owned();
                inventory.broken.push(Broken { name: name.clone(), code, reason: reason.clone() });
            }
        }
        let unknown = inventory.scan().unknown().to_vec();
        let is_whole = inventory.broken.is_empty() && unknown.is_empty();
        output.answer(&Listing { keys: listed, broken: inventory.broken, unknown })?;
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The pending destructions. The embedded server is asked once, and only if it has keys to be
/// listed.
pub struct Destructions<'a> {
    kept: KeptDestructions,
    server: &'a AdministrationArguments,
    embedded: Option<HashMap<String, WaitingDestruction>>,
}

impl<'a> Destructions<'a> {
    /// The pending destructions of a home and of its key server.
    pub fn new(home: &Path, server: &'a AdministrationArguments) -> Self {
        Self { kept: KeptDestructions::of_home(home), server, embedded: None }
    }

    /// The pending destruction of a key. If the embedded server does not respond, this is reported
    /// once.
    pub fn of(&mut self, inventory: &Inventory, key: &Key) -> Result<Option<WaitingDestruction>, CliError> {
        if !inventory.is_embedded(&key.key.provider) {
            return Ok(self.kept.get(&key.key)?.as_ref().map(Into::into));
        }
        if self.embedded.is_none() {
            self.embedded = Some(HashMap::new());
            let asked = self.server.administrator()?.ask(questions::Destructions {})?;
            let waiting = asked.iter().map(|answer| (answer.key.to_string(), answer.into()));
            self.embedded = Some(waiting.collect());
        }
        Ok(self.embedded.as_ref().and_then(|embedded| embedded.get(key.key.key.as_str())).cloned())
    }
}
