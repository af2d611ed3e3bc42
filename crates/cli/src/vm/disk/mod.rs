//! `strongroom vm disk`: one file per command.

mod add;
mod checksum;
mod extents;
mod fetch;
mod import;
mod list;
mod move_disk;
mod remove;
mod resize;
mod seal;

use clap::Subcommand;

pub use self::checksum::{Checksum, ImagePlace};
pub use self::import::{ImageArguments, Upload, bring, disk_name, import};
use super::libvirt::{AttachArguments, DetachArguments};
use super::limit::LimitDiskArguments;
use crate::error::CliError;
use crate::output::Output;

/// The commands for a VM's disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Add a disk to a VM that runs or is off
    Add(add::AddArguments),
    /// List the disks of a VM
    List(list::ListArguments),
    /// Show where a disk has content, or where it changed between snapshots
    Extents(Box<extents::ExtentsArguments>),
    /// Grow a disk of a VM that runs or is off
    Resize(resize::ResizeArguments),
    /// Move a disk of a VM that is off to another datastore
    Move(move_disk::MoveArguments),
    /// Limit how fast the requests of a disk are carried out
    Limit(LimitDiskArguments),
    /// Encrypt a disk with its snapshots
    Encrypt(seal::EncryptArguments),
    /// Decrypt a disk with its snapshots
    Decrypt(seal::DecryptArguments),
    /// Remove a disk from a VM that runs or is off, and delete it
    Remove(remove::RemoveArguments),
    /// Write an image to a disk of a VM that is off
    Import(import::ImportArguments),
    /// Attach a volume to a guest of libvirt
    Attach(Box<AttachArguments>),
    /// Detach a volume from a guest of libvirt
    Detach(DetachArguments),
}

impl DiskCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Add(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Extents(arguments) => arguments.run(output),
            Self::Resize(arguments) => arguments.run(output),
            Self::Move(arguments) => arguments.run(output),
            Self::Limit(arguments) => arguments.run(output),
            Self::Encrypt(arguments) => arguments.run(output),
            Self::Decrypt(arguments) => arguments.run(output),
            Self::Remove(arguments) => arguments.run(output),
            Self::Import(arguments) => arguments.run(output),
            Self::Attach(arguments) => arguments.run(output),
            Self::Detach(arguments) => arguments.run(output),
        }
    }
}
