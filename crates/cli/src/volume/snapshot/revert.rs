//! `strongroom volume snapshot revert`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{AddLayerOptions, NewSnapshot, authenticated, revert};
use strongroom_types::{SnapshotId, SnapshotName, display_bytes};

use super::super::open::OpenArguments;
use super::{find, to_change};
use crate::error::CliError;
use crate::output::Output;

/// Which volume, and to which snapshot.
#[derive(Debug, Args)]
#[command(
    after_help = "The volume must not be in use. Its size is reverted too. Its present content is kept \
as the snapshot named by --keep-as, or lost with --discard; the snapshot that it reverts to remains.

Examples:
  strongroom volume snapshot revert ./ds/vm1 before-upgrade --keep-as failed-upgrade
  strongroom volume snapshot revert ./ds/vm1 before-upgrade --discard"
)]
#[group(id = "present", required = true, multiple = false, args = ["keep_as", "discard"])]
pub struct RevertArguments {
    /// Path of the volume
    path: PathBuf,

    /// Name of the snapshot
    name: SnapshotName,

    /// Keep the present content as a snapshot with this name
    #[arg(long, value_name = "NAME")]
    keep_as: Option<SnapshotName>,

    /// Discard all writes since the last snapshot
    #[arg(long)]
    discard: bool,

    #[command(flatten)]
    open: OpenArguments,
}

#[derive(Serialize)]
struct Reverted {
    path: PathBuf,
    snapshot: SnapshotName,
    kept_as: Option<SnapshotName>,
    size_bytes: u64,
    generation: u64,
}

impl fmt::Display for Reverted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, snapshot, kept_as, size_bytes, .. } = self;
        write!(
            f,
            "{} is what it was at snapshot {snapshot} ({})",
            path.display(),
            display_bytes(*size_bytes)
        )?;
        match kept_as {
            Some(kept) => write!(f, "; what it was until now is snapshot {kept}"),
            None => Ok(()),
        }
    }
}

impl RevertArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let key = self.open.ask_for_key(&self.path)?;
        let opening = to_change(&self.path, &self.open, &key)?;
        let (protection, least_generation) = (opening.protection, opening.least_generation);
        let descriptor = authenticated(&self.path, protection, least_generation)?;
        descriptor.expect_volume(&self.path, self.open.freshness.expect_volume)?;
        let to = find(&self.path, &descriptor, &self.name)?.id;
        let keep = self.keep_as.clone().map(|name| NewSnapshot { id: SnapshotId::random(), name });
        let options = AddLayerOptions {
            protection,
            log_bytes: None,
            lock_wait: opening.lock_wait,
            least_generation: descriptor.generation,
        };
        let reverted = revert(&self.path, to, keep.as_ref(), &options)?;
        output.answer(&Reverted {
            path: self.path.clone(),
            snapshot: self.name.clone(),
            kept_as: self.keep_as.clone(),
            size_bytes: reverted.size_bytes.bytes(),
            generation: reverted.generation,
        })
    }
}
