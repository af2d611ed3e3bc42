//! `strongroom disk snapshot`. `disk show` lists snapshots.

use clap::{Args, Subcommand};
use strongroom_api::Reference;
use strongroom_api::volume::{DeleteVolumeSnapshot, RevertVolume, SnapshotVolume, VolumeChange};
use strongroom_types::SnapshotName;

use super::change;
use crate::api::{ApiArguments, WaitArguments, parse_reference};
use crate::error::CliError;
use crate::output::Output;
use crate::vm::{is_meant, made};

/// Snapshots of a disk that no VM has.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create a snapshot
    Create(CreateArguments),
    /// Revert the disk to a snapshot
    Revert(RevertArguments),
    /// Delete a snapshot
    Delete(DeleteArguments),
}

/// The arguments of `snapshot create`.
#[derive(Debug, Args)]
#[command(
    after_help = "With --with, other disks that no VM has, and VMs, get the snapshot at the same instant: all of them, or none.

Examples:
  strongroom disk snapshot create data1 monday
  strongroom disk snapshot create data1 tuesday --with data2"
)]
pub struct CreateArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Name of the snapshot
    name: SnapshotName,

    /// Another disk that no VM has, or a VM, that gets the snapshot at the same instant
    #[arg(long, value_name = "DISK", value_parser = parse_reference)]
    with: Vec<Reference>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `snapshot revert`.
#[derive(Debug, Args)]
#[command(after_help = "The present content is kept as another snapshot, unless --discard is given.

Example:
  strongroom disk snapshot revert data1 monday")]
pub struct RevertArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Name or id of the snapshot
    #[arg(value_parser = parse_reference)]
    snapshot: Reference,

    /// Name of the snapshot that keeps the present content [default: before-revert-N]
    #[arg(long, value_name = "NAME", conflicts_with = "discard")]
    keep_as: Option<SnapshotName>,

    /// Do not keep the present content
    #[arg(long)]
    discard: bool,

    /// Do not ask before content is discarded
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `snapshot delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom disk snapshot delete data1 monday")]
pub struct DeleteArguments {
    /// Name or id of the disk
    #[arg(value_parser = parse_reference)]
    disk: Reference,

    /// Name or id of the snapshot
    #[arg(value_parser = parse_reference)]
    snapshot: Reference,

    /// Do not ask
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl SnapshotCommand {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::Revert(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }
    }
}

impl CreateArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let Self { disk, name, with, .. } = self;
        let wish = SnapshotVolume { volume: disk.clone(), name: name.clone(), with: with.clone() };
        let task = change(&api, VolumeChange::Snapshot(wish))?;
        self.wait.finish(&api, output, "taking", task, made(name, disk.as_str(), with))
    }
}

impl RevertArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let Self { disk, snapshot, keep_as, discard, .. } = self;
        if *discard && !self.yes {
            is_meant(&format!("Discard everything on disk {disk} since its last snapshot?"))?;
        }
        let wish = RevertVolume {
            volume: disk.clone(),
            snapshot: snapshot.clone(),
            keep_as: keep_as.clone(),
            discard: *discard,
        };
        let task = change(&api, VolumeChange::Revert(wish))?;
        self.wait.finish(&api, output, "reverting", task, format!("disk {disk} is as in snapshot {snapshot}"))
    }
}

impl DeleteArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let Self { disk, snapshot, .. } = self;
        if !self.yes {
            is_meant(&format!("Delete snapshot {snapshot} of disk {disk}?"))?;
        }
        let wish = DeleteVolumeSnapshot { volume: disk.clone(), snapshot: snapshot.clone() };
        let task = change(&api, VolumeChange::DeleteSnapshot(wish))?;
        self.wait.finish(&api, output, "deleting", task, format!("snapshot {snapshot} of {disk} is deleted"))
    }
}
