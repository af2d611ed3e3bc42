//! `strongroom volume snapshot list`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    DescribedVolume, GroupMark, SnapshotRecord, Verdict, describe, group_verdict,
};
use strongroom_types::{SnapshotName, counted};
use strongroom_worker::control::{MergeStatus, status_of};

use super::wait::{WAITS_FOR_OTHERS, in_words};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "The list is read from the volume's descriptor without the key, and so is not \
authenticated; the commands that use a snapshot check it.

Example:
  strongroom volume snapshot list ./ds/vm1")]
pub struct ListArguments {
    /// Path of the volume
    path: PathBuf,
}

#[derive(Serialize)]
struct Listed {
    path: PathBuf,
    snapshots: Vec<ListedSnapshot>,
    /// What is left of an interrupted snapshot of several volumes.
    undecided: Option<Undecided>,
    /// Whether there are layers to merge.
    layers_to_merge: bool,
    /// Whether these wait until no other volume has them.
    waits_for_others: bool,
    /// How far an exposed volume's merge has come.
    merge: Option<MergeStatus>,
}

#[derive(Serialize)]
struct ListedSnapshot {
    name: SnapshotName,
    snapshot_id: String,
    created_unix_seconds: u64,
    /// The snapshot whose content was the start of this one.
    parent: Option<SnapshotName>,
    /// Whether the volume's present content started from this one.
    is_current: bool,
    size_bytes: u64,
}

/// The volume's part of a snapshot of several volumes, which may not exist.
#[derive(Serialize)]
struct Undecided {
    name: SnapshotName,
    snapshot_id: String,
    /// Why it is not listed.
    reason: String,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for snapshot in &self.snapshots {
            let ListedSnapshot { name, created_unix_seconds, parent, is_current, .. } = snapshot;
            let mark = if *is_current { "*" } else { " " };
            write!(f, "{mark} {name:<24} {}", utc(*created_unix_seconds))?;
            match parent {
                Some(parent) => writeln!(f, "  after {parent}")?,
                None => writeln!(f)?,
            }
        }
        write!(f, "{}", counted(self.snapshots.len(), "snapshot"))?;
        if self.snapshots.iter().any(|snapshot| snapshot.is_current) {
            write!(f, "; the volume goes on from the one that is marked *")?;
        }
        if let Some(Undecided { name, reason, .. }) = &self.undecided {
            write!(f, "; {name}, of several volumes, is none: {reason}")?;
        }
        if let Some(merge) = &self.merge {
            return write!(f, "; merge: {}", in_words(merge));
        }
        match (self.waits_for_others, self.layers_to_merge) {
            (true, _) => write!(f, "; {WAITS_FOR_OTHERS}"),
            (false, true) => write!(f, "; `strongroom volume snapshot merge` gives space back"),
            (false, false) => Ok(()),
        }
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let DescribedVolume { mut descriptor, shared_layers, .. } = describe(&self.path)?;
        let undecided = match group_verdict(&self.path)? {
            // The first volume says that the snapshot exists, and this one notes it when it is next
            // used.
            Some((GroupMark::Part(part), Verdict::Made(_))) => {
                descriptor.snapshots.push(part.snapshot);
                None
            }
            Some((GroupMark::Part(part), verdict)) => Some(Undecided {
                name: part.snapshot.name,
                snapshot_id: part.snapshot.id.to_string(),
                reason: match verdict {
                    Verdict::Stays(reason) => reason,
                    _ => "it was interrupted, and goes when the volume is next used".to_owned(),
                },
            }),
            Some((GroupMark::Made(_), _)) | None => None,
        };
        let snapshot_below = |from| descriptor.nearest_snapshot(from).map(|found| found.id);
        let current = snapshot_below(Some(descriptor.top));
        let list = |record: &SnapshotRecord| {
            let layer = descriptor.layer(record.layer);
            let parent = descriptor.nearest_snapshot(layer.and_then(|layer| layer.parent));
            ListedSnapshot {
                name: record.name.clone(),
                snapshot_id: record.id.to_string(),
                created_unix_seconds: record.created_unix_seconds,
                parent: parent.map(|parent| parent.name.clone()),
                is_current: current == Some(record.id),
                size_bytes: layer.map_or(0, |layer| descriptor.layer_size(layer).bytes()),
            }
        };
        output.answer(&Listed {
            path: self.path.clone(),
            snapshots: descriptor.snapshots.iter().map(list).collect(),
            undecided,
            layers_to_merge: descriptor.has_layers_to_merge(),
            waits_for_others: descriptor.waits_for_others(&shared_layers),
            merge: status_of(&self.path).and_then(|status| status.merge).map(|merge| *merge),
        })
    }
}
