//! Opens a layer and the new one that takes its place, for any job.

use std::path::Path;
use std::sync::Arc;

use strongroom_types::{KeyEpoch, LayerId};

use super::{
    OpenRewrite, ReencryptOptions, Reencrypting, RewriteKeys, RewriteLayers, RewrittenLayer, no_epoch_left,
    replaced,
};
use crate::file::add_layer::{make_durable, refuse_unsettled_tags};
use crate::file::create::new_dek;
use crate::file::descriptor::{Descriptor, LayerRecord};
use crate::file::directory::VolumeDirectory;
use crate::file::disk::{LayerBlocks, OpenLayer};
use crate::file::error::DatastoreError;
use crate::file::lock::Sharing;
use crate::file::open::{Access, Deks, OpenOptions};
use crate::file::open_files::{Opening, deks_of, open_envelopes};
use crate::file::{layer_files, log};

/// How the layers of a volume are rewritten.
pub(super) struct Rewriter<'a> {
    pub(super) directory: &'a VolumeDirectory,
    pub(super) descriptor: &'a Descriptor,
    pub(super) options: &'a ReencryptOptions<'a>,
}

impl Rewriter<'_> {
    /// Makes the files of the layer that takes the place of `old`, and opens both.
    pub(super) fn open(&self, old: &LayerRecord) -> Result<OpenRewrite, DatastoreError> {
        let Self { directory, descriptor, options } = *self;
        let path = &directory.path;
        // Before anything is made: a volume that others use may be changing its layers.
        let to_read = options.to_open(options.from, Access::ReadOnly);
        let reading = self.opening(descriptor, &to_read, Sharing::Shared)?;
        let open_old = |layer: &LayerRecord| {
            let mut opened = reading.open(layer)?;
            opened.vouch_for_tags();
            blocks_of(path, layer.id, opened)
        };
        let from = open_old(old)?;
        let below = old.parent.and_then(|parent| descriptor.layer(parent)).map(open_old).transpose()?;

        let new = self.in_place_of(old)?;
        let rewritten = RewrittenLayer {
            directory: VolumeDirectory {
                path: directory.path.clone(),
                handle: Arc::clone(&directory.handle),
            },
            old: old.id,
            new: new.clone(),
            is_kept: directory.shares(old),
            is_named: false,
        };
        // Its log is made at the end: nothing is written through it before.
        let new = LayerRecord { log: None, ..new };
        let replaced = replaced(descriptor, old, &new);
        layer_files::make(directory, &replaced, &new, log::FileState::Closed, path, options.to)?;
        let to_write = options.to_open(options.to, Access::ReadWrite);
        let mut opened = self.opening(&replaced, &to_write, Sharing::Exclusive)?.open(&new)?;
        opened.set_new();
        let into = match options.to.kek() {
            Some(kek) => open_envelopes(path, &replaced, &new, kek)?,
            None => Deks::new(),
        };
        Ok(OpenRewrite {
            size_bytes: descriptor.layer_size(old).block_aligned_bytes(),
            layers: RewriteLayers { from, into: blocks_of(path, new.id, opened)?, below },
            keys: RewriteKeys { from: self.deks_of(old)?, into },
            rewritten,
        })
    }

    /// Refuses a rewritten layer whose tags were not closed in order, and makes all of it durable.
    pub(super) fn expect_complete(
        &self,
        named: &Descriptor,
        new: &LayerRecord,
        deks: &Deks,
    ) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let without_log = LayerRecord { log: None, ..new.clone() };
        let options = self.options.to_open(self.options.to, Access::ReadWrite);
        let opened = self.opening(named, &options, Sharing::Exclusive)?.open(&without_log)?;
        refuse_unsettled_tags(path, new.id, &opened, deks)?;
        make_durable(path, &opened)
    }

    /// The record of the layer that takes the place of `old`, with a DEK of its own.
    fn in_place_of(&self, old: &LayerRecord) -> Result<LayerRecord, DatastoreError> {
        let Self { directory, descriptor, options } = *self;
        let id = LayerId::random();
        let (epochs, integrity) = match (descriptor.reencrypting, options.to.kek()) {
            (Some(Reencrypting::Encrypted { integrity, .. }), Some(kek)) => {
                let epoch = epoch_in_place_of(&directory.path, descriptor, old)?;
                (vec![new_dek(&directory.path, descriptor.volume, id, epoch, kek)?], integrity)
            }
            _ => (Vec::new(), None),
        };
        let log = match old.id == descriptor.top {
            true => {
                let (file_system, asked) = (directory.file_system()?, old.log.map(|log| log.bytes));
                log::record_for(&file_system, descriptor.provisioning, asked, descriptor.size_bytes)
            }
            false => None,
        };
        Ok(LayerRecord { id, epochs, log, integrity, volume: None, ..old.clone() })
    }

    /// The DEKs of a layer, by the KEK at hand that they are wrapped under.
    pub(super) fn deks_of(&self, layer: &LayerRecord) -> Result<Deks, DatastoreError> {
        deks_of(&self.directory.path, self.descriptor, layer, &self.options.keks())
    }

    pub(super) fn opening<'o>(
        &'o self,
        descriptor: &'o Descriptor,
        options: &'o OpenOptions<'o>,
        sharing: Sharing,
    ) -> Result<Opening<'o>, DatastoreError> {
        let (directory, sharing) = (self.directory, Some(sharing));
        Ok(Opening { directory, file_system: directory.file_system()?, descriptor, options, sharing })
    }
}

/// The epoch of the DEK that a layer is rewritten under: the reserved one of its place, so that the
/// epochs of all layers ascend whenever the job is interrupted.
pub(super) fn epoch_in_place_of(
    path: &Path,
    descriptor: &Descriptor,
    old: &LayerRecord,
) -> Result<KeyEpoch, DatastoreError> {
    let place = descriptor.layers.iter().position(|layer| layer.id == old.id).unwrap_or(0);
    let first_epoch = match descriptor.reencrypting {
        Some(Reencrypting::Encrypted { first_epoch, .. }) => first_epoch,
        Some(Reencrypting::Clear {}) | None => return Err(no_epoch_left(path)),
    };
    let epoch = first_epoch.number().checked_add(place as u32).and_then(KeyEpoch::new);
    epoch.ok_or_else(|| no_epoch_left(path))
}

fn blocks_of(path: &Path, id: LayerId, layer: OpenLayer) -> Result<LayerBlocks, DatastoreError> {
    layer.into_blocks().map(|(blocks, _)| blocks).map_err(log::damaged(path, id))
}
