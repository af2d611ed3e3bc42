//! `strongroom keyserver broker`.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderKeyId, ProviderName, WrappedKek};
use strongroom_keyserver::management::protocol::BrokeredAnswer;
use strongroom_keyserver::management::questions::{BrokerAdd, BrokerCreate, BrokeredKeys};

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::{Output, Table};

/// The commands for keys of external providers.
#[derive(Debug, Subcommand)]
pub enum BrokerCommand {
    /// Add an existing key of an external provider, as a client with role control
    Add(AddArguments),
    /// Create a key at an external provider and add it, as a client with role control
    Create(CreateArguments),
    /// List keys of external providers
    List(ListArguments),
}

/// The arguments of `add`.
#[derive(Debug, Args)]
#[command(after_help = "The key stays at its provider: the key server stores its location, and requests it \
whenever a host presents a grant. PROVIDER must be one that the key server was started with (keyserver \
run --broker PROVIDER). Prints the key's id at this server, which grants and volumes use.

Example:
  strongroom keyserver broker add corp 4711 --identity /etc/strongroom/control --server kms1:5697")]
pub struct AddArguments {
    /// Name of the key provider
    provider: ProviderName,

    /// Id of the key at the provider
    key: ProviderKeyId,

    /// Wrapped key in hexadecimal, for a provider that stores no keys but unwraps them
    #[arg(long, value_name = "HEX")]
    wrapped: Option<String>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(after_help = "The key remains secret: this machine never sees it, and the key server only when a \
host fetches it.

Example:
  strongroom keyserver broker create corp --identity /etc/strongroom/control --server kms1:5697")]
pub struct CreateArguments {
    /// Name of the key provider
    provider: ProviderName,

    /// Id of this request, so that it can be repeated [default: random]
    #[arg(long, value_name = "UUID")]
    request: Option<KeyRequestId>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver broker list")]
pub struct ListArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct TakenIn(BrokeredAnswer);

#[derive(Serialize)]
struct Listed {
    items: Vec<BrokeredAnswer>,
}

impl BrokerCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Add(AddArguments { provider, key, wrapped, server }) => {
                let wrapped = wrapped
                    .clone()
                    .map(WrappedKek::try_from)
                    .transpose()
                    .map_err(|error| CliError::Usage(error.to_string()))?;
                let key = ProviderKey { provider: provider.clone(), key: key.clone(), wrapped };
                output.answer(&TakenIn(server.administrator()?.ask(BrokerAdd { key })?))
            }
            Self::Create(CreateArguments { provider, request, server }) => {
                let request = request.unwrap_or_else(KeyRequestId::random);
                let question = BrokerCreate { provider: provider.clone(), request };
                output.answer(&TakenIn(server.administrator()?.ask(question)?))
            }
            Self::List(ListArguments { server }) => {
                output.answer(&Listed { items: server.administrator()?.ask(BrokeredKeys {})? })
            }
        }
    }
}

impl fmt::Display for TakenIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.id)
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |brokered: &BrokeredAnswer| {
            [
                brokered.id.clone(),
                brokered.state.clone(),
                brokered.key.provider.to_string(),
                brokered.key.key.to_string(),
            ]
        };
        let table = Table {
            head: ["KEY", "STATE", "PROVIDER", "PROVIDER'S KEY"],
            rows: self.items.iter().map(row).collect(),
        };
        table.fmt(f)
    }
}
