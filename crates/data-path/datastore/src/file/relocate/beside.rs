//! The copy of a volume in use: one process owns the descriptor, one does the I/O, and a third one
//! copies the layers below the top, which do not change.
//!
//! ```text
//! copier: each layer that takes no writes any more is copied, and stays locked against a merge
//! owner: a new top takes the writes -> what was the top is complete -> copier: the same again
//! the volume is closed in order -> copier: the rest, as of a volume that nobody uses
//! ```
//!
//! What has been copied stays locked as a reader of a snapshot locks it, so nothing is merged into
//! it: the same process knows at the end that it is at the destination, and only the last top is
//! copied while clients wait.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::arrival::{Arrival, allocated_bytes, without_log};
use super::layer_content::LayerContent;
use super::{CopiedVolume, RelocateOptions, RelocateProgress, Relocation, open_settled, refuse_taken_place};
use crate::file::create::check_name;
use crate::file::descriptor::{Descriptor, LayerRecord};
use crate::file::directory::VolumeDirectory;
use crate::file::error::DatastoreError;
use crate::file::lock::Sharing;
use crate::file::open::Access;
use crate::file::open_files::{Opening, authenticate, refuse_the_other_sort};
use crate::file::storage::{BY_PATH, Storage, StoredFile};

/// A volume in use that is being copied to where it will be. If this is dropped, nothing has
/// changed, and the next attempt compares what was copied.
pub struct RelocationBeside<'a> {
    storage: &'a dyn Storage,
    options: RelocateOptions<'a>,
    from: VolumeDirectory,
    to: PathBuf,
    arrival: Arrival<'a>,
    carried: Vec<CarriedLayer>,
}

/// A layer that is at the destination, and locked at its former place.
pub(super) struct CarriedLayer {
    layer: LayerRecord,
    _locked: Vec<Arc<dyn StoredFile>>,
}

impl CarriedLayer {
    /// Whether this is the content of that layer: its place among the others may have changed.
    pub(super) fn is(&self, layer: &LayerRecord) -> bool {
        content_of(&self.layer) == content_of(layer)
    }
}

/// What there is still to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftToRelocate {
    /// Layers.
    pub layers: usize,
    /// Bytes that their files have allocated.
    pub bytes: u64,
}

/// Begins to copy the volume at `from`, which may be in use, to where it will be.
///
/// # Errors
/// If the descriptor is not authentic; if the place is taken; if the destination lacks room for the
/// volume, or cannot hold such a volume.
pub fn begin_relocation_beside<'a>(
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'a>,
) -> Result<RelocationBeside<'a>, DatastoreError> {
    begin_relocation_beside_on(BY_PATH, from, to, options)
}

/// As [`begin_relocation_beside`], on another file system.
pub fn begin_relocation_beside_on<'a>(
    storage: &'a dyn Storage,
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'a>,
) -> Result<RelocationBeside<'a>, DatastoreError> {
    check_name(to)?;
    let directory = VolumeDirectory::open(storage, from)?;
    let descriptor = authenticated(&directory, options)?.0;
    refuse_taken_place(storage, from, descriptor.volume, to)?;
    let arrival = Arrival::begin(storage, to, descriptor.volume, options.lock_wait)?;
    arrival.expected(&descriptor, &|layer| allocated_bytes(&directory, layer))?;
    let (options, to) = (*options, to.to_owned());
    Ok(RelocationBeside { storage, options, from: directory, to, arrival, carried: Vec::new() })
}

impl<'a> RelocationBeside<'a> {
    /// Copies the layers that take no writes any more and are not there yet. Layers of a merge that
    /// is under way are left for later. `watch` learns how far that is after each MiB at most, and
    /// can end it: the result is `None` then.
    ///
    /// # Errors
    /// Those of [`Relocation::copy`].
    pub fn copy(
        &mut self,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let copied = self.copy_layers(watch);
        if matches!(copied, Err(DatastoreError::Full { .. })) {
            self.carried.clear();
            let _ = self.arrival.clear();
        }
        copied
    }

    fn copy_layers(
        &mut self,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let mut copied = CopiedVolume::default();
        while let Some((descriptor, layer, content)) = self.open_next()? {
            let arriving = self.arrival.described(&descriptor)?;
            let left = self.left_of(&descriptor);
            let before = copied.read_bytes;
            let mut moved = |bytes| {
                copied.read_bytes += bytes;
                let left_bytes = left.bytes.saturating_sub(copied.read_bytes - before);
                let (done_bytes, left_layers) = (copied.read_bytes, left.layers);
                watch(RelocateProgress { done_bytes, left_bytes, left_layers })
            };
            let Some(written) = self.arrival.carry(&mut &content, &arriving, &layer, &mut moved)? else {
                return Ok(None);
            };
            copied.layers += 1;
            copied.written_bytes += written;
            copied.shared_layers += usize::from(self.from.shares(&layer));
            self.carried.retain(|carried| carried.layer.id != layer.id);
            self.carried.push(CarriedLayer { layer, _locked: content.into_files() });
        }
        Ok(Some(copied))
    }

    /// Opens and locks the next layer that can be copied, with the descriptor that names it.
    fn open_next(&self) -> Result<Option<(Descriptor, LayerRecord, LayerContent)>, DatastoreError> {
        let directory = &self.from;
        loop {
            let (descriptor, bytes) = authenticated(directory, &self.options)?;
            let Some(layer) = self.to_copy(&descriptor).find(|layer| is_settled(&descriptor, layer)) else {
                return Ok(None);
            };
            let reading = self.options.to_open(Access::ReadOnly);
            let file_system = directory.file_system()?;
            let opening = Opening {
                directory,
                file_system,
                descriptor: &descriptor,
                options: &reading,
                sharing: Some(Sharing::Shared),
            };
            let opened = opening.open(&without_log(layer));
            // Until the layer was locked, it could be removed or merged.
            if directory.read_descriptor()?.bytes() == bytes {
                let content = LayerContent::of(directory.path.clone(), &descriptor, layer, opened?);
                let layer = layer.clone();
                return Ok(Some((descriptor, layer, content)));
            }
        }
    }

    /// The layers that are not at the destination, oldest first.
    fn to_copy<'d>(&self, descriptor: &'d Descriptor) -> impl Iterator<Item = &'d LayerRecord> {
        descriptor.layers.iter().filter(|layer| !self.carried.iter().any(|carried| carried.is(layer)))
    }

    /// Where the volume will be.
    pub fn to(&self) -> &Path {
        &self.to
    }

    /// What there is still to copy, with the layers that still change.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn left(&self) -> Result<LeftToRelocate, DatastoreError> {
        Ok(self.left_of(&authenticated(&self.from, &self.options)?.0))
    }

    fn left_of(&self, descriptor: &Descriptor) -> LeftToRelocate {
        let add = |left: LeftToRelocate, layer: &LayerRecord| LeftToRelocate {
            layers: left.layers + 1,
            bytes: left.bytes + allocated_bytes(&self.from, layer),
        };
        self.to_copy(descriptor).fold(LeftToRelocate::default(), add)
    }

    /// Unlocks what was copied. It counts as not copied from then on, because it may change.
    pub fn unlock(&mut self) {
        self.carried.clear();
    }

    /// Goes on with the volume, which was closed in order and which nobody uses any more: only what
    /// is left is copied then.
    ///
    /// # Errors
    /// As [`begin_relocation`](super::begin_relocation). What was copied is compared by the next
    /// attempt.
    pub fn closed(self) -> Result<Relocation<'a>, DatastoreError> {
        let Self { storage, options, from, to, arrival, carried } = self;
        let opened = open_settled(storage, &from.path, Some(&to), &options)?;
        opened.arriving(storage, &to, &options, arrival, carried)
    }

    /// Gives the move up, and removes what was copied.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn give_up(self) -> Result<(), DatastoreError> {
        self.arrival.clear()
    }
}

/// The descriptor, authenticated, and its bytes.
fn authenticated(
    directory: &VolumeDirectory,
    options: &RelocateOptions<'_>,
) -> Result<(Descriptor, Vec<u8>), DatastoreError> {
    let encoded = directory.read_descriptor()?;
    refuse_the_other_sort(&directory.path, encoded.unverified(), options.protection)?;
    let bytes = encoded.bytes().to_vec();
    Ok((authenticate(&directory.path, encoded, &options.to_open(Access::ReadOnly))?, bytes))
}

/// Whether a layer takes no writes any more, and is not being merged.
fn is_settled(descriptor: &Descriptor, layer: &LayerRecord) -> bool {
    let is_merged = |id| descriptor.merging.is_some_and(|merging| [merging.from, merging.into].contains(&id));
    layer.id != descriptor.top && !layer.closing && !is_merged(layer.id)
}

/// The record without what may change beside the content.
fn content_of(layer: &LayerRecord) -> LayerRecord {
    LayerRecord { parent: None, closing: false, ..without_log(layer) }
}
