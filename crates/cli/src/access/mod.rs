//! `strongroom user`, `role`, `folder`, `access`, `login`, `logout`: who may do what at the control
//! plane. Passwords and codes are typed or read from a descriptor, and tokens are shown once.

mod browser;
mod emergency;
mod folder;
mod log;
mod passwords;
mod provider;
mod retention;
mod review;
mod role;
mod scope;
mod session;
mod sign_in;
mod token;
mod user;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;
use serde::de::DeserializeOwned;
use strongroom_api::access::Token;
use strongroom_api::{ErrorCode, Name, Page, Problem};

pub use self::folder::FolderCommand;
pub use self::role::RoleCommand;
pub use self::sign_in::{LoginArguments, LogoutArguments};
pub use self::user::UserCommand;
use crate::api::Api;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The commands for access as a whole.
#[derive(Debug, Subcommand)]
pub enum AccessCommand {
    /// List the roles of all users, groups and tokens, last sign-ins, emergency credentials,
    /// sessions
    Review(review::ReviewArguments),
    /// Say whether a user may call an operation of the API, and why
    Explain(review::ExplainArguments),
    /// List sign-ins, refusals, tickets, and changes of who may do what
    Log(log::LogArguments),
    /// Verify the chain of the access log
    Verify(verify::VerifyArguments),
    /// Get the head of the access log, to detect later that the log was cut or rewritten
    Head(verify::HeadArguments),
    /// Show or set how long the access log is kept, and how large it may become
    Retention(retention::RetentionArguments),
    /// Manage tokens for programs
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List and end sessions
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// Let people sign in by an identity provider (OpenID Connect)
    #[command(subcommand)]
    Provider(provider::ProviderCommand),
    /// Manage credentials for when nobody can sign in as usual
    #[command(subcommand)]
    Emergency(emergency::EmergencyCommand),
}

impl AccessCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        match self {
            Self::Review(arguments) => arguments.run(output)?,
            Self::Explain(arguments) => arguments.run(output)?,
            Self::Log(arguments) => arguments.run(output)?,
            Self::Verify(arguments) => return arguments.run(output),
            Self::Head(arguments) => arguments.run(output)?,
            Self::Retention(arguments) => arguments.run(output)?,
            Self::Token(command) => command.run(output)?,
            Self::Session(command) => command.run(output)?,
            Self::Provider(command) => command.run(output)?,
            Self::Emergency(command) => command.run(output)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The object of this name among all of its kind.
fn by_name<T: DeserializeOwned>(
    api: &Api,
    kind: &str,
    name: &Name,
    its: impl Fn(&T) -> &Name,
) -> Result<T, CliError> {
    let all: Page<T> = api.list(&format!("/v1/{kind}s"))?;
    all.items.into_iter().find(|found| its(found) == name).ok_or_else(|| {
        let problem = Problem::new(ErrorCode::NotFound, format!("there is no {kind} {name}"));
        CliError::problem(&problem.next(format!("`strongroom {kind} list` shows what there is")))
    })
}

/// Whose rights a token has.
fn owner(token: &Token) -> String {
    token.user.as_ref().map_or_else(|| "admin".to_owned(), ToString::to_string)
}

/// A time that may not be known, in a table.
fn time_or_none(unix_seconds: Option<u64>) -> String {
    unix_seconds.map_or_else(|| "never".to_owned(), utc)
}
