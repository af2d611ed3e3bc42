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
mod status;
mod syslog;
mod token;
mod upstream;

pub use administration::{AdministrationArguments, Administrator, overseer_of_home};
pub use certificates::{ClientFiles, NewKey};
pub use directory::{DirectoryArguments, ServerSettings, parse_address};
pub use init::warn_of_root;
pub use own_certificates::RENEW_BEFORE;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// The commands for a key server.
#[derive(Debug, Subcommand)]
pub enum KeyserverCommand {
    /// Make a key server's state: its root key, its authority, the first certificates
    Init(init::InitArguments),
    /// Serve keys; makes the state first where there is none
    Run(run::RunArguments),
    /// Show what a key server is and whether it is backed up
    Status(status::StatusArguments),
    /// Show or change what protects the root key
    #[command(subcommand)]
    Root(root::RootCommand),
    /// Make, list and cancel tokens by which clients get their first certificate
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// List the clients, and let one in no longer
    #[command(subcommand)]
    Client(client::ClientCommand),
    /// For administrators: keys of one client become another's, as two of them agree
    #[command(subcommand)]
    HandOver(hand_over::HandOverCommand),
    /// Make a backup that several custodians together can open
    Backup(backup::BackupArguments),
    /// For custodians: see whose shares a backup has, and open one's own
    #[command(subcommand)]
    Custodian(custodian::CustodianCommand),
    /// For administrators: who opens backups, which two of them change
    #[command(subcommand)]
    Custody(custody::CustodyCommand),
    /// Make a key server what it was when a backup was made
    Restore(Box<restore::RestoreArguments>),
    /// Get a certificate for a token, or the next one for the present one
    Enrol(enrol::EnrolArguments),
    /// Let a host fetch keys for a VM once, as a client of role control
    Grant(grant::GrantArguments),
    /// Take keys of external providers in, so that hosts get them here under grants
    #[command(subcommand)]
    Broker(broker::BrokerCommand),
    /// Make void what was granted for a VM, as a client of role control
    Fence(fence::FenceArguments),
    /// Have a key granted to one VM alone
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
