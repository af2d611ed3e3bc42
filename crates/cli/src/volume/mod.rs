//! `strongroom volume`: one file per command.

pub mod attach;
pub mod check;
mod create;
mod delete;
pub mod describe;
mod export;
pub mod expose;
mod expose_memory;
pub mod image_format;
mod import;
mod info;
mod key_events;
mod list;
pub mod open;
pub mod rekey;
mod resize;
mod snapshot;
mod staged;
mod statistics;
mod target;
mod upgrade;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// The commands for volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume
    Create(create::CreateArguments),
    /// List the volumes of a datastore
    List(list::ListArguments),
    /// Show what a volume is
    Info(info::InfoArguments),
    /// Let QEMU, or any other NBD client, use a volume
    Expose(Box<expose::ExposeArguments>),
    /// Let clients use an empty disk in memory, for tests and measuring
    ExposeMemory(expose_memory::ExposeMemoryArguments),
    /// Make a volume larger, also while it is exposed
    Resize(resize::ResizeArguments),
    /// Move an exposed volume to the program that is installed now
    Upgrade(upgrade::UpgradeArguments),
    /// Move volumes to other keys, also while they are exposed; no data is copied
    Rekey(Box<rekey::RekeyArguments>),
    /// Look for damage, and change nothing
    Check(check::CheckArguments),
    /// Make, list, go back to and delete snapshots of a volume
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Make a volume of a disk image
    Import(import::ImportArguments),
    /// Make a disk image of a volume: plain guest data
    Export(export::ExportArguments),
    /// Delete a volume for good
    Delete(delete::DeleteArguments),
}

impl VolumeCommand {
    /// Does it. `log` is what makes another process log as this one does.
    pub fn run(&self, output: &Output, log: &[OsString]) -> Result<ExitCode, CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Info(arguments) => arguments.run(output),
            Self::Expose(arguments) => arguments.run(output, log),
            Self::ExposeMemory(arguments) => arguments.run(output, log),
            Self::Resize(arguments) => arguments.run(output),
            Self::Upgrade(arguments) => arguments.run(output),
            Self::Rekey(arguments) => return arguments.run(output),
            Self::Check(arguments) => return arguments.run(output),
            Self::Snapshot(command) => command.run(output),
            Self::Import(arguments) => arguments.run(output),
            Self::Export(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
