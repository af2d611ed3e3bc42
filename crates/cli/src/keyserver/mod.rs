//! `strongroom keyserver`: the embedded key server. One file per command.
//!
//! `init`, `run` and `restore` work on the state directory, which only one process can open.
//! `custodian` needs no server. The others send requests to a running server, with the
//! administrator's or a control plane's certificate.

mod administration;
mod audit_settings;
mod backup;
mod bind;
mod broker;
mod certificates;
mod client;
mod custodian;
mod custody;
mod directory;
mod enrol;
mod fence;
mod grant;
mod hand_over;
mod init;
mod own_certificates;
mod restore;
mod root;
mod run;
mod shares;
mod status;
mod syslog;
mod token;
mod upstream;

pub use administration::{AdministrationArguments, Administrator, administrator_of_home, overseer_of_home};
pub use backup::CustodianArgument;
pub use certificates::{ClientFiles, NewKey, read_certificates};
pub use directory::{DirectoryArguments, ServerSettings, parse_address};
pub use init::warn_of_root;
pub use own_certificates::RENEW_BEFORE;
pub use shares::ShareArguments;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// The commands for a key server.
#[derive(Debug, Subcommand)]
pub enum KeyserverCommand {
    /// Create a key server: its root key, its authority, the first certificates
    Init(init::InitArguments),
    /// Run the key server, after creating its state if necessary
    Run(run::RunArguments),
    /// Show the status of a key server and of its backups
    Status(status::StatusArguments),
    /// Show or change the protection of the root key
    #[command(subcommand)]
    Root(root::RootCommand),
    /// Manage tokens with which clients get their first certificate
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List and revoke clients
    #[command(subcommand)]
    Client(client::ClientCommand),
    /// Transfer keys from one client to another, confirmed by a second administrator
    #[command(subcommand)]
    HandOver(hand_over::HandOverCommand),
    /// Create a backup that several custodians together can open
    Backup(backup::BackupArguments),
    /// List the shares of a backup and open your own, as a custodian
    #[command(subcommand)]
    Custodian(custodian::CustodianCommand),
    /// Show and confirm the custodians of backups, as an administrator
    #[command(subcommand)]
    Custody(custody::CustodyCommand),
    /// Restore a key server from a backup
    Restore(Box<restore::RestoreArguments>),
    /// Get a client certificate with a token, or renew it
    Enrol(enrol::EnrolArguments),
    /// Grant a host one fetch of a VM's keys, as a client with role control
    Grant(grant::GrantArguments),
    /// Manage keys of external providers that hosts get from this server under grants
    #[command(subcommand)]
    Broker(broker::BrokerCommand),
    /// Revoke the grants of a VM, as a client with role control
    Fence(fence::FenceArguments),
    /// Bind a key to one VM
    Bind(bind::BindArguments),
}

impl KeyserverCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        match self {
            Self::Init(arguments) => arguments.run(output),
            Self::Run(arguments) => arguments.run(output),
            Self::Status(arguments) => arguments.run(output),
            Self::Root(command) => command.run(output),
            Self::Token(command) => command.run(output),
            Self::Client(command) => command.run(output),
            Self::HandOver(command) => command.run(output),
            Self::Backup(arguments) => arguments.run(output),
            Self::Custodian(command) => command.run(output),
            Self::Custody(command) => command.run(output),
            Self::Restore(arguments) => arguments.run(output),
            Self::Enrol(arguments) => arguments.run(output),
            Self::Grant(arguments) => arguments.run(output),
            Self::Broker(command) => command.run(output),
            Self::Fence(arguments) => arguments.run(output),
            Self::Bind(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
