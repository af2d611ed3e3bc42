//! `strongroom key-provider`: one file per command.

mod add;
mod create_key;
mod list;
mod remove;
mod test;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// The commands for key providers.
#[derive(Debug, Subcommand)]
pub enum KeyProviderCommand {
    /// Add a key provider
    Add(Box<add::AddArguments>),
    /// List the key providers of this machine
    List(list::ListArguments),
    /// Test each server of a key provider with a temporary key
    Test(test::TestArguments),
    /// Create a key at a key provider without seeing it
    CreateKey(create_key::CreateKeyArguments),
    /// Remove a key provider; its keys stay where they are
    Remove(remove::RemoveArguments),
}

impl KeyProviderCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        match self {
            Self::Add(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Test(arguments) => return arguments.run(output),
            Self::CreateKey(arguments) => arguments.run(output),
            Self::Remove(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
