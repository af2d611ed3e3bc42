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

pub use destroy::object_id;

/// The commands for keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// List keys, and how many volumes need each
    List(list::ListArguments),
    /// Show the details of a key
    Show(show::ShowArguments),
    /// Replace a key by a new one for every volume that needs it, even while volumes are exposed
    Rotate(rotate::RotateArguments),
    /// Destroy an unused key, after a delay and a second person's confirmation
    Destroy(Box<destroy::DestroyArguments>),
    /// Show the history of a key
    History(history::HistoryArguments),
}

/// The name of a key.
#[derive(Debug, Args)]
pub struct KeyNameArguments {
    /// Id of the key at its provider, or a volume's KEK id
    #[arg(value_name = "KEY")]
    key: String,

    /// Provider of the key, if several have one with that id
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
    /// Search the datastore DIR for volumes, too; repeatable
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
