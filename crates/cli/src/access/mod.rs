//! `strongroom user`, `role`, `folder`, `access`, `login`, `logout`: who may do what at the control
//! plane. Passwords and codes are typed or read from a descriptor, and tokens are shown once.

mod folder;
mod log;
mod passwords;
mod review;
mod role;
mod scope;
mod session;
mod sign_in;
mod token;
mod user;

use clap::Subcommand;

pub use self::folder::FolderCommand;
pub use self::role::RoleCommand;
pub use self::sign_in::{LoginArguments, LogoutArguments};
pub use self::user::UserCommand;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The commands for access as a whole.
#[derive(Debug, Subcommand)]
pub enum AccessCommand {
    /// List the roles of all users and tokens, last sign-ins, and when tokens end
    Review(review::ReviewArguments),
    /// Say whether a user may call an operation of the API, and why
    Explain(review::ExplainArguments),
    /// List sign-ins, refusals, tickets, and changes of who may do what
    Log(log::LogArguments),
    /// Manage tokens for programs
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List and end sessions
    #[command(subcommand)]
    Session(session::SessionCommand),
}

impl AccessCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Review(arguments) => arguments.run(output),
            Self::Explain(arguments) => arguments.run(output),
            Self::Log(arguments) => arguments.run(output),
            Self::Token(command) => command.run(output),
            Self::Session(command) => command.run(output),
        }
    }
}

/// A time that may not be known, in a table.
fn time_or_none(unix_seconds: Option<u64>) -> String {
    unix_seconds.map_or_else(|| "never".to_owned(), utc)
}
