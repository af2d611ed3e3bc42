//! `strongroom access token`: tokens for programs. `strongroom keyserver token` is about others,
//! with which clients of the key server enrol.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::access::{ClientCertificate, CreateToken, Done, NewToken, Token};
use strongroom_api::vm::PowerOptions;
use strongroom_files::FileError;
use strongroom_types::unix_milliseconds_now;
use zeroize::Zeroizing;

use super::owner;
use super::scope::{self, ScopeArguments};
use crate::api::{ApiArguments, segment, show, table};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The longest file with a certificate that is read, in bytes: others may lie with it.
const FILE_BYTES_MAX: u64 = 64 * 1024;

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

With --certificate no token is printed: the program's own key is the token. It shows the certificate in TLS, and proves to have \
the key. Commands take a file with both, as PEM, with --api-token-file FILE.

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

    /// File with a certificate, as PEM, whose key takes the place of the token: nothing secret is
    /// printed, and the program shows the certificate in TLS
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,

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
        match (&self.0.token, &self.0.info.key_sha256) {
            (Some(token), _) => f.write_str(token.expose()),
            (None, Some(key)) => write!(f, "the token is the key with SHA-256 {key}"),
            (None, None) => Ok(()),
        }
    }
}

impl TokenCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(CreateArguments { name, role, valid, certificate, scope, api }) => {
                let wish = CreateToken {
                    name: name.clone(),
                    role: role.clone(),
                    scope: scope.scope(),
                    expires_unix_seconds: unix_milliseconds_now() / 1000 + valid,
                    certificate: certificate.as_deref().map(read_certificate).transpose()?,
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
    let once = if token.token.is_some() { "; it is not shown again" } else { "" };
    output.answer(&Made(token))?;
    // Not on stdout, because the token is redirected to a file as it is.
    let (place, ends) = (scope::display(&scope), utc(expires_unix_seconds));
    output.remark(&format!("token {name}: role {role} for {place}, until {ends}{once}"));
    Ok(())
}

/// Reads a certificate. A key that lies in the same file stays here.
fn read_certificate(path: &Path) -> Result<ClientCertificate, CliError> {
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    let content = strongroom_files::read(path, FILE_BYTES_MAX).map(Zeroizing::new).map_err(failed)?;
    let first = CertificateDer::pem_slice_iter(&content).next().and_then(Result::ok);
    let first =
        first.ok_or_else(|| CliError::Usage(format!("{} has no certificate as PEM", path.display())))?;
    let pem = pem::encode(&pem::Pem::new("CERTIFICATE", first.to_vec()));
    pem.parse().map_err(CliError::Usage)
}
