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

use strongroom_types::LayerId;

use super::arrival::{Arrival, allocated_bytes, without_log};
use super::between_hosts::{DepartingVolume, ReadLayer, SentVolume};
use super::layer_content::LayerContent;
use super::passage::{LayerOrigin, TakePiece};
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
    departing: DepartingBeside<'a>,
    to: PathBuf,
    arrival: Arrival<'a>,
}

/// A volume in use whose layers are read where it is. Those that were read stay locked.
pub struct DepartingBeside<'a> {
    storage: &'a dyn Storage,
    options: RelocateOptions<'a>,
    from: VolumeDirectory,
    carried: Vec<CarriedLayer>,
}

/// A layer that is at the destination, and locked at its former place.
pub(super) struct CarriedLayer {
    layer: LayerRecord,
    _locked: Vec<Arc<dyn StoredFile>>,
}

impl CarriedLayer {
    pub(super) fn is(&self, layer: &LayerRecord) -> bool {
        has_content_of(&self.layer, layer)
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
    let departing = begin_departure_beside_on(storage, from, options)?;
    let (descriptor, _) = departing.authenticated()?;
    refuse_taken_place(storage, from, descriptor.volume, to)?;
    let arrival = Arrival::begin(storage, to, descriptor.volume, options.lock_wait)?;
    arrival.expected(&descriptor, &|layer| allocated_bytes(&departing.from, layer))?;
    Ok(RelocationBeside { storage, options: *options, departing, to: to.to_owned(), arrival })
}

/// Begins to read the volume at `from`, which may be in use, for another host.
///
/// # Errors
/// If the descriptor is not authentic.
pub fn begin_departure_beside<'a>(
    from: &Path,
    options: &RelocateOptions<'a>,
) -> Result<DepartingBeside<'a>, DatastoreError> {
    begin_departure_beside_on(BY_PATH, from, options)
}

fn begin_departure_beside_on<'a>(
    storage: &'a dyn Storage,
    from: &Path,
    options: &RelocateOptions<'a>,
) -> Result<DepartingBeside<'a>, DatastoreError> {
    let from = VolumeDirectory::open(storage, from)?;
    let departing = DepartingBeside { storage, options: *options, from, carried: Vec::new() };
    departing.authenticated()?;
    Ok(departing)
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
        if self.arrival.gives_way(&copied) {
            self.unlock();
        }
        copied
    }

    fn copy_layers(
        &mut self,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let mut copied = CopiedVolume::default();
        while let Some(open) = self.departing.open_next(|layer| !self.departing.is_carried(layer))? {
            let arriving = self.arrival.described(&open.descriptor)?;
            let left = self.departing.left_of(&open.descriptor);
            let before = copied.read_bytes;
            let mut moved = |bytes| {
                copied.read_bytes += bytes;
                let left_bytes = left.bytes.saturating_sub(copied.read_bytes - before);
                let (done_bytes, left_layers) = (copied.read_bytes, left.layers);
                watch(RelocateProgress { done_bytes, left_bytes, left_layers })
            };
            let mut from = LayerOrigin::Here(&open.content);
            let carried = self.arrival.carry(&mut from, &arriving, &open.layer, &mut moved)?;
            let Some(written) = carried else { return Ok(None) };
            copied.layers += 1;
            copied.written_bytes += written;
            copied.shared_layers += usize::from(self.departing.from.shares(&open.layer));
            self.departing.keep(open);
        }
        Ok(Some(copied))
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
        self.departing.left()
    }

    /// Unlocks what was copied. It counts as not copied from then on, because it may change.
    pub fn unlock(&mut self) {
        self.departing.unlock();
    }

    /// Goes on with the volume, which was closed in order and which nobody uses any more: only what
    /// is left is copied then.
    ///
    /// # Errors
    /// As [`begin_relocation`](super::begin_relocation). What was copied is compared by the next
    /// attempt.
    pub fn closed(self) -> Result<Relocation<'a>, DatastoreError> {
        let Self { storage, options, departing, to, arrival } = self;
        let opened = open_settled(storage, &departing.from.path, Some(&to), &options)?;
        opened.arriving(storage, &to, &options, arrival, departing.carried)
    }

    /// Gives the move up, and removes what was copied.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn give_up(self) -> Result<(), DatastoreError> {
        self.arrival.clear()
    }
}

/// A layer that takes no writes any more, open and locked, with the descriptor that names it.
struct OpenSettled {
    descriptor: Descriptor,
    layer: LayerRecord,
    content: LayerContent,
}

impl<'a> DepartingBeside<'a> {
    /// The volume as it is now, for another host.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn sent(&self) -> Result<SentVolume, DatastoreError> {
        let (descriptor, bytes) = self.authenticated()?;
        let allocated = |layer: &LayerRecord| (layer.id, allocated_bytes(&self.from, layer));
        let allocated_bytes = descriptor.layers.iter().map(allocated).collect();
        Ok(SentVolume { descriptor: bytes, allocated_bytes })
    }

    /// Reads a layer, gives its pieces to `take`, and keeps it locked.
    ///
    /// # Errors
    /// If it cannot be read; those of `take`.
    pub fn read(&mut self, layer: LayerId, take: &mut TakePiece<'_>) -> Result<ReadLayer, DatastoreError> {
        let Some(open) = self.open_next(|found| found.id == layer)? else { return Ok(ReadLayer::Changes) };
        match open.content.read(take)? {
            Some(digest) => {
                self.keep(open);
                Ok(ReadLayer::Whole(digest))
            }
            None => Ok(ReadLayer::Ended),
        }
    }

    /// What there is still to read, with the layers that still change.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn left(&self) -> Result<LeftToRelocate, DatastoreError> {
        Ok(self.left_of(&self.authenticated()?.0))
    }

    /// Whether layers below the top still change.
    ///
    /// # Errors
    /// If the descriptor is not authentic.
    pub fn is_unsettled(&self) -> Result<bool, DatastoreError> {
        let descriptor = self.authenticated()?.0;
        let below = |layer: &&LayerRecord| layer.id != descriptor.top;
        Ok(descriptor.layers.iter().filter(below).any(|layer| !is_settled(&descriptor, layer)))
    }

    /// Unlocks what was read. It counts as not read from then on, because it may change.
    pub fn unlock(&mut self) {
        self.carried.clear();
    }

    /// Goes on with the volume, which was closed in order and which nobody uses any more.
    ///
    /// # Errors
    /// As [`begin_departure`](super::begin_departure).
    pub fn closed(self) -> Result<DepartingVolume<'a>, DatastoreError> {
        let Self { storage, options, from, carried } = self;
        let settled = open_settled(storage, &from.path, None, &options)?;
        DepartingVolume::new(settled, &options, carried)
    }

    /// Opens and locks the first of the wanted layers that can be copied.
    fn open_next(
        &self,
        is_wanted: impl Fn(&LayerRecord) -> bool,
    ) -> Result<Option<OpenSettled>, DatastoreError> {
        let directory = &self.from;
        loop {
            let (descriptor, bytes) = self.authenticated()?;
            let can_be = |layer: &&LayerRecord| is_wanted(layer) && is_settled(&descriptor, layer);
            let Some(layer) = descriptor.layers.iter().find(can_be) else { return Ok(None) };
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
                return Ok(Some(OpenSettled { descriptor, layer, content }));
            }
        }
    }

    /// Keeps a layer locked that was copied.
    fn keep(&mut self, OpenSettled { layer, content, .. }: OpenSettled) {
        self.carried.retain(|carried| carried.layer.id != layer.id);
        self.carried.push(CarriedLayer { layer, _locked: content.into_files() });
    }

    /// Whether a layer is at the destination.
    fn is_carried(&self, layer: &LayerRecord) -> bool {
        self.carried.iter().any(|carried| carried.is(layer))
    }

    fn left_of(&self, descriptor: &Descriptor) -> LeftToRelocate {
        let left = descriptor.layers.iter().filter(|layer| !self.is_carried(layer));
        LeftToRelocate::of(left, &|layer| allocated_bytes(&self.from, layer))
    }

    /// The descriptor, authenticated, and its bytes.
    fn authenticated(&self) -> Result<(Descriptor, Vec<u8>), DatastoreError> {
        let (directory, options) = (&self.from, &self.options);
        let encoded = directory.read_descriptor()?;
        refuse_the_other_sort(&directory.path, encoded.unverified(), options.protection)?;
        let bytes = encoded.bytes().to_vec();
        Ok((authenticate(&directory.path, encoded, &options.to_open(Access::ReadOnly))?, bytes))
    }
}

impl LeftToRelocate {
    /// All of these layers.
    pub(super) fn of<'d>(
        layers: impl Iterator<Item = &'d LayerRecord>,
        bytes_of: &dyn Fn(&LayerRecord) -> u64,
    ) -> Self {
        layers.fold(Self::default(), |left, layer| Self {
            layers: left.layers + 1,
            bytes: left.bytes.saturating_add(bytes_of(layer)),
        })
    }
}

/// Whether a layer takes no writes any more, and is not being merged.
pub(super) fn is_settled(descriptor: &Descriptor, layer: &LayerRecord) -> bool {
    let is_merged = |id| descriptor.merging.is_some_and(|merging| [merging.from, merging.into].contains(&id));
    layer.id != descriptor.top && !layer.closing && !is_merged(layer.id)
}

/// Whether two layers have the same content: their places among the others may differ.
pub(super) fn has_content_of(one: &LayerRecord, other: &LayerRecord) -> bool {
    content_of(one) == content_of(other)
}

/// The record without what may change beside the content.
fn content_of(layer: &LayerRecord) -> LayerRecord {
    LayerRecord { parent: None, closing: false, ..without_log(layer) }
}
