//! `strongroom volume snapshot delete`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    DescribedVolume, Descriptor, VolumeHead, authenticated, delete_snapshot, describe,
};
use strongroom_types::{SnapshotId, SnapshotName, display_bytes};
use strongroom_worker::control::{Answer, Client, ControlError, Request, SNAPSHOT_WITHIN, resolve_exposed};

use super::super::open::OpenArguments;
use super::merge::merge_all;
use super::wait::{WAITS_FOR_OTHERS, await_merges};
use super::{find, to_change};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume keeps what it holds, and so do its other snapshots. What only this snapshot needed goes at once, with its \
key. Where another one, or the volume, still needs a part of it, two layers are made one. If nobody exposes the volume, the \
command does that. Otherwise it returns when the name is durably gone, and the process that exposes the volume merges in the \
background, slowly while clients are busy; 'volume info' shows how far it is. That can be interrupted at any moment.

Examples:
  strongroom volume snapshot delete ./ds/vm1 before-upgrade
  strongroom volume snapshot delete ./ds/vm1 failed-upgrade --wait"
)]
pub struct DeleteArguments {
    /// Path of the volume
    path: PathBuf,

    /// Name of the snapshot
    name: SnapshotName,

    /// Wait until the layers of an exposed volume are merged
    #[arg(long)]
    wait: bool,

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
    /// Whether they wait until no other volume has them.
    waits_for_others: bool,
    /// Whether the process that exposes the volume merges them now.
    is_merging: bool,
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, snapshot, moved_bytes, layers_to_merge, is_merging, .. } = self;
        write!(f, "{}: deleted snapshot {snapshot}", path.display())?;
        if *moved_bytes > 0 {
            write!(f, "; {} were merged", display_bytes(*moved_bytes))?;
        }
        let path = path.display();
        match (layers_to_merge, is_merging) {
            (_, true) => write!(
                f,
                "; its layer is merged in the background, and `strongroom volume info {path}` shows how far that is"
            ),
            (_, false) if self.waits_for_others => write!(f, "; {WAITS_FOR_OTHERS}"),
            (true, false) => write!(f, "; `strongroom volume snapshot merge {path}` gives its space back"),
            (false, false) => Ok(()),
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
        let descriptor = match self.undecided(&descriptor) {
            Some(id) => {
                let mut head = VolumeHead::open(&self.path, &options)?;
                head.abandon_part(id, options.protection)?;
                head.descriptor().clone()
            }
            None => {
                let snapshot = find(&self.path, &descriptor, &self.name)?.id;
                delete_snapshot(&self.path, snapshot, &options)?
            }
        };
        let merged = merge_all(&self.path, &options, output)?;
        output.answer(&Deleted {
            path: self.path.clone(),
            snapshot: self.name.clone(),
            generation: merged.generation.unwrap_or(descriptor.generation),
            moved_bytes: merged.moved_bytes,
            layers_to_merge: false,
            waits_for_others: self.waits_for_others()?,
            is_merging: false,
        })
    }

    fn waits_for_others(&self) -> Result<bool, CliError> {
        let DescribedVolume { descriptor, shared_layers, .. } = describe(&self.path)?;
        Ok(descriptor.waits_for_others(&shared_layers))
    }

    /// The part of this name of a snapshot of several volumes that nobody decides any more.
    fn undecided(&self, descriptor: &Descriptor) -> Option<SnapshotId> {
        let part = &descriptor.part()?.snapshot;
        (part.name == self.name).then_some(part.id)
    }

    /// Asks the process that exposes the volume to do it.
    fn ask(&self, client: Client, output: &Output) -> Result<(), CliError> {
        let freshness = self.open.freshness;
        resolve_exposed(&self.path)?;
        let descriptor = describe(&self.path)?.descriptor;
        descriptor.expect_volume(&self.path, freshness.expect_volume)?;
        let request = match self.undecided(&descriptor) {
            Some(id) => Request::AbandonSnapshot { id },
            None => Request::DeleteSnapshot {
                name: self.name.clone(),
                least_generation: freshness.least_generation,
            },
        };
        match client.ask(request, SNAPSHOT_WITHIN)? {
            Answer::SnapshotAbandoned => {
                let descriptor = describe(&self.path)?.descriptor;
                output.answer(&Deleted {
                    path: self.path.clone(),
                    snapshot: self.name.clone(),
                    generation: descriptor.generation,
                    moved_bytes: 0,
                    layers_to_merge: descriptor.has_layers_to_merge(),
                    waits_for_others: self.waits_for_others()?,
                    is_merging: false,
                })
            }
            Answer::SnapshotDeleted { mut generation, mut layers_to_merge, mut is_merging } => {
                if self.wait && layers_to_merge {
                    await_merges(&self.path, output)?;
                    let descriptor = describe(&self.path)?.descriptor;
                    generation = descriptor.generation;
                    (layers_to_merge, is_merging) = (descriptor.has_layers_to_merge(), false);
                }
                let (path, snapshot) = (self.path.clone(), self.name.clone());
                output.answer(&Deleted {
                    path,
                    snapshot,
                    generation,
                    moved_bytes: 0,
                    layers_to_merge,
                    waits_for_others: self.waits_for_others()?,
                    is_merging,
                })
            }
            other => Err(ControlError::of_answer(&self.path, other).into()),
        }
    }
}
