//! `strongroom keyserver token`.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keyserver::access::{ClientName, PublicKeySha256, Role};
use strongroom_keyserver::management::protocol::{NewTokenAnswer, Question, TokenAnswer};

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a token, by which one client gets its first certificate
    Create(CreateArguments),
    /// List the tokens
    List(ListArguments),
    /// Cancel a token that was not used
    Cancel(CancelArguments),
}

/// For whom, and for how long.
#[derive(Debug, Args)]
#[command(
    after_help = "The token is a secret until it is used or has expired: it is good once, for this name and role alone. Carry it to \
the machine, and there: strongroom keyserver enrol --server HOST:PORT --token-fd 3 3<FILE

Roles: host (runs VMs; gets a key under a grant alone), client (has keys of its own), control (makes keys without seeing \
them, signs grants), admin, auditor, custodian.

Examples:
  strongroom keyserver token create host1 --role host
  umask 077; strongroom keyserver token create host1 --role host > token"
)]
pub struct CreateArguments {
    /// The client's name
    name: ClientName,

    /// Its role
    #[arg(long, value_name = "ROLE")]
    role: Role,

    /// How long it can be used, in seconds; by default an hour
    #[arg(long, value_name = "SECONDS")]
    valid: Option<u32>,

    /// Only for the key whose public half has this SHA-256
    #[arg(long, value_name = "SHA256")]
    public_key: Option<PublicKeySha256>,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// Of which server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver token list")]
pub struct ListArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

/// Which token.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver token cancel 00112233445566778899aabbccddeeff")]
pub struct CancelArguments {
    /// The token's id, from the list
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
    /// Does it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(CreateArguments { name, role, valid, public_key, server }) => {
                let question = Question::CreateToken {
                    name: name.clone(),
                    role: *role,
                    valid_seconds: *valid,
                    public_key: *public_key,
                };
                let created: NewTokenAnswer = server.administrator()?.ask(&question)?;
                let expires = utc(seconds(created.expires_unix_seconds));
                output.answer(&Created(created))?;
                // Not beside the token, which goes to a file as it is.
                output.remark(&format!("good once, until {expires}"));
                Ok(())
            }
            Self::List(ListArguments { server }) => {
                output.answer(&Listed { items: server.administrator()?.ask(&Question::Tokens)? })
            }
            Self::Cancel(CancelArguments { id, server }) => {
                let question = Question::CancelToken { id: id.clone() };
                let () = server.administrator()?.ask(&question)?;
                output.answer(&Cancelled { id: id.clone() })
            }
        }
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
