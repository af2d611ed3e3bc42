//! `strongroom key`: the keys of all providers. One file per command; `waiting` describes pending
//! destructions. Inventory, rotation and kept destructions are in `strongroom_jobs`.

mod destroy;
mod history;
mod list;
mod rotate;
mod show;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use strongroom_jobs::inventory::KeyName;
use strongroom_keys::ProviderName;

use crate::error::CliError;
use crate::output::Output;

/// The commands for keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List the keys, and how many volumes need each
    List(list::ListArguments),
    /// Show all that is known of a key
    Show(show::ShowArguments),
    /// Replace a key by a new one, for every volume that needs it, also while they are exposed
    Rotate(rotate::RotateArguments),
    /// Destroy a key that nothing needs: after a delay, and with a second person's word
    Destroy(Box<destroy::DestroyArguments>),
    /// Show what happened to a key
    History(history::HistoryArguments),
}

/// The name of a key.
#[derive(Debug, Args)]
pub struct KeyNameArguments {
    /// The key: its id at its provider, or the KEK id that a volume is under
    #[arg(value_name = "KEY")]
    key: String,

    /// Whose key, if several providers have one of that id
    #[arg(long, value_name = "NAME")]
    provider: Option<ProviderName>,
}

impl KeyNameArguments {
    /// The name that was given.
    pub fn name(&self) -> KeyName {
        KeyName { key: self.key.clone(), provider: self.provider.clone() }
    }
}

/// Datastores to search for volumes in addition to the known ones.
#[derive(Debug, Args)]
pub struct DatastoreArguments {
    /// Look for volumes in the datastore DIR too; can be given more than once
    #[arg(long = "datastore", value_name = "DIR")]
    datastores: Vec<PathBuf>,
}

impl KeyCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        match self {
            Self::List(arguments) => arguments.run(output),
            Self::Show(arguments) => arguments.run(output),
            Self::Rotate(arguments) => arguments.run(output),
            Self::Destroy(arguments) => arguments.run(output),
            Self::History(arguments) => arguments.run(output),
        }
    }
}
