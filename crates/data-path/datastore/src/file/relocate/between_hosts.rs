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

use super::arrival::Arrival;
use super::beside::{CarriedLayer, LeftToRelocate, has_content_of, is_settled};
use super::layer_content::LayerDigest;
use super::passage::{LayerOrigin, LayerSource, TakePiece};
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
    /// What was read before the volume was closed.
    carried: Vec<CarriedLayer>,
}

/// How the reading of a layer has ended that may be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLayer {
    /// Its digest.
    Whole(LayerDigest),
    /// It still changes, or is not there any more.
    Changes,
    /// What took its pieces has ended it early.
    Ended,
}

/// Begins to read the volume at `from`, which nobody may use, for another host.
///
/// # Errors
/// As [`begin_relocation`](super::begin_relocation), for the volume.
pub fn begin_departure<'a>(
    from: &Path,
    options: &RelocateOptions<'a>,
) -> Result<DepartingVolume<'a>, DatastoreError> {
    DepartingVolume::new(open_settled(BY_PATH, from, None, options)?, options, Vec::new())
}

impl<'a> DepartingVolume<'a> {
    pub(super) fn new(
        settled: Settled,
        options: &RelocateOptions<'a>,
        carried: Vec<CarriedLayer>,
    ) -> Result<Self, DatastoreError> {
        let descriptor = settled.head.directory.read_descriptor()?.bytes().to_vec();
        let layers = settled.head.descriptor.layers.iter();
        let allocated_bytes = layers.map(|layer| (layer.id, settled.bytes_of(layer))).collect();
        let sent = SentVolume { descriptor, allocated_bytes };
        Ok(Self { options: *options, settled, sent, carried })
    }

    /// What the other host is told first.
    pub fn sent(&self) -> &SentVolume {
        &self.sent
    }

    /// The layers that were not read before the volume was closed, oldest first.
    pub fn rest(&self) -> impl Iterator<Item = LayerId> {
        let layers = self.settled.head.descriptor.layers.iter();
        layers.filter(|layer| !self.carried.iter().any(|carried| carried.is(layer))).map(|layer| layer.id)
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

/// Whether a volume that arrives is in use where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// It is: its top changes, and so may others.
    Yes,
    /// Nobody uses it.
    No,
}

/// A volume that arrives from another host. It is kept as it is if this is dropped: the next
/// attempt goes on with it.
pub struct ArrivingVolume<'a> {
    options: RelocateOptions<'a>,
    to: PathBuf,
    sent: SentVolume,
    in_use: InUse,
    arrival: Arrival<'a>,
    /// Its descriptor here.
    arriving: Descriptor,
    /// The layers that are here, and locked against changes where they come from.
    carried: Vec<LayerRecord>,
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
    in_use: InUse,
    volume: Option<VolumeId>,
    options: &RelocateOptions<'a>,
) -> Result<ArrivingVolume<'a>, DatastoreError> {
    let storage: &'static dyn Storage = BY_PATH;
    check_name(to)?;
    if storage.exists(to) {
        return Err(DatastoreError::Exists { path: to.to_owned() });
    }
    let descriptor = described(to, &sent, in_use, volume, options)?;
    let arrival = Arrival::begin(storage, to, descriptor.volume, options.lock_wait)?;
    let arriving = arrival.expected(&descriptor, &|layer| sent.bytes_of(layer))?;
    let (options, to) = (*options, to.to_owned());
    Ok(ArrivingVolume { options, to, sent, in_use, arrival, arriving, carried: Vec::new() })
}

/// What another host has sent, if it is authentic.
fn described(
    to: &Path,
    sent: &SentVolume,
    in_use: InUse,
    volume: Option<VolumeId>,
    options: &RelocateOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let encoded = EncodedDescriptor::parse(to, sent.descriptor.clone())?;
    refuse_the_other_sort(to, encoded.unverified(), options.protection)?;
    let descriptor = authenticate(to, encoded, &options.to_open(Access::ReadOnly))?;
    descriptor.expect_volume(to, volume)?;
    if in_use == InUse::No {
        refuse_unfinished(to, &descriptor)?;
    }
    Ok(descriptor)
}

impl SentVolume {
    fn bytes_of(&self, layer: &LayerRecord) -> u64 {
        self.allocated_bytes.get(&layer.id).copied().unwrap_or_default()
    }
}

impl ArrivingVolume<'_> {
    /// Its descriptor here, as far as it is known by now.
    pub fn descriptor(&self) -> &Descriptor {
        &self.arriving
    }

    /// The layers that the source is asked for, oldest first.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> {
        self.arriving.layers.iter().map(|layer| layer.id)
    }

    /// Takes note of what the volume is by now, at the same host over the same connection: what
    /// that host has given, it keeps locked.
    ///
    /// # Errors
    /// As [`begin_arrival`], and if that is older.
    pub fn renew(&mut self, sent: SentVolume, in_use: InUse) -> Result<(), DatastoreError> {
        let least_generation = self.arriving.generation - 1;
        let options = RelocateOptions { least_generation, ..self.options };
        let descriptor = described(&self.to, &sent, in_use, Some(self.arriving.volume), &options)?;
        self.arriving = self.arrival.expected(&descriptor, &|layer| sent.bytes_of(layer))?;
        (self.sent, self.in_use) = (sent, in_use);
        Ok(())
    }

    /// Removes what an earlier attempt has left of layers that have not arrived in this one: what
    /// comes unasked is not compared.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn forget_others(&mut self) -> Result<(), DatastoreError> {
        self.arrival.keep_only(&self.carried)
    }

    /// What has not arrived, with what still changes.
    pub fn left(&self) -> LeftToRelocate {
        LeftToRelocate::of(self.to_carry(), &|layer| self.sent.bytes_of(layer))
    }

    /// Receives the layers that are not here, and reads them back; of a volume in use those that
    /// take no writes any more. `watch` learns how far that is after each piece, and can end it:
    /// the result is `None` then. May be repeated.
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
        if self.arrival.gives_way(&copied) {
            self.carried.clear();
        }
        copied
    }

    fn copy_layers(
        &mut self,
        from: &mut dyn LayerSource,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let is_still = |layer: &&LayerRecord| self.in_use == InUse::No || is_settled(&self.arriving, layer);
        let layers: Vec<LayerRecord> = self.to_carry().filter(is_still).cloned().collect();
        let all_bytes = LeftToRelocate::of(layers.iter(), &|layer| self.sent.bytes_of(layer)).bytes;
        let mut copied = CopiedVolume { layers: layers.len(), ..CopiedVolume::default() };
        for (at, layer) in layers.iter().enumerate() {
            let mut moved = |bytes| {
                copied.read_bytes += bytes;
                let done_bytes = copied.read_bytes.min(all_bytes);
                let (left_bytes, left_layers) = (all_bytes - done_bytes, layers.len() - at);
                watch(RelocateProgress { done_bytes, left_bytes, left_layers })
            };
            let mut from = LayerOrigin::Elsewhere(&mut *from);
            let Some(written_bytes) = self.arrival.carry(&mut from, &self.arriving, layer, &mut moved)?
            else {
                return Ok(None);
            };
            copied.written_bytes += written_bytes;
            self.carried.retain(|carried| carried.id != layer.id);
            self.carried.push(layer.clone());
        }
        Ok(Some(copied))
    }

    fn to_carry(&self) -> impl Iterator<Item = &LayerRecord> {
        let is_here = |layer: &LayerRecord| self.carried.iter().any(|here| has_content_of(here, layer));
        self.arriving.layers.iter().filter(move |layer| !is_here(layer))
    }

    /// Gives the volume its name, durably, with a descriptor of a higher generation, which is
    /// authentic when it is read back. Returns it. The caller's record decides whether it is the
    /// volume.
    ///
    /// # Errors
    /// [`DatastoreError::NotCopied`] before all layers were received of a volume that nobody uses;
    /// if the place is taken, or the descriptor cannot be written.
    pub fn take_place(self) -> Result<Descriptor, DatastoreError> {
        if self.in_use == InUse::Yes || self.to_carry().next().is_some() {
            return Err(DatastoreError::NotCopied { path: self.to });
        }
        self.arrival.take_place(&self.arriving, &self.options)?;
        Ok(self.arriving)
    }
}
