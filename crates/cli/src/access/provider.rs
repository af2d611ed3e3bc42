//! `strongroom access provider`: identity providers, whose groups have roles here.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use strongroom_api::Name;
use strongroom_api::access::Done;
use strongroom_api::identity::{
    ClientSecret, CreateIdentityProvider, IdentityProvider, IssuerUrl, PageUrl, ProviderText,
    SetIdentityProvider,
};
use strongroom_api::limits::{CLIENT_SECRET_BYTES_MAX, WEBHOOK_AUTHORITY_BYTES_MAX};
use strongroom_api::recipient::Authorities;

use crate::api::{ApiArguments, segment, show, table};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::Output;
use crate::recipient::text_in;

/// The commands for identity providers.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Add an identity provider, which has to answer now
    Add(AddArguments),
    /// List identity providers
    #[command(after_help = "Example:\n  strongroom access provider list")]
    List(ListArguments),
    /// Replace the secret of this site's client at an identity provider
    #[command(after_help = "Nothing else of a provider changes: remove it, and add it again.

Example:
  strongroom access provider secret corp --client-secret-file corp.secret")]
    Secret(SecretArguments),
    /// Remove an identity provider, with the roles of its groups, and end the sessions of its users
    #[command(after_help = "Example:\n  strongroom access provider remove corp")]
    Remove(ProviderArguments),
}

/// The arguments of `add`.
#[derive(Debug, Args)]
#[command(
    after_help = "At the provider, this site is a client for the authorization code flow with PKCE, which may redirect to \
http://127.0.0.1/callback/NAME with any port (RFC 8252). Nobody can sign in before a group has a role.

Examples:
  strongroom access provider add corp --issuer https://id.example.com/realms/ops --client-id strongroom --client-secret-file corp.secret --scope profile
  strongroom access provider add lab --issuer https://id.lab.example --client-id strongroom --authorities lab-ca.pem --groups-claim /realm_access/roles
  strongroom role grant corp:ops operator
  strongroom login --provider corp"
)]
pub struct AddArguments {
    /// Name of the provider, which the names of its users begin with
    name: Name,

    /// Issuer, as its discovery document spells it
    #[arg(long, value_name = "URL")]
    issuer: IssuerUrl,

    /// Client that this site is there
    #[arg(long, value_name = "ID")]
    client_id: ProviderText,

    /// File with the secret of the client; one trailing line end is removed [default: a public
    /// client without a secret]
    #[arg(long, value_name = "FILE")]
    client_secret_file: Option<PathBuf>,

    /// Ask for this scope besides openid; repeatable
    #[arg(long = "scope", value_name = "SCOPE")]
    scopes: Vec<ProviderText>,

    /// Claim with the name of the user, or a JSON pointer to it [default: preferred_username]
    #[arg(long, value_name = "CLAIM")]
    user_claim: Option<ProviderText>,

    /// Claim with the groups of the user, or a JSON pointer to it [default: groups]
    #[arg(long, value_name = "CLAIM")]
    groups_claim: Option<ProviderText>,

    /// File with the certificates of its authorities, in the place of those of the control plane's
    /// machine
    #[arg(long, value_name = "FILE")]
    authorities: Option<PathBuf>,

    /// Let it send browsers back to this page, too; repeatable
    #[arg(long = "page", value_name = "URL")]
    pages: Vec<PageUrl>,

    /// How long a session lasts before the provider is asked again: 30m, 8h; at most 12h
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, default_value = "1h")]
    session: u64,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `secret`.
#[derive(Debug, Args)]
pub struct SecretArguments {
    /// Name of the provider
    name: Name,

    /// File with the secret of the client; one trailing line end is removed
    #[arg(long, value_name = "FILE")]
    client_secret_file: PathBuf,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a provider.
#[derive(Debug, Args)]
pub struct ProviderArguments {
    /// Name of the provider
    name: Name,

    #[command(flatten)]
    api: ApiArguments,
}

impl ProviderCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Add(arguments) => arguments.run(output),
            Self::List(ListArguments { api }) => {
                let head = ["NAME", "ISSUER", "CLIENT", "GROUPS IN"];
                let all = api.connect()?.list("/v1/identity-providers")?;
                let none = "people sign in with passwords alone; `strongroom access provider add` adds an identity provider";
                table(output, all, head, none, |one: &IdentityProvider| {
                    [
                        one.name.to_string(),
                        one.issuer.to_string(),
                        one.client_id.to_string(),
                        one.groups_claim.to_string(),
                    ]
                })
            }
            Self::Secret(SecretArguments { name, client_secret_file, api }) => {
                let path = format!("/v1/identity-providers/{}", segment(name.as_str()));
                let wish = SetIdentityProvider { client_secret: secret_in(client_secret_file)? };
                let set: IdentityProvider = api.connect()?.patch_for(&path, &wish)?;
                show(output, set, format_args!("identity provider {name} has another secret"))
            }
            Self::Remove(ProviderArguments { name, api }) => {
                api.connect()?.remove(&format!("/v1/identity-providers/{}", segment(name.as_str())))?;
                let text =
                    format!("identity provider {name} is removed; the sessions of its users are ended");
                show(output, Done {}, text)
            }
        }
    }
}

impl AddArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self {
            name,
            issuer,
            client_id,
            client_secret_file,
            scopes,
            user_claim,
            groups_claim,
            authorities,
            pages,
            session,
            api,
        } = self;
        let authorities = authorities.as_deref().map(|file| text_in(file, WEBHOOK_AUTHORITY_BYTES_MAX));
        let authorities = authorities.transpose()?.map(Authorities::try_from);
        let wish = CreateIdentityProvider {
            name: name.clone(),
            issuer: issuer.clone(),
            client_id: client_id.clone(),
            client_secret: client_secret_file.as_deref().map(secret_in).transpose()?,
            scopes: scopes.clone(),
            user_claim: user_claim.clone(),
            groups_claim: groups_claim.clone(),
            authorities: authorities.transpose().map_err(CliError::Usage)?,
            pages: pages.clone(),
            // One that does not fit is longer than any limit.
            session_s: Some(u32::try_from(*session).unwrap_or(u32::MAX)),
        };
        let made: IdentityProvider = api.connect()?.post_for("/v1/identity-providers", &wish)?;
        let text = format!(
            "identity provider {name} is added: {issuer}\n\
             Its groups have no role yet. Next: strongroom role grant {name}:GROUP ROLE"
        );
        show(output, made, text)
    }
}

fn secret_in(file: &Path) -> Result<ClientSecret, CliError> {
    let text = text_in(file, CLIENT_SECRET_BYTES_MAX)?;
    let text = text.strip_suffix('\n').unwrap_or(&text).to_owned();
    let unusable = |reason: String| CliError::Usage(format!("{}: {reason}", file.display()));
    ClientSecret::try_from(text).map_err(unusable)
}
