//! `strongroom volume snapshot delete`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{authenticated, delete_snapshot, describe};
use strongroom_types::{SnapshotName, display_bytes};
use strongroom_worker::control::{Answer, Client, ControlError, Request, SNAPSHOT_WITHIN};

use super::super::open::OpenArguments;
use super::merge::merge_all;
use super::{find, to_change};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "The content of the volume and of its other snapshots does not change. Data that only \
this snapshot needed is removed at once, with its key. If another snapshot or the volume still needs a \
part of it, two layers are merged: now if the volume is not exposed, otherwise later by 'volume snapshot \
merge'. An interrupted merge is repeated by the next one.

Example:
  strongroom volume snapshot delete ./ds/vm1 before-upgrade"
)]
pub struct DeleteArguments {
    /// Path of the volume
    path: PathBuf,

    /// Name of the snapshot
    name: SnapshotName,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Deleted {
    path: PathBuf,
    snapshot: SnapshotName,
    generation: u64,
    /// Bytes that were moved from one layer to another.
    moved_bytes: u64,
    /// Whether there are layers left to merge.
    layers_to_merge: bool,
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, snapshot, moved_bytes, layers_to_merge, .. } = self;
        write!(f, "{}: deleted snapshot {snapshot}", path.display())?;
        if *moved_bytes > 0 {
            write!(f, "; {} were merged", display_bytes(*moved_bytes))?;
        }
        match layers_to_merge {
            true => write!(
                f,
                "; `strongroom volume snapshot merge {}` gives its space back when nobody exposes the volume",
                path.display()
            ),
            false => Ok(()),
        }
    }
}

impl DeleteArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        if let Some(client) = Client::connect(&self.path)? {
            return self.ask(client, output);
        }
        let key = self.open.ask_for_key(&self.path)?;
        let mut options = to_change(&self.path, &self.open, &key)?;
        let descriptor = authenticated(&self.path, options.protection, options.least_generation)?;
        descriptor.expect_volume(&self.path, self.open.freshness.expect_volume)?;
        options.least_generation = descriptor.generation;
        let snapshot = find(&self.path, &descriptor, &self.name)?.id;
        let descriptor = delete_snapshot(&self.path, snapshot, &options)?;
        let merged = merge_all(&self.path, &options, output)?;
        output.answer(&Deleted {
            path: self.path.clone(),
            snapshot: self.name.clone(),
            generation: merged.generation.unwrap_or(descriptor.generation),
            moved_bytes: merged.moved_bytes,
            layers_to_merge: false,
        })
    }

    /// Asks the process that exposes the volume to do it.
    fn ask(&self, client: Client, output: &Output) -> Result<(), CliError> {
        let freshness = self.open.freshness;
        describe(&self.path)?.descriptor.expect_volume(&self.path, freshness.expect_volume)?;
        let request =
            Request::DeleteSnapshot { name: self.name.clone(), least_generation: freshness.least_generation };
        match client.ask(request, SNAPSHOT_WITHIN)? {
            Answer::SnapshotDeleted { generation, layers_to_merge } => output.answer(&Deleted {
                path: self.path.clone(),
                snapshot: self.name.clone(),
                generation,
                moved_bytes: 0,
                layers_to_merge,
            }),
            other => Err(ControlError::of_answer(&self.path, other).into()),
        }
    }
}
