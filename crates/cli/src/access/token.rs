//! `strongroom access token`: tokens for programs. `strongroom keyserver token` is about others,
//! with which clients of the key server enrol.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::access::{CreateToken, Done, NewToken, Token};
use strongroom_api::vm::PowerOptions;
use strongroom_types::unix_milliseconds_now;

use super::owner;
use super::scope::{self, ScopeArguments};
use crate::api::{ApiArguments, segment, show, table};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The commands for tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print it, once
    Create(CreateArguments),
    /// List tokens
    List(ListArguments),
    /// Replace a token by another one with the same role and end, and print that, once
    Rotate(RotateArguments),
    /// End a token
    #[command(after_help = "Example:\n  strongroom access token revoke backup")]
    Revoke(RevokeArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The token alone is printed on stdout, so that it can go to a file. A program sends it as a bearer token; commands \
take the file with --api-token-file FILE. It has at no time more rights than the user who makes it.

Example:
  umask 077; strongroom access token create backup --role operator --valid 90d > backup.token"
)]
pub struct CreateArguments {
    /// Name of the token; no user has the same
    name: Name,

    /// Role of the token
    #[arg(long, value_name = "ROLE")]
    role: Name,

    /// How long it is valid: 12h, 90d; at most 366d
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "90d")]
    valid: u64,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom access token list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `rotate`.
#[derive(Debug, Args)]
#[command(after_help = "The old token ends at once.

Example:
  umask 077; strongroom access token rotate backup > backup.token")]
pub struct RotateArguments {
    /// Name or id of the token
    token: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `revoke`.
#[derive(Debug, Args)]
pub struct RevokeArguments {
    /// Name or id of the token
    token: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// A new token, which is printed alone.
#[derive(Serialize)]
#[serde(transparent)]
struct Made(NewToken);

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.token.expose())
    }
}

impl TokenCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(CreateArguments { name, role, valid, scope, api }) => {
                let wish = CreateToken {
                    name: name.clone(),
                    role: role.clone(),
                    scope: scope.scope(),
                    expires_unix_seconds: unix_milliseconds_now() / 1000 + valid,
                };
                made(output, api.connect()?.post_for("/v1/tokens", &wish)?)
            }
            Self::List(ListArguments { api }) => {
                let head = ["NAME", "ROLE", "WHERE", "OF", "MADE", "ENDS"];
                let tokens = api.connect()?.list("/v1/tokens")?;
                table(output, tokens, head, "there are no tokens", |token: &Token| {
                    [
                        token.name.to_string(),
                        token.role.to_string(),
                        scope::display(&token.scope),
                        owner(token),
                        utc(token.created_unix_seconds),
                        utc(token.expires_unix_seconds),
                    ]
                })
            }
            Self::Rotate(RotateArguments { token, api }) => {
                let path = format!("/v1/tokens/{}/rotate", segment(token));
                made(output, api.connect()?.post_for(&path, &PowerOptions::default())?)
            }
            Self::Revoke(RevokeArguments { token, api }) => {
                api.connect()?.remove(&format!("/v1/tokens/{}", segment(token)))?;
                show(output, Done {}, format_args!("token {token} has ended"))
            }
        }
    }
}

fn made(output: &Output, token: NewToken) -> Result<(), CliError> {
    let Token { name, role, scope, expires_unix_seconds, .. } = token.info.clone();
    output.answer(&Made(token))?;
    // Not on stdout, because the token is redirected to a file as it is.
    let (place, ends) = (scope::display(&scope), utc(expires_unix_seconds));
    output.remark(&format!("token {name}: role {role} for {place}, until {ends}; it is not shown again"));
    Ok(())
}
