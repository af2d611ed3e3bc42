//! `strongroom vm disk`: one file per command.

mod add;
mod import;
mod list;
mod remove;
mod resize;

use clap::Subcommand;

pub use self::import::{ImageArguments, Upload, bring, disk_name, import};
use super::libvirt::{AttachArguments, DetachArguments};
use crate::error::CliError;
use crate::output::Output;

/// The commands for a VM's disks.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Add a disk to a VM, while it runs or is off
    Add(add::AddArguments),
    /// List the disks of a VM
    List(list::ListArguments),
    /// Make a disk larger, while the VM runs or is off
    Resize(resize::ResizeArguments),
    /// Take a disk out of a VM and delete it, while the VM runs or is off
    Remove(remove::RemoveArguments),
    /// Fill a disk of a VM that is off with an image
    Import(import::ImportArguments),
    /// Make a volume a disk of a guest that libvirt runs
    Attach(Box<AttachArguments>),
    /// Take such a disk out again
    Detach(DetachArguments),
}

impl DiskCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Add(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Resize(arguments) => arguments.run(output),
            Self::Remove(arguments) => arguments.run(output),
            Self::Import(arguments) => arguments.run(output),
            Self::Attach(arguments) => arguments.run(output),
            Self::Detach(arguments) => arguments.run(output),
        }
    }
}
