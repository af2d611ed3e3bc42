//! `strongroom keyserver token`.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keyserver::access::KnownClient;
use strongroom_keyserver::access::{ClientName, PublicKeySha256, Role};
use strongroom_keyserver::management::protocol::{NewTokenAnswer, TokenAnswer};
use strongroom_keyserver::management::questions::{CancelToken, Clients, CreateToken, Tokens};

use super::administration::{AdministrationArguments, Administrator};
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The commands for tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token with which one client gets its first certificate
    Create(CreateArguments),
    /// Create a token with which a client that lost its certificate or key gets a new certificate
    Replace(ReplaceArguments),
    /// List tokens
    List(ListArguments),
    /// Cancel an unused token
    Cancel(CancelArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The token is secret until it is used or has expired. It is valid once, for this name \
and role only. Take it to the client's machine, and run: strongroom keyserver enrol --server HOST:PORT \
--token-fd 3 3<FILE

Roles: host (runs VMs; gets keys only under grants), client (owns keys), control (creates keys without \
seeing them, signs grants), admin, auditor, custodian.

Examples:
  strongroom keyserver token create host1 --role host
  umask 077; strongroom keyserver token create host1 --role host > token"
)]
pub struct CreateArguments {
    /// Name of the client
    name: ClientName,

    /// Role of the client
    #[arg(long, value_name = "ROLE")]
    role: Role,

    /// Validity of the token, in seconds [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    valid: Option<u32>,

    /// Accept only the key whose public half has this SHA-256
    #[arg(long, value_name = "SHA256")]
    public_key: Option<PublicKeySha256>,

    /// Validity of the certificate in days, at most 825 [default: set by the server]
    #[arg(long, value_name = "DAYS")]
    certificate_days: Option<u32>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `replace`.
#[derive(Debug, Args)]
#[command(
    after_help = "The client keeps its id, name, role and keys. Its old certificates become invalid when \
the token is used. A revoked client cannot get a token.

Examples:
  strongroom keyserver client list
  umask 077; strongroom keyserver token replace vcenter --certificate-days 825 > token"
)]
pub struct ReplaceArguments {
    /// Name or id of the client
    client: String,

    /// Validity of the token, in seconds [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    valid: Option<u32>,

    /// Accept only the key whose public half has this SHA-256
    #[arg(long, value_name = "SHA256")]
    public_key: Option<PublicKeySha256>,

    /// Validity of the certificate in days, at most 825 [default: set by the server]
    #[arg(long, value_name = "DAYS")]
    certificate_days: Option<u32>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver token list")]
pub struct ListArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `cancel`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver token cancel 00112233445566778899aabbccddeeff")]
pub struct CancelArguments {
    /// Id of the token, from `token list`
    id: String,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Created(NewTokenAnswer);

#[derive(Serialize)]
struct Listed {
    items: Vec<TokenAnswer>,
}

#[derive(Serialize)]
struct Cancelled {
    id: String,
}

impl TokenCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(wish) => {
                let CreateArguments { name, role, valid, public_key, certificate_days, server } = wish;
                let question = CreateToken {
                    client: None,
                    name: name.clone(),
                    role: *role,
                    valid_seconds: *valid,
                    public_key: *public_key,
                    certificate_days: *certificate_days,
                };
                create(&server.administrator()?, question, output)
            }
            Self::Replace(ReplaceArguments { client, valid, public_key, certificate_days, server }) => {
                let administrator = server.administrator()?;
                let known = the_client(administrator.ask(Clients {})?, client)?;
                let question = CreateToken {
                    client: Some(known.id),
                    name: known.name,
                    role: known.role,
                    valid_seconds: *valid,
                    public_key: *public_key,
                    certificate_days: *certificate_days,
                };
                create(&administrator, question, output)
            }
            Self::List(ListArguments { server }) => {
                output.answer(&Listed { items: server.administrator()?.ask(Tokens {})? })
            }
            Self::Cancel(CancelArguments { id, server }) => {
                let question = CancelToken { id: id.clone() };
                server.administrator()?.ask(question)?;
                output.answer(&Cancelled { id: id.clone() })
            }
        }
    }
}

fn create(administrator: &Administrator, wanted: CreateToken, output: &Output) -> Result<(), CliError> {
    let created = administrator.ask(wanted)?;
    let expires = utc(seconds(created.expires_unix_seconds));
    output.answer(&Created(created))?;
    // Not on stdout, because the token is redirected to a file as it is.
    output.remark(&format!("good once, until {expires}"));
    Ok(())
}

/// The client with this id or name.
fn the_client(clients: Vec<KnownClient>, called: &str) -> Result<KnownClient, CliError> {
    let is_meant = |client: &KnownClient| client.id.to_string() == called || client.name.as_str() == called;
    let mut meant: Vec<_> =
        clients.into_iter().filter(|client| !client.is_revoked && is_meant(client)).collect();
    match (meant.pop(), meant.len()) {
        (Some(client), 0) => Ok(client),
        (None, _) => Err(CliError::Usage(format!(
            "the key server has no client '{called}' that is not revoked; `strongroom keyserver client list` shows them"
        ))),
        (Some(_), others) => Err(CliError::Usage(format!(
            "{} clients are called '{called}'; name one by its id: `strongroom keyserver client list`",
            others + 1
        ))),
    }
}

fn seconds(unix_seconds: i64) -> u64 {
    u64::try_from(unix_seconds).unwrap_or_default()
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.token.as_str())
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |token: &TokenAnswer| {
            [
                token.name.to_string(),
                token.role.to_string(),
                token.state.clone(),
                utc(seconds(token.expires_unix_seconds)),
                token.id.clone(),
            ]
        };
        let table = Table {
            head: ["NAME", "ROLE", "STATE", "EXPIRES", "ID"],
            rows: self.items.iter().map(row).collect(),
        };
        table.fmt(f)
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} is cancelled", self.id)
    }
}
