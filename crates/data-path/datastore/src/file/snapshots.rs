//! The snapshots of a volume that is not in use: creating, reverting to and deleting them.
//!
//! A snapshot is a name for a layer that no longer takes writes. Creating one puts a new top on the
//! former top; reverting puts a new top on the snapshot's layer. Either is one replacement of the
//! descriptor, so that a power cut leaves the volume as before or after it. Nothing is copied.
//!
//! A deleted snapshot leaves its layer behind. If neither another snapshot nor the top needs the
//! layer, it is removed at once, with its key; otherwise it is merged with the layer above it
//! ([`super::merge`]).

use std::path::Path;

use strongroom_types::{LayerId, SnapshotId, SnapshotName, unix_seconds_now};

use super::add_layer::{AddLayerOptions, Placement, put_on, remove_layers};
use super::descriptor::{Descriptor, SNAPSHOTS_MAX, SnapshotRecord};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::open::{OpenOptions, Protection};
use super::storage::{BY_PATH, Storage};

/// The id and name of a new snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its id, which the snapshots of other volumes at the same instant share.
    pub id: SnapshotId,
    /// What people call it.
    pub name: SnapshotName,
}

impl NewSnapshot {
    /// Its record, for this layer as it is now.
    pub(super) fn of(&self, layer: LayerId) -> SnapshotRecord {
        SnapshotRecord {
            id: self.id,
            name: self.name.clone(),
            layer,
            created_unix_seconds: unix_seconds_now(),
        }
    }

    /// Refuses a snapshot whose name or id the volume already has, and one that exceeds the limit.
    ///
    /// # Errors
    /// [`DatastoreError::SnapshotExists`], [`DatastoreError::ManySnapshots`].
    pub fn check(&self, path: &Path, descriptor: &Descriptor) -> Result<(), DatastoreError> {
        let part = descriptor.part().map(|part| &part.snapshot);
        let mut all = descriptor.snapshots.iter().chain(part);
        if all.any(|other| other.id == self.id || other.name == self.name) {
            return Err(DatastoreError::SnapshotExists { path: path.to_owned(), name: self.name.clone() });
        }
        if descriptor.snapshots.len() + usize::from(part.is_some()) >= SNAPSHOTS_MAX {
            return Err(DatastoreError::ManySnapshots { path: path.to_owned(), most: SNAPSHOTS_MAX });
        }
        Ok(())
    }
}

/// Creates a snapshot of the present content of the volume at `path`. Returns the volume's new
/// descriptor.
///
/// # Errors
/// If the volume already has such a snapshot; and those of [`add_layer`](super::add_layer).
pub fn create_snapshot(
    path: &Path,
    snapshot: &NewSnapshot,
    options: &AddLayerOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    create_snapshot_on(BY_PATH, path, snapshot, options)
}

/// As [`create_snapshot`], on another file system.
pub fn create_snapshot_on(
    storage: &dyn Storage,
    path: &Path,
    snapshot: &NewSnapshot,
    options: &AddLayerOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    put_on(storage, path, options, |descriptor| {
        snapshot.check(path, descriptor)?;
        let mut snapshots = descriptor.snapshots.clone();
        snapshots.push(snapshot.of(descriptor.top));
        Ok(Placement { on: descriptor.top, snapshots })
    })
}

/// Reverts the volume at `path` to a snapshot, including its size. The present content is kept as
/// the snapshot `keep`, or is lost. Returns the volume's new descriptor, whose generation and key
/// epochs only rise.
///
/// # Errors
/// [`DatastoreError::NoSnapshot`], and those of [`create_snapshot`].
pub fn revert(
    path: &Path,
    to: SnapshotId,
    keep: Option<&NewSnapshot>,
    options: &AddLayerOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    revert_on(BY_PATH, path, to, keep, options)
}

/// As [`revert`], on another file system.
pub fn revert_on(
    storage: &dyn Storage,
    path: &Path,
    to: SnapshotId,
    keep: Option<&NewSnapshot>,
    options: &AddLayerOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    put_on(storage, path, options, |descriptor| {
        let target = descriptor.snapshot(to).ok_or_else(|| no_snapshot(path, to))?;
        let mut snapshots = descriptor.snapshots.clone();
        if let Some(keep) = keep {
            keep.check(path, descriptor)?;
            snapshots.push(keep.of(descriptor.top));
        }
        Ok(Placement { on: target.layer, snapshots })
    })
}

/// Deletes a snapshot of the volume at `path`. Returns the volume's new descriptor. Its space is
/// freed at once if only this snapshot needed it, and otherwise by the [merge](super::merge) of two
/// layers.
///
/// # Errors
/// [`DatastoreError::NoSnapshot`]; if the volume is in use.
pub fn delete_snapshot(
    path: &Path,
    snapshot: SnapshotId,
    options: &OpenOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    delete_snapshot_on(BY_PATH, path, snapshot, options)
}

/// As [`delete_snapshot`], on another file system.
pub fn delete_snapshot_on(
    storage: &dyn Storage,
    path: &Path,
    snapshot: SnapshotId,
    options: &OpenOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let mut head = VolumeHead::open_on(storage, path, options)?;
    head.delete_snapshot(snapshot, options.protection)?;
    Ok(head.descriptor)
}

impl VolumeHead {
    /// As [`delete_snapshot`], for a volume that may be served meanwhile. If layers must be merged
    /// now, the same descriptor marks them: a merge that this process does not finish is finished
    /// by the next one that exposes the volume.
    pub fn delete_snapshot(
        &mut self,
        snapshot: SnapshotId,
        protection: Protection<'_>,
    ) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let mut without = self.descriptor.clone();
        without.snapshots.retain(|other| other.id != snapshot);
        if without.snapshots.len() == self.descriptor.snapshots.len() {
            return Err(no_snapshot(path, snapshot));
        }
        without.generation += 1;
        let pruned = without.prune();
        let shared = self.directory.shared_layers(&without);
        without.merging = without.merging.or_else(|| without.next_merge(&shared));
        self.replace_descriptor(without, &protection.keks())?;
        remove_layers(&self.directory, &pruned);
        Ok(())
    }
}

fn no_snapshot(path: &Path, id: SnapshotId) -> DatastoreError {
    DatastoreError::NoSnapshot { path: path.to_owned(), snapshot: id.to_string() }
}
