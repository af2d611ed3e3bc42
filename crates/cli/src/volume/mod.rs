//! `strongroom volume`: one file per command.

pub mod attach;
pub mod check;
pub mod create;
mod decrypt;
pub mod delete;
pub mod describe;
mod encrypt;
mod export;
pub mod expose;
mod expose_memory;
pub mod extents;
pub mod image_format;
mod import;
mod info;
mod key_events;
mod list;
pub mod open;
mod reencrypt;
pub mod rekey;
mod relocate;
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
    /// Create a volume
    Create(create::CreateArguments),
    /// List the volumes of a datastore
    List(list::ListArguments),
    /// Show the details of a volume
    Info(info::InfoArguments),
    /// Show where a volume has content, or where it changed between snapshots
    Extents(extents::ExtentsArguments),
    /// Expose a volume to QEMU or any other NBD client
    Expose(Box<expose::ExposeArguments>),
    /// Expose an empty disk in memory, for tests and measurements
    ExposeMemory(expose_memory::ExposeMemoryArguments),
    /// Grow a volume, even while it is exposed
    Resize(resize::ResizeArguments),
    /// Upgrade the worker of an exposed volume to the installed program
    Upgrade(upgrade::UpgradeArguments),
    /// Move volumes to new keys, even while they are exposed; with --data, rewrite a volume under
    /// new data keys
    Rekey(Box<rekey::RekeyArguments>),
    /// Encrypt an unencrypted volume with its snapshots
    Encrypt(Box<encrypt::EncryptArguments>),
    /// Remove the encryption of a volume and its snapshots
    Decrypt(Box<decrypt::DecryptArguments>),
    /// Move a volume to another datastore, with its snapshots and keys
    Move(relocate::MoveArguments),
    /// Check a volume for damage, without changing it
    Check(check::CheckArguments),
    /// Create, list, revert to and delete snapshots of a volume
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Import a disk image into a new volume
    Import(import::ImportArguments),
    /// Export a volume to an unencrypted disk image
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
            Self::Extents(arguments) => arguments.run(output),
            Self::Expose(arguments) => arguments.run(output, log),
            Self::ExposeMemory(arguments) => arguments.run(output, log),
            Self::Resize(arguments) => arguments.run(output),
            Self::Upgrade(arguments) => arguments.run(output),
            Self::Rekey(arguments) => return arguments.run(output),
            Self::Encrypt(arguments) => arguments.run(output),
            Self::Decrypt(arguments) => arguments.run(output),
            Self::Move(arguments) => arguments.run(output),
            Self::Check(arguments) => return arguments.run(output),
            Self::Snapshot(command) => command.run(output),
            Self::Import(arguments) => arguments.run(output),
            Self::Export(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
