//! A volume that moves to another host: what reads its layers at one, and what makes a volume of
//! them at the other. How they get from one to the other is their callers'.
//!
//! The other host believes its KEK, and what its caller knows of the volume: the descriptor is
//! authenticated there, and a piece that is of no layer is refused. That the layers are complete is
//! said by the digest of what was sent, which has to be that of what is read back there.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use strongroom_types::{LayerId, VolumeId};

use super::arrival::{Arrival, LayerSource, TakePiece};
use super::layer_content::LayerDigest;
use super::{CopiedVolume, RelocateOptions, RelocateProgress, Settled, open_settled, refuse_unfinished};
use crate::file::create::check_name;
use crate::file::descriptor::{Descriptor, EncodedDescriptor, LayerRecord};
use crate::file::error::DatastoreError;
use crate::file::open::Access;
use crate::file::open_files::{authenticate, refuse_the_other_sort};
use crate::file::storage::{BY_PATH, Storage};

/// What another host is told of a volume before it reads its layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentVolume {
    /// Its descriptor, as it is stored.
    pub descriptor: Vec<u8>,
    /// The bytes that the files of each layer have allocated: for the room that it needs, and for
    /// progress.
    pub allocated_bytes: BTreeMap<LayerId, u64>,
}

/// A volume whose layers are read for another host. It is locked.
pub struct DepartingVolume<'a> {
    options: RelocateOptions<'a>,
    settled: Settled,
    sent: SentVolume,
}

/// Begins to read the volume at `from`, which nobody may use, for another host.
///
/// # Errors
/// As [`begin_relocation`](super::begin_relocation), for the volume.
pub fn begin_departure<'a>(
    from: &Path,
    options: &RelocateOptions<'a>,
) -> Result<DepartingVolume<'a>, DatastoreError> {
    let settled = open_settled(BY_PATH, from, None, options)?;
    let descriptor = settled.head.directory.read_descriptor()?.bytes().to_vec();
    let layers = settled.head.descriptor.layers.iter();
    let allocated_bytes = layers.map(|layer| (layer.id, settled.bytes_of(layer))).collect();
    Ok(DepartingVolume { options: *options, settled, sent: SentVolume { descriptor, allocated_bytes } })
}

impl DepartingVolume<'_> {
    /// What the other host is told first.
    pub fn sent(&self) -> &SentVolume {
        &self.sent
    }

    /// Reads a layer, and gives its pieces to `take`. Returns the digest of what it has; `None` if
    /// `take` has ended it early.
    ///
    /// # Errors
    /// [`DatastoreError::NotReceived`] if the volume has no such layer; if it cannot be read; those
    /// of `take`.
    pub fn read(
        &self,
        layer: LayerId,
        take: &mut TakePiece<'_>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        let found = self.settled.head.descriptor.layer(layer).ok_or_else(|| DatastoreError::NotReceived {
            path: self.settled.head.path().to_owned(),
            reason: format!("it has no layer {layer}"),
        })?;
        self.settled.content_of(found, &self.options)?.read(take)
    }
}

/// A volume that arrives from another host. It is kept as it is if this is dropped: the next
/// attempt goes on with it.
pub struct ArrivingVolume<'a> {
    options: RelocateOptions<'a>,
    to: PathBuf,
    sent: SentVolume,
    arrival: Arrival<'a>,
    /// Its descriptor here.
    arriving: Descriptor,
    /// Whether all layers are here.
    is_copied: bool,
}

/// Begins to receive a volume at `to`, which must not exist. `volume` is its id, and
/// [`RelocateOptions::least_generation`] its generation, as the caller knows them.
///
/// # Errors
/// If the descriptor is not authentic, or another volume's; [`DatastoreError::Exists`]; if there is
/// no room for it, or the datastore cannot hold such a volume. Nothing has changed then.
pub fn begin_arrival<'a>(
    to: &Path,
    sent: SentVolume,
    volume: Option<VolumeId>,
    options: &RelocateOptions<'a>,
) -> Result<ArrivingVolume<'a>, DatastoreError> {
    let storage: &'static dyn Storage = BY_PATH;
    check_name(to)?;
    if storage.exists(to) {
        return Err(DatastoreError::Exists { path: to.to_owned() });
    }
    let encoded = EncodedDescriptor::parse(to, sent.descriptor.clone())?;
    refuse_the_other_sort(to, encoded.unverified(), options.protection)?;
    let descriptor = authenticate(to, encoded, &options.to_open(Access::ReadOnly))?;
    descriptor.expect_volume(to, volume)?;
    refuse_unfinished(to, &descriptor)?;
    let arrival = Arrival::begin(storage, to, descriptor.volume, options.lock_wait)?;
    let bytes_of = |layer: &LayerRecord| sent.allocated_bytes.get(&layer.id).copied().unwrap_or_default();
    let arriving = arrival.expected(&descriptor, &bytes_of)?;
    Ok(ArrivingVolume { options: *options, to: to.to_owned(), sent, arrival, arriving, is_copied: false })
}

impl ArrivingVolume<'_> {
    /// The layers that the source is asked for, oldest first.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> {
        self.arriving.layers.iter().map(|layer| layer.id)
    }

    /// Receives all layers, and reads them back. `watch` learns how far that is after each piece,
    /// and can end it: the result is `None` then. May be repeated.
    ///
    /// # Errors
    /// Those of `from`; [`DatastoreError::NotReceived`] for a piece that is of no such layer;
    /// [`DatastoreError::NotRelocated`]; [`DatastoreError::Full`], after which nothing is left.
    pub fn copy(
        &mut self,
        from: &mut dyn LayerSource,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let copied = self.copy_layers(from, watch);
        if matches!(copied, Err(DatastoreError::Full { .. })) {
            let _ = self.arrival.clear();
        }
        self.is_copied = matches!(copied, Ok(Some(_)));
        copied
    }

    fn copy_layers(
        &self,
        from: &mut dyn LayerSource,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let Self { sent, arrival, arriving, .. } = self;
        let layers = &arriving.layers;
        let all_bytes = sent.allocated_bytes.values().fold(0_u64, |all, bytes| all.saturating_add(*bytes));
        let mut copied = CopiedVolume { layers: layers.len(), ..CopiedVolume::default() };
        for (at, layer) in layers.iter().enumerate() {
            let mut moved = |bytes| {
                copied.read_bytes += bytes;
                let done_bytes = copied.read_bytes.min(all_bytes);
                let (left_bytes, left_layers) = (all_bytes - done_bytes, layers.len() - at);
                watch(RelocateProgress { done_bytes, left_bytes, left_layers })
            };
            let Some(written_bytes) = arrival.carry(from, arriving, layer, &mut moved)? else {
                return Ok(None);
            };
            copied.written_bytes += written_bytes;
        }
        Ok(Some(copied))
    }

    /// Gives the volume its name, durably, with a descriptor of a higher generation, which is
    /// authentic when it is read back. Returns it. The caller's record decides whether it is the
    /// volume.
    ///
    /// # Errors
    /// [`DatastoreError::NotCopied`] before all layers were received; if the place is taken, or the
    /// descriptor cannot be written.
    pub fn take_place(self) -> Result<Descriptor, DatastoreError> {
        if !self.is_copied {
            return Err(DatastoreError::NotCopied { path: self.to });
        }
        self.arrival.take_place(&self.arriving, &self.options)?;
        Ok(self.arriving)
    }
}
