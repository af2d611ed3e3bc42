//! `strongroom volume snapshot`: one file per command.

mod create;
mod delete;
mod list;
mod merge;
mod revert;
mod wait;

use std::path::Path;

use clap::Subcommand;
use strongroom_datastore::file::{Access, DatastoreError, Descriptor, OpenOptions, SnapshotRecord};
use strongroom_types::SnapshotName;
use strongroom_worker::{MergeError, complete};

pub use self::merge::{parse_client_share, parse_rate};
pub use self::wait::{WAITS_FOR_OTHERS, in_words};
use super::open::OpenArguments;
use crate::error::CliError;
use crate::keys::VolumeKey;
use crate::output::Output;

/// The commands for snapshots.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Create a snapshot, even while the volume is exposed
    Create(create::CreateArguments),
    /// List the snapshots of a volume
    List(list::ListArguments),
    /// Revert a volume to a snapshot
    Revert(revert::RevertArguments),
    /// Delete a snapshot, even while the volume is exposed
    Delete(delete::DeleteArguments),
    /// Give back the space of deleted snapshots, also while the volume is exposed
    Merge(merge::MergeArguments),
}

impl SnapshotCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Revert(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
            Self::Merge(arguments) => arguments.run(output),
        }
    }
}

/// Completes an interrupted change of the volume. Returns the options to open it with.
fn to_change<'a>(path: &Path, open: &OpenArguments, key: &'a VolumeKey) -> Result<OpenOptions<'a>, CliError> {
    let options = open.options(key, Access::ReadWrite);
    complete(path, &options).map_err(|error| of_merge(error, path))?;
    Ok(options)
}

/// The error of moving blocks between the layers of a volume.
fn of_merge(error: MergeError, path: &Path) -> CliError {
    match error {
        MergeError::Datastore(error) => error.into(),
        MergeError::Stack(error) => error.into(),
        MergeError::Transfer(error) => CliError::transfer(error, path, "merge", path),
    }
}

/// The snapshot of this name.
pub(super) fn find<'a>(
    path: &Path,
    descriptor: &'a Descriptor,
    name: &SnapshotName,
) -> Result<&'a SnapshotRecord, DatastoreError> {
    descriptor
        .snapshot_named(name)
        .ok_or_else(|| DatastoreError::NoSnapshot { path: path.to_owned(), snapshot: name.to_string() })
}
