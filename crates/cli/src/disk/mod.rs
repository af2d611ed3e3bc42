//! `strongroom disk`: disks that no VM has. The API calls them volumes.

mod binding;
mod clone;
mod create;
mod list;
mod remove;
mod resize;
mod show;
mod snapshot;

use clap::Subcommand;
use strongroom_api::task::Task;
use strongroom_api::volume::{ChangeAnswer, ChangeVolumes, VolumeChange, VolumeChanges};
use strongroom_api::{ErrorCode, Problem};

use crate::api::Api;
use crate::error::CliError;
use crate::output::Output;

/// The commands for disks that no VM has.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Create an empty disk under a key of its own
    Create(create::CreateArguments),
    /// List disks, those of VMs too
    List(list::ListArguments),
    /// Show a disk with its snapshots
    Show(show::ShowArguments),
    /// Create a disk with the content of another one, which a VM may have
    Clone(clone::CloneArguments),
    /// Grow a disk
    Resize(resize::ResizeArguments),
    /// Create, revert to and delete snapshots of a disk
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Give a disk to a VM, running or off
    Bind(binding::BindArguments),
    /// Take a disk from a VM, running or off, and keep it
    Unbind(binding::UnbindArguments),
    /// Delete a disk
    Delete(remove::DeleteArguments),
}

impl DiskCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Show(arguments) => arguments.run(output),
            Self::Clone(arguments) => arguments.run(output),
            Self::Resize(arguments) => arguments.run(output),
            Self::Snapshot(command) => command.run(output),
            Self::Bind(arguments) => arguments.run(output),
            Self::Unbind(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }
    }
}

/// Starts a change, the only one of its batch.
fn change(api: &Api, change: VolumeChange) -> Result<Task, CliError> {
    let batch = ChangeVolumes { changes: vec![change] };
    let answer: VolumeChanges = api.post_once_for("/v1/volumes/changes", &batch)?;
    match answer.changes.into_iter().next() {
        Some(ChangeAnswer::Task(task)) => Ok(*task),
        Some(ChangeAnswer::Error(problem)) => Err(CliError::problem(&problem)),
        None => {
            let message = "the control plane answers something else than a task";
            Err(CliError::problem(&Problem::new(ErrorCode::Internal, message)))
        }
    }
}
