//! `strongroom key show`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::datastores::UnknownNeeds;
use strongroom_jobs::inventory::{Inventory, Key, state_name};
use strongroom_keys::{ProviderKeyId, ProviderName};
use strongroom_providers::KeyState;
use strongroom_types::unix_seconds;

use super::list::Destructions;
use super::waiting::WaitingDestruction;
use super::{DatastoreArguments, KeyNameArguments};
use crate::error::CliError;
use crate::keyserver::AdministrationArguments;
use crate::output::{Output, utc};

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  strongroom key show 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11\n  strongroom key show 4711 --provider corp --json | jq -r '.volumes[]'"
)]
pub struct ShowArguments {
    #[command(flatten)]
    key: KeyNameArguments,

    #[command(flatten)]
    datastores: DatastoreArguments,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Shown {
    provider: ProviderName,
    kind: Option<&'static str>,
    key: ProviderKeyId,
    /// It is known if a volume needs it.
    kek_id: Option<String>,
    state: Option<KeyState>,
    /// Why the state is unknown.
    unavailable: Option<String>,
    created_unix_seconds: Option<u64>,
    activated_unix_seconds: Option<u64>,
    deactivates_unix_seconds: Option<u64>,
    expires_unix_seconds: Option<u64>,
    cryptoperiod_days: Option<u32>,
    volumes: Vec<PathBuf>,
    /// The VMs with this key.
    vms: Vec<String>,
    /// Places with volumes that may not be shown.
    unknown: Vec<UnknownNeeds>,
    destruction: Option<WaitingDestruction>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:12}{value}");
        line("key", &self.key)?;
        line("provider", &self.provider)?;
        if let Some(kek) = &self.kek_id {
            line("KEK", kek)?;
        }
        line("state", &self.state.map_or("unknown", state_name))?;
        if let Some(why) = &self.unavailable {
            line("", why)?;
        }
        let times = [
            ("created", self.created_unix_seconds),
            ("activated", self.activated_unix_seconds),
            ("ends", self.deactivates_unix_seconds),
            ("expires", self.expires_unix_seconds),
        ];
        for (name, seconds) in times {
            if let Some(seconds) = seconds {
                line(name, &utc(seconds))?;
            }
        }
        if let Some(waiting) = &self.destruction {
            line("destruction", waiting)?;
            line("", &format!("asked for by {}: {}", waiting.requested_by, waiting.reason))?;
        }
        if !self.vms.is_empty() {
            line("VMs", &self.vms.join(", "))?;
        }
        match self.volumes.as_slice() {
            [] => write!(f, "{:12}none that is known", "volumes")?,
            volumes => {
                let paths = volumes.iter().map(|volume| volume.display().to_string()).collect::<Vec<_>>();
                write!(f, "{:12}{}", "volumes", paths.join(&format!("\n{:12}", "")))?;
            }
        }
        self.unknown.iter().try_for_each(|unknown| write!(f, "\nnot looked into: {unknown}"))
    }
}

impl ShowArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let home = self.server.home()?;
        let inventory = Inventory::open(&home, &self.datastores.datastores, self.server.overseer().as_ref())?;
        let key = inventory.find(&self.key.name())?;
        let destruction =
            Destructions::new(&home, &self.server).of(&inventory, &key).unwrap_or_else(|error| {
                output.remark(&format!("Whether its destruction is scheduled cannot be said: {error}"));
                None
            });
        let config = inventory.config(&key.key.provider);
        let vms = key.vms();
        let Key { key, kek, facts, volumes, expires } = key;
        let (facts, unavailable) = match facts {
            Ok(facts) => (Some(facts), None),
            Err(why) => (None, Some(why)),
        };
        output.answer(&Shown {
            provider: key.provider,
            kind: config.map(|config| config.source.kind()),
            key: key.key,
            kek_id: kek.map(|kek| kek.to_string()),
            state: facts.as_ref().map(|facts| facts.state),
            unavailable,
            created_unix_seconds: facts.as_ref().and_then(|facts| facts.created).map(unix_seconds),
            activated_unix_seconds: facts.as_ref().and_then(|facts| facts.activated).map(unix_seconds),
            deactivates_unix_seconds: facts.as_ref().and_then(|facts| facts.deactivates).map(unix_seconds),
            expires_unix_seconds: expires.map(unix_seconds),
            cryptoperiod_days: config.and_then(|config| config.cryptoperiod_days),
            volumes,
            vms,
            unknown: inventory.scan().unknown().to_vec(),
            destruction,
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
