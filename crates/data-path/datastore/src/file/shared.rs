//! Which files of a volume other volumes have too.
//!
//! A linked clone has files of its origin's layers under names of its own ([`super::link`]). The
//! file system counts the names of a file, and this count is all that tells a shared file from
//! another: a file with one name, opened and locked, belongs to the volume that has it. A list in a
//! descriptor could be an old one, put back.
//!
//! A file with other names is never written, extended, punched or truncated, unless it is the
//! top's: only layers below the top are linked to. So nothing is merged into its layer, and a
//! deletion removes only the volume's own name.

use std::path::Path;

use strongroom_types::LayerId;

use super::descriptor::{Descriptor, LayerRecord};
use super::directory::{VolumeDirectory, system};
use super::error::DatastoreError;
use super::layer_files;
use super::storage::StoredFile;

/// The layers of a volume that other volumes have too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLayers(Vec<LayerId>);

impl SharedLayers {
    /// Whether this layer is one of them.
    pub fn has(&self, layer: LayerId) -> bool {
        self.0.contains(&layer)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl VolumeDirectory {
    /// The layers of which other volumes have a file.
    pub(super) fn shared_layers(&self, descriptor: &Descriptor) -> SharedLayers {
        let shared = descriptor.layers.iter().filter(|layer| self.shares(layer));
        SharedLayers(shared.map(|layer| layer.id).collect())
    }

    /// Whether other volumes have a file of this layer. Only a hint where the file is not locked: a
    /// process that writes to one asks the open file again ([`refuse_shared`]).
    pub(super) fn shares(&self, layer: &LayerRecord) -> bool {
        layer_files::names(layer).any(|name| self.is_shared(&name))
    }

    /// Refuses to write to a layer of which other volumes have a file.
    pub(super) fn refuse_shared(&self, layer: &LayerRecord) -> Result<(), DatastoreError> {
        let mut counts = layer_files::names(layer).filter_map(|name| self.handle.link_count(&name).ok());
        match counts.find(|names| *names > 1) {
            None => Ok(()),
            Some(names) => Err(DatastoreError::Shared { path: self.path.clone(), layer: layer.id, names }),
        }
    }

    /// Whether a file has another name.
    pub(super) fn is_shared(&self, name: &str) -> bool {
        self.handle.link_count(name).is_ok_and(|names| names > 1)
    }
}

/// Refuses to write to a file of a layer that has other names.
pub(super) fn refuse_shared(
    file: &dyn StoredFile,
    path: &Path,
    layer: LayerId,
) -> Result<(), DatastoreError> {
    match file.link_count().map_err(system("examine a layer of", path))? {
        0 | 1 => Ok(()),
        names => Err(DatastoreError::Shared { path: path.to_owned(), layer, names }),
    }
}
