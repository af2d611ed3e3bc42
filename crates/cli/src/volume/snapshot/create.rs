//! `strongroom volume snapshot create`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    AddLayerOptions, DatastoreError, Decision, NewSnapshot, create_snapshot, describe,
};
use strongroom_types::{SnapshotId, SnapshotName, counted};
use strongroom_worker::control::{
    Answer, Client, ControlError, GroupRecord, GroupVolume, Peer, Request, SNAPSHOT_WITHIN, SnapshotGroup,
    resolve_exposed,
};

use super::super::open::OpenArguments;
use super::to_change;
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "No data is copied: later writes go to a new layer with its own key. An exposed volume \
stays exposed, and its clients wait for some milliseconds; no key is needed here, because the process \
that exposes it has the key. The command returns when the snapshot is durable. The snapshot contains the \
disk at one instant, as after a power cut; flush in the guest (`sync`, `fsfreeze`) to include cached \
data. With --with, several exposed volumes get a snapshot of the same instant, or none of them does, \
whatever is killed meanwhile.

Examples:
  strongroom volume snapshot create ./ds/vm1 before-upgrade
  strongroom volume snapshot create ./ds/vm1 before-upgrade --with ./ds/vm1-data --with ./ds/vm2"
)]
pub struct CreateArguments {
    /// Path of the volume
    path: PathBuf,

    /// Name of the snapshot
    name: SnapshotName,

    /// Another exposed volume, which gets a snapshot of this name at the same instant; repeatable
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Created {
    path: PathBuf,
    snapshot: SnapshotName,
    snapshot_id: String,
    generation: u64,
    /// How long the clients of an exposed volume waited.
    stall_microseconds: Option<u64>,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: snapshot {}", self.path.display(), self.snapshot)?;
        match self.stall_microseconds {
            Some(stall) => write!(f, "; the volume's clients waited for {:.1} ms", stall as f64 / 1000.0),
            None => Ok(()),
        }
    }
}

/// Snapshots of one instant.
#[derive(Serialize)]
struct CreatedTogether {
    snapshots: Vec<Created>,
}

impl fmt::Display for CreatedTogether {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for created in &self.snapshots {
            writeln!(f, "{created}")?;
        }
        write!(f, "{} of one instant", counted(self.snapshots.len(), "snapshot"))
    }
}

impl CreateArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        if !self.with.is_empty() {
            return self.make_group(output);
        }
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: self.name.clone() };
        if let Some(client) = Client::connect(&self.path)? {
            return self.ask(client, snapshot, output);
        }
        let key = self.open.ask_for_key(&self.path)?;
        let opening = to_change(&self.path, &self.open, &key)?;
        let options = AddLayerOptions {
            protection: opening.protection,
            log_bytes: None,
            lock_wait: opening.lock_wait,
            least_generation: opening.least_generation,
        };
        let descriptor = create_snapshot(&self.path, &snapshot, &options)?;
        output.answer(&Created {
            path: self.path.clone(),
            snapshot: snapshot.name,
            snapshot_id: snapshot.id.to_string(),
            generation: descriptor.generation,
            stall_microseconds: None,
        })
    }

    /// Asks the processes that expose the volumes to do it at one instant.
    fn make_group(&self, output: &Output) -> Result<(), CliError> {
        let freshness = self.open.freshness;
        describe(&self.path)?.descriptor.expect_volume(&self.path, freshness.expect_volume)?;
        let others = self.with.iter().map(|path| GroupVolume { path: path.clone(), least_generation: 0 });
        let first = GroupVolume { path: self.path.clone(), least_generation: freshness.least_generation };
        let volumes: Vec<_> = std::iter::once(first).chain(others).collect();
        // What an interrupted command has left, last in the first volume, which decides for others.
        for volume in volumes.iter().rev() {
            resolve_exposed(&volume.path)?;
        }
        let (id, name) = (SnapshotId::random(), self.name.clone());
        let decision =
            Decision::draw().map_err(|error| DatastoreError::Key { path: self.path.clone(), error })?;
        let record = GroupRecord::FirstVolume(decision);
        let group = SnapshotGroup { id, name, volumes, peer: Peer::Trusted, record };
        let made = group.make()?;
        let created = group.volumes.iter().zip(made).map(|(volume, made)| Created {
            path: volume.path.clone(),
            snapshot: self.name.clone(),
            snapshot_id: group.id.to_string(),
            generation: made.generation,
            stall_microseconds: Some(made.stall_microseconds),
        });
        output.answer(&CreatedTogether { snapshots: created.collect() })
    }

    /// Asks the process that exposes the volume to do it.
    fn ask(&self, client: Client, new: NewSnapshot, output: &Output) -> Result<(), CliError> {
        let freshness = self.open.freshness;
        describe(&self.path)?.descriptor.expect_volume(&self.path, freshness.expect_volume)?;
        resolve_exposed(&self.path)?;
        let request =
            Request::Snapshot { id: new.id, name: new.name, least_generation: freshness.least_generation };
        match client.ask(request, SNAPSHOT_WITHIN)? {
            Answer::Snapshotted { snapshot, generation, stall_microseconds } => output.answer(&Created {
                path: self.path.clone(),
                snapshot: self.name.clone(),
                snapshot_id: snapshot.to_string(),
                generation,
                stall_microseconds: Some(stall_microseconds),
            }),
            other => Err(ControlError::of_answer(&self.path, other).into()),
        }
    }
}
