//! Merges two layers into one, where no snapshot needs the lower one any more.
//!
//! The blocks of the upper layer are written into the lower one, under the lower one's key. Until
//! that is complete, the upper layer stays and answers for all its blocks, so a block that a power
//! cut tears in the lower layer is never read, and is written again. Blocks that the upper layer
//! does not have are not touched. They must always match their tags: none is accepted unverified
//! ([`OpenLayer::vouch_for_tags`]).
//!
//! ```text
//! the lower layer's files have the upper one's size, durably -> the descriptor marks the merge
//!     -> blocks, tags and record of discards of the lower layer are complete, and durable
//!     -> the descriptor has one layer -> the upper one's files go
//! ```
//!
//! Moving the blocks needs ciphers, and is done elsewhere; this module does what comes before and
//! after: [`open_merge`] and [`FinishMerge`] for a volume that nobody uses, and methods of
//! [`VolumeHead`] for one in use. There both layers lie below the top, and the process that does
//! the I/O writes the lower one while it reads both. It goes on reading the upper one's blocks
//! there until the lower one is durable; so the order above holds whatever dies when.

use std::path::Path;
use std::time::Duration;

use strongroom_types::LayerId;

use super::add_layer::{
    make_durable, refuse_an_open_log, refuse_unclosed, refuse_unsettled_tags, remove_layers,
};
use super::descriptor::{Descriptor, LogRecord, Merging};
use super::directory::log_name;
use super::disk::{LayerBlocks, OpenLayer};
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::lock::Sharing;
use super::open::{Access, Deks, OpenOptions, Protection, open_apart_on};
use super::open_files::{Opening, deks_of};
use super::storage::{BY_PATH, Storage};
use super::{layer_files, log};

/// Two layers of a volume that no other process uses, and those below them.
pub struct OpenMerge {
    /// The size of the merged layer, in bytes of whole blocks.
    pub size_bytes: u64,
    /// The layers.
    pub layers: MergeLayers,
    /// Their keys.
    pub keys: MergeKeys,
    /// Finishes the merge once all blocks were moved and flushed, and nothing uses the layers any
    /// more.
    pub finish: FinishMerge,
}

/// The layers of a merge.
pub struct MergeLayers {
    /// The upper layer, which is read.
    pub from: LayerBlocks,
    /// The lower layer, which is written to.
    pub into: LayerBlocks,
    /// Those below both, nearest first.
    pub lower: Vec<LayerBlocks>,
}

/// The keys of the layers of a merge; none of a clear volume.
pub struct MergeKeys {
    /// Those of the upper layer.
    pub from: Deks,
    /// Those of the lower layer, the last of which seals what is written.
    pub into: Deks,
    /// Those of the layers below both, oldest first.
    pub lower: Deks,
}

/// Opens the next two layers to merge of the volume at `path`, and marks them; `None` if there are
/// none.
///
/// # Errors
/// If the volume is still in use after the options' `lock_wait`; if it was not closed in order; if
/// there is no room.
pub fn open_merge(path: &Path, options: &OpenOptions<'_>) -> Result<Option<OpenMerge>, DatastoreError> {
    open_merge_on(BY_PATH, path, options)
}

/// As [`open_merge`], on another file system.
pub fn open_merge_on(
    storage: &dyn Storage,
    path: &Path,
    options: &OpenOptions<'_>,
) -> Result<Option<OpenMerge>, DatastoreError> {
    let options = OpenOptions { access: Access::ReadWrite, ..*options };
    let (mut head, top, deks) = open_apart_on(storage, path, &options)?;
    let shared = head.directory.shared_layers(&head.descriptor);
    let Some(merging) = head.descriptor.next_merge(&shared) else { return Ok(None) };
    refuse_unclosed(path, &head.descriptor)?;
    if merging.from == head.descriptor.top {
        refuse_an_open_log(path, merging.from, &top)?;
        refuse_unsettled_tags(path, merging.from, &top, &deks)?;
    }
    drop(top);
    head.mark(merging, options.protection)?;
    head.open_merge(merging, &options).map(Some)
}

impl VolumeHead {
    /// Durably marks the layers as being merged, and extends the lower one for the other's blocks.
    fn mark(&mut self, merging: Merging, protection: Protection<'_>) -> Result<(), DatastoreError> {
        if self.descriptor.merging != Some(merging) {
            self.set_merging(merging, protection)?;
        }
        if let Some(into) = self.descriptor.layer(merging.into) {
            self.directory.refuse_shared(into)?;
        }
        let from_size = self.descriptor.layer(merging.from).map(|layer| self.descriptor.layer_size(layer));
        let mut marked = self.descriptor.clone();
        let Some(into) = marked.layers.iter_mut().find(|layer| layer.id == merging.into) else {
            return Ok(());
        };
        let former_size = into.size_bytes;
        if former_size == from_size {
            return Ok(());
        }
        into.size_bytes = from_size;
        let into = into.clone();
        marked.generation += 1;
        if let Some(former_size) = former_size {
            layer_files::grow(&self.directory, &marked, &into, former_size, protection)?;
        }
        self.replace_descriptor(marked, &protection.keks())
    }

    /// Durably marks the layers as being merged. From now on nobody links to the lower one, or
    /// begins to read it, who does not yet have a lock.
    fn set_merging(&mut self, merging: Merging, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let mut marked = self.descriptor.clone();
        marked.merging = Some(merging);
        marked.generation += 1;
        self.replace_descriptor(marked, &protection.keks())
    }

    /// Durably marks the next two layers that can be merged while the volume is in use, unless they
    /// are marked. Returns them; `None` if there are none, or other volumes have the lower ones.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn mark_merge(&mut self, protection: Protection<'_>) -> Result<Option<Merging>, DatastoreError> {
        let shared = self.directory.shared_layers(&self.descriptor);
        let Some(merging) = self.descriptor.next_merge_in_use(&shared) else { return Ok(None) };
        if self.descriptor.merging != Some(merging) {
            self.set_merging(merging, protection)?;
        }
        Ok(Some(merging))
    }

    /// Extends the lower layer of the marked merge for the upper one's blocks. Returns its place
    /// below the top, from 0. Other processes may use both.
    ///
    /// # Errors
    /// If the marked layers cannot be merged now; if there is no room.
    pub fn extend_merged_into(&mut self, protection: Protection<'_>) -> Result<usize, DatastoreError> {
        let refused = |reason| DatastoreError::NotMergeable { path: self.directory.path.clone(), reason };
        let merging = self.descriptor.merging.ok_or_else(|| refused("no layers are marked"))?;
        let is_upper_done = self.descriptor.layer(merging.from).is_some_and(|layer| !layer.closing);
        if merging.from == self.descriptor.top || !is_upper_done {
            return Err(refused("the upper layer still takes writes"));
        }
        let place = self.descriptor.chain().skip(1).position(|layer| layer.id == merging.into);
        let place = place.ok_or_else(|| refused("they do not belong to its present content"))?;
        self.mark(merging, protection)?;
        Ok(place)
    }

    /// Opens the lower layer of the marked merge to be written, for the process that does the I/O.
    /// Returns its place below the top, from 0, and its open files. The process that does the I/O
    /// may go on reading it, but must have [shared its lock](OpenLayer::share_locks), and nobody
    /// else may read it ([`OpenLayer::claim`]).
    ///
    /// # Errors
    /// Those of [`Self::extend_merged_into`].
    pub fn open_merged_into(
        &mut self,
        protection: Protection<'_>,
    ) -> Result<(usize, OpenLayer), DatastoreError> {
        let place = self.extend_merged_into(protection)?;
        let refused = || DatastoreError::NotMergeable {
            path: self.directory.path.clone(),
            reason: "no layers are marked",
        };
        let into = self.descriptor.merging.ok_or_else(refused)?.into;
        let options = self.to_merge(protection);
        let layer = self.open_layer(&self.opening(&options, Sharing::Shared)?, into)?;
        Ok((place, layer))
    }

    /// Replaces the marked layers by one, once the process that does the I/O has reported that the
    /// lower one has everything, and reads the upper one no more. Marks the next layers to merge.
    ///
    /// # Errors
    /// If the lower layer's tags were not closed in order. The merge can then be repeated.
    pub fn finish_merge(&mut self, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let Some(merging) = self.descriptor.merging else { return Ok(()) };
        let options = self.to_merge(protection);
        self.finish(merging, &options, Sharing::Shared)
    }

    /// How the layers of a volume in use are opened: the process that does the I/O has the
    /// exclusive locks.
    fn to_merge<'a>(&self, protection: Protection<'a>) -> OpenOptions<'a> {
        OpenOptions {
            protection,
            access: Access::ReadWrite,
            lock_wait: Duration::ZERO,
            least_generation: self.descriptor.generation,
        }
    }

    fn opening<'a>(
        &'a self,
        options: &'a OpenOptions<'a>,
        sharing: Sharing,
    ) -> Result<Opening<'a>, DatastoreError> {
        let (directory, descriptor) = (&self.directory, &self.descriptor);
        Ok(Opening {
            directory,
            file_system: directory.file_system()?,
            descriptor,
            options,
            sharing: Some(sharing),
        })
    }

    fn open_merge(self, merging: Merging, options: &OpenOptions<'_>) -> Result<OpenMerge, DatastoreError> {
        let (directory, descriptor) = (&self.directory, &self.descriptor);
        let reading = OpenOptions { access: Access::ReadOnly, ..*options };
        let to_read = self.opening(&reading, Sharing::Shared)?;
        let to_write = self.opening(options, Sharing::Exclusive)?;
        let blocks = |opening: &Opening<'_>, id: LayerId| {
            let opened = self.open_layer(opening, id)?.into_blocks();
            opened.map(|(blocks, _)| blocks).map_err(log::damaged(&directory.path, id))
        };
        let deks = |id| self.layer_deks(id, options.protection);
        let below = descriptor.chain_from(Some(merging.into)).skip(1);
        let below: Vec<LayerId> = below.map(|layer| layer.id).collect();
        let mut lower_deks = Deks::new();
        for id in below.iter().rev() {
            lower_deks.extend(deks(*id)?);
        }
        let size_bytes = descriptor.layer(merging.from);
        Ok(OpenMerge {
            size_bytes: size_bytes.map_or(0, |layer| descriptor.layer_size(layer).block_aligned_bytes()),
            layers: MergeLayers {
                from: blocks(&to_read, merging.from)?,
                into: blocks(&to_write, merging.into)?,
                lower: below.iter().map(|id| blocks(&to_read, *id)).collect::<Result<_, _>>()?,
            },
            keys: MergeKeys { from: deks(merging.from)?, into: deks(merging.into)?, lower: lower_deks },
            finish: FinishMerge { head: self, merging },
        })
    }

    fn open_layer(&self, opening: &Opening<'_>, id: LayerId) -> Result<OpenLayer, DatastoreError> {
        let missing = || DatastoreError::MissingLayer { path: self.directory.path.clone(), layer: id };
        let mut layer = opening.open(self.descriptor.layer(id).ok_or_else(missing)?)?;
        layer.vouch_for_tags();
        Ok(layer)
    }

    fn layer_deks(&self, id: LayerId, protection: Protection<'_>) -> Result<Deks, DatastoreError> {
        match self.descriptor.layer(id) {
            Some(layer) => deks_of(&self.directory.path, &self.descriptor, layer, &protection.keks()),
            None => Ok(Deks::new()),
        }
    }
}

/// Finishes a merge whose lower layer has all blocks.
pub struct FinishMerge {
    head: VolumeHead,
    merging: Merging,
}

impl FinishMerge {
    /// Replaces the two layers by one. Returns the volume's new descriptor.
    ///
    /// # Errors
    /// If the lower layer's tags were not closed in order. The merge can then be repeated.
    pub fn finish(self, options: &OpenOptions<'_>) -> Result<Descriptor, DatastoreError> {
        let Self { mut head, merging } = self;
        let options = OpenOptions { access: Access::ReadWrite, ..*options };
        head.finish(merging, &options, Sharing::Exclusive)?;
        Ok(head.descriptor)
    }
}

impl VolumeHead {
    /// Replaces two layers by one, of which the lower one has everything.
    fn finish(
        &mut self,
        merging: Merging,
        options: &OpenOptions<'_>,
        sharing: Sharing,
    ) -> Result<(), DatastoreError> {
        let protection = options.protection;
        let path = self.directory.path.clone();
        {
            let into = self.open_layer(&self.opening(options, sharing)?, merging.into)?;
            let deks = self.layer_deks(merging.into, protection)?;
            refuse_unsettled_tags(&path, merging.into, &into, &deks)?;
            make_durable(&path, &into)?;
        }
        let merged = self.merged(merging, &path)?;
        if merged.top == merging.into
            && let Some(LogRecord { bytes }) = merged.layer(merged.top).and_then(|layer| layer.log)
        {
            // The leftover of an interrupted attempt.
            let _ = self.directory.handle.remove(&log_name(merged.top));
            log::create(&self.directory, merged.top, bytes, log::FileState::Closed, &path)?;
            self.directory.sync()?;
        }
        let gone = self.descriptor.layer(merging.from).cloned();
        self.replace_descriptor(merged, &protection.keks())?;
        remove_layers(&self.directory, gone.as_slice());
        Ok(())
    }

    /// The descriptor with one layer in the place of the two.
    fn merged(&self, merging: Merging, path: &Path) -> Result<Descriptor, DatastoreError> {
        let Merging { from, into } = merging;
        let mut merged = self.descriptor.clone();
        let upper = merged
            .layers
            .iter()
            .position(|layer| layer.id == from)
            .ok_or_else(|| DatastoreError::MissingLayer { path: path.to_owned(), layer: from })?;
        let upper = merged.layers.remove(upper);
        for layer in &mut merged.layers {
            if layer.parent == Some(from) {
                layer.parent = Some(into);
            }
            if layer.id == into {
                layer.size_bytes = upper.size_bytes;
            }
        }
        for layer in merged.kept_layers_mut().filter(|layer| **layer == from) {
            *layer = into;
        }
        if merged.top == from {
            merged.top = into;
            let file_system = self.directory.file_system()?;
            let asked = upper.log.map(|log| log.bytes);
            let log = log::record_for(&file_system, merged.provisioning, asked, merged.size_bytes);
            merged.layers.iter_mut().filter(|layer| layer.id == into).for_each(|layer| layer.log = log);
        }
        // What was wanted is all that can be merged, so the next two layers are marked at once.
        merged.merging = None;
        let shared = self.directory.shared_layers(&merged);
        merged.merging = merged.next_merge_in_use(&shared).filter(|next| next.from != merged.top);
        merged.generation += 1;
        Ok(merged)
    }
}
