//! What a volume's files take, and what of it belongs to what.

use std::collections::BTreeMap;
use std::path::Path;

use strongroom_types::{LayerId, VolumeId, VolumeSize};

use super::{View, layers_of, own_layers, unchanged, views};
use crate::file::descriptor::{Descriptor, Provisioning};
use crate::file::directory::VolumeDirectory;
use crate::file::error::DatastoreError;
use crate::file::layer_files;
use crate::file::storage::{BY_PATH, Storage};

/// The space of a volume, in bytes. `committed_bytes` is what `du` says of its directory, and the
/// sum of `shared_bytes`, the `unshared_bytes` of all views, `common_bytes` and `other_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// The volume.
    pub volume: VolumeId,
    /// How space is allocated.
    pub provisioning: Provisioning,
    /// The size that the guest sees.
    pub logical: VolumeSize,
    /// All of its files, and its directory.
    pub committed_bytes: u64,
    /// Files that other volumes have too.
    pub shared_bytes: u64,
    /// Files of layers that several of its snapshots, or one and the present content, have.
    pub common_bytes: u64,
    /// What belongs to no layer: the descriptor, its reserve, the directory, leftovers.
    pub other_bytes: u64,
    /// The present content, and each snapshot, oldest first.
    pub views: Vec<ViewSpace>,
}

/// The space of one content of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewSpace {
    /// Which.
    pub view: View,
    /// Its size.
    pub logical: VolumeSize,
    /// The files of all of its layers.
    pub committed_bytes: u64,
    /// The files of those layers that nothing else has: a deletion of the view frees about that.
    pub unshared_bytes: u64,
}

/// The space of the volume at `path`, which may be in use. Refuses another volume than `expected`.
///
/// # Errors
/// Those of reading its descriptor and its directory.
pub fn space(path: &Path, expected: Option<VolumeId>) -> Result<Space, DatastoreError> {
    space_on(BY_PATH, path, expected)
}

/// As [`space`], on another file system.
pub fn space_on(
    storage: &dyn Storage,
    path: &Path,
    expected: Option<VolumeId>,
) -> Result<Space, DatastoreError> {
    unchanged(storage, path, |directory, descriptor| {
        descriptor.expect_volume(path, expected)?;
        Space::of(directory, descriptor)
    })
}

/// The space of one layer.
#[derive(Clone, Copy, Default)]
struct LayerSpace {
    own_bytes: u64,
    shared_bytes: u64,
}

impl Space {
    /// The space of a volume that is described by `descriptor`.
    pub(in crate::file) fn of(
        directory: &VolumeDirectory,
        descriptor: &Descriptor,
    ) -> Result<Self, DatastoreError> {
        let layer_of: BTreeMap<String, LayerId> = descriptor
            .layers
            .iter()
            .flat_map(|layer| layer_files::names(layer).map(move |name| (name, layer.id)))
            .collect();
        let mut layers: BTreeMap<LayerId, LayerSpace> = BTreeMap::new();
        // The directory itself, where the file system says what that takes.
        let mut other_bytes = directory.handle.allocated_bytes(".").unwrap_or(0);
        let mut shared_bytes = 0;
        for name in directory.names()? {
            // A file that is removed meanwhile takes no space.
            let bytes = directory.handle.allocated_bytes(&name).unwrap_or(0);
            let is_shared = directory.is_shared(&name);
            shared_bytes += if is_shared { bytes } else { 0 };
            match layer_of.get(&name) {
                Some(layer) if is_shared => layers.entry(*layer).or_default().shared_bytes += bytes,
                Some(layer) => layers.entry(*layer).or_default().own_bytes += bytes,
                None => other_bytes += if is_shared { 0 } else { bytes },
            }
        }
        let space = |layer: LayerId| layers.get(&layer).copied().unwrap_or_default();
        let views: Vec<ViewSpace> = views(descriptor)
            .map(|view| ViewSpace {
                view,
                logical: match layers_of(descriptor, view).next() {
                    Some(layer) => descriptor.layer_size(layer),
                    None => descriptor.size_bytes,
                },
                committed_bytes: layers_of(descriptor, view)
                    .map(|layer| space(layer.id))
                    .map(|space| space.own_bytes + space.shared_bytes)
                    .sum(),
                unshared_bytes: own_layers(directory, descriptor, view)
                    .iter()
                    .map(|layer| space(layer.id).own_bytes)
                    .sum(),
            })
            .collect();
        let own_bytes: u64 = layers.values().map(|space| space.own_bytes).sum();
        let unshared_bytes: u64 = views.iter().map(|view| view.unshared_bytes).sum();
        Ok(Self {
            volume: descriptor.volume,
            provisioning: descriptor.provisioning,
            logical: descriptor.size_bytes,
            committed_bytes: own_bytes + shared_bytes + other_bytes,
            shared_bytes,
            common_bytes: own_bytes.saturating_sub(unshared_bytes),
            other_bytes,
            views,
        })
    }

    /// The files that no other volume has.
    pub fn unshared_bytes(&self) -> u64 {
        self.committed_bytes.saturating_sub(self.shared_bytes)
    }
}
