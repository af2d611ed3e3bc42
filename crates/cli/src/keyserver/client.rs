//! `strongroom keyserver client`.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keyserver::access::ClientId;
use strongroom_keyserver::access::KnownClient;
use strongroom_keyserver::management::questions::{Clients, RevokeClient};

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The commands for clients.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// List clients
    List(ListArguments),
    /// Revoke a client, with all its certificates, and close its connections
    Revoke(RevokeArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver client list")]
pub struct ListArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `revoke`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  strongroom keyserver client revoke 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --reason stolen"
)]
pub struct RevokeArguments {
    /// Id of the client, from `client list`
    client: ClientId,

    /// Reason, which is recorded
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Listed {
    items: Vec<KnownClient>,
}

#[derive(Serialize)]
struct Revoked {
    client: ClientId,
}

impl ClientCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(ListArguments { server }) => {
                output.answer(&Listed { items: server.administrator()?.ask(Clients {})? })
            }
            Self::Revoke(RevokeArguments { client, reason, server }) => {
                let question = RevokeClient { client: *client, reason: reason.clone() };
                server.administrator()?.ask(question)?;
                output.answer(&Revoked { client: *client })
            }
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |client: &KnownClient| {
            let since = utc(u64::try_from(client.created_unix_seconds).unwrap_or_default());
            let state = if client.is_revoked { "revoked" } else { "let in" };
            [client.name.to_string(), client.role.to_string(), state.to_owned(), since, client.id.to_string()]
        };
        let rows = self.items.iter().map(row).collect();
        Table { head: ["NAME", "ROLE", "STATE", "SINCE", "ID"], rows }.fmt(f)
    }
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} is let in no longer", self.client)
    }
}
