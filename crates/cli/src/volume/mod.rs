//! `strongroom volume`: one file per command.

mod check;
mod create;
mod delete;
mod describe;
mod info;
mod list;
mod open;
mod resize;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// What can be done with volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume
    Create(create::CreateArguments),
    /// List the volumes of a datastore
    List(list::ListArguments),
    /// Show what a volume is
    Info(info::InfoArguments),
    /// Make a volume larger
    Resize(resize::ResizeArguments),
    /// Look for damage, and change nothing
    Check(check::CheckArguments),
    /// Delete a volume for good
    Delete(delete::DeleteArguments),
}

impl VolumeCommand {
    /// Does it.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Info(arguments) => arguments.run(output),
            Self::Resize(arguments) => arguments.run(output),
            Self::Check(arguments) => return arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
