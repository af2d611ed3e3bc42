//! Moves a volume to another directory: of another datastore, on another file system or cluster.
//! Its layers travel as they are, as ciphertext with their tags and records of discards. Volume,
//! layers, snapshots and data keys stay what they are.
//!
//! ```text
//! copy           a hidden directory beside the place has all layers, durably, and they read back
//! take place     its descriptor, of a higher generation -> all of its names are durable -> its name
//! (commit)       the caller's own record says that the volume is there from now on
//! remove former  the volume at the former place is deleted
//! ```
//!
//! Before the commit the volume is where it was, whatever is at the destination: [`withdraw`] takes
//! back what has its name already, and the next attempt goes on with it. After the commit it is at
//! the destination, and [`remove_former`] can be repeated until nothing is left of the former one.
//! A caller without a record of its own has none of this certainty if it is killed between the two:
//! it finds the volume at both places, and [`begin_relocation`] refuses that.
//!
//! What an earlier attempt has left is compared block by block, never believed.
//! `docs/decisions/0057-moving-volumes.md` has the reasons.

mod arrival;
mod beside;
mod between_hosts;
mod layer_content;
mod passage;
mod piece_memory;
mod read_back;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use strongroom_types::VolumeId;

use self::arrival::{Arrival, allocated_bytes, staging_of, without_log};
use self::beside::CarriedLayer;
use self::layer_content::LayerContent;
use self::passage::LayerOrigin;
use super::add_layer::{refuse_an_open_log, refuse_unclosed, remove_leftovers};
use super::create::check_name;
use super::delete::{DELETING_PREFIX, delete_locked, delete_on};
use super::descriptor::{Descriptor, LayerRecord};
use super::directory::{VolumeDirectory, layer_of_name, parent_of, sync_parent, system};
use super::disk::OpenLayer;
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::lock::{self, Sharing};
use super::open::{Access, OpenOptions, Protection, open_apart_on};
use super::open_files::{Opening, authenticate, refuse_the_other_sort};
use super::storage::{BY_PATH, Storage};

pub(super) use self::arrival::ARRIVING_PREFIX;
pub use self::beside::{
    DepartingBeside, LeftToRelocate, RelocationBeside, begin_departure_beside, begin_relocation_beside,
    begin_relocation_beside_on,
};
pub use self::between_hosts::{
    ArrivingVolume, DepartingVolume, InUse, ReadLayer, SentVolume, begin_arrival, begin_departure,
};
pub use self::layer_content::{LAYER_PIECE_BYTES_MAX, LayerDigest, LayerPart, LayerPiece};
pub use self::passage::{LayerSource, LeftThere, TakePiece};

/// Options of [`begin_relocation`].
#[derive(Clone, Copy, Debug)]
pub struct RelocateOptions<'a> {
    /// What the volume is under, at both places.
    pub protection: Protection<'a>,
    /// How long to wait for the process that holds the volume.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 accepts any.
    pub least_generation: u64,
}

impl<'a> RelocateOptions<'a> {
    fn to_open(self, access: Access) -> OpenOptions<'a> {
        let Self { protection, lock_wait, least_generation } = self;
        OpenOptions { protection, access, lock_wait, least_generation }
    }
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocateProgress {
    /// Bytes of the volume's files that were read, and are at the destination.
    pub done_bytes: u64,
    /// Bytes that are still to be read.
    pub left_bytes: u64,
    /// Layers that are not complete at the destination.
    pub left_layers: usize,
}

/// A volume all of whose layers were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopiedVolume {
    /// Layers that were copied.
    pub layers: usize,
    /// Of these, those that other volumes have too: they keep them, and the copy shares nothing.
    pub shared_layers: usize,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written: what an earlier attempt had copied is not written again.
    pub written_bytes: u64,
}

/// A volume that is being moved. It is locked at both places. If this is dropped, the volume is
/// where it was, and the next attempt goes on with what was copied.
pub struct Relocation<'a> {
    storage: &'a dyn Storage,
    options: RelocateOptions<'a>,
    to: PathBuf,
    from: Settled,
    /// What was copied while the volume was in use.
    carried: Vec<CarriedLayer>,
    arrival: Arrival<'a>,
    /// Its descriptor at the destination.
    arriving: Descriptor,
    /// Whether all layers are at the destination.
    is_copied: bool,
}

/// Begins to move the volume at `from`, which nobody may use, to `to`, which must not exist. Its
/// log must be empty, and no merge may be marked.
///
/// # Errors
/// If the volume is still in use after `lock_wait`, or was not closed in order; if it has a part in
/// a snapshot of several volumes, which know it by its path; [`DatastoreError::TwoPlaces`] if `to`
/// is the same volume already; if the destination lacks room for it, or cannot hold such a volume.
/// Nothing has changed then.
pub fn begin_relocation<'a>(
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'a>,
) -> Result<Relocation<'a>, DatastoreError> {
    begin_relocation_on(BY_PATH, from, to, options)
}

/// As [`begin_relocation`], on another file system.
pub fn begin_relocation_on<'a>(
    storage: &'a dyn Storage,
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'a>,
) -> Result<Relocation<'a>, DatastoreError> {
    check_name(to)?;
    let opened = open_settled(storage, from, Some(to), options)?;
    let arrival = Arrival::begin(storage, to, opened.head.descriptor.volume, options.lock_wait)?;
    opened.arriving(storage, to, options, arrival, Vec::new())
}

/// A volume that is locked, and complete.
struct Settled {
    head: VolumeHead,
    /// Holds the locks of its files.
    top: OpenLayer,
}

/// Locks a volume that can be moved, to a place of this host if that is known.
fn open_settled(
    storage: &dyn Storage,
    from: &Path,
    to: Option<&Path>,
    options: &RelocateOptions<'_>,
) -> Result<Settled, DatastoreError> {
    let (head, top, _) = open_apart_on(storage, from, &options.to_open(Access::ReadWrite))?;
    let descriptor = &head.descriptor;
    if let Some(to) = to {
        refuse_taken_place(storage, from, descriptor.volume, to)?;
    }
    refuse_unfinished(from, descriptor)?;
    refuse_an_open_log(from, descriptor.top, &top)?;
    head.refuse_a_second_group()?;
    // What nothing names is not moved, and must not keep the volume from being deleted.
    remove_leftovers(&head.directory, descriptor)?;
    Ok(Settled { head, top })
}

/// Refuses a volume in the middle of a merge, or whose last top was not closed.
fn refuse_unfinished(path: &Path, descriptor: &Descriptor) -> Result<(), DatastoreError> {
    match descriptor.merging {
        Some(merging) => Err(DatastoreError::UnfinishedMerge { path: path.to_owned(), layer: merging.from }),
        None => refuse_unclosed(path, descriptor),
    }
}

impl Settled {
    fn arriving<'a>(
        self,
        storage: &'a dyn Storage,
        to: &Path,
        options: &RelocateOptions<'a>,
        arrival: Arrival<'a>,
        carried: Vec<CarriedLayer>,
    ) -> Result<Relocation<'a>, DatastoreError> {
        let arriving = arrival.expected(&self.head.descriptor, &|layer| self.bytes_of(layer))?;
        let (options, to) = (*options, to.to_owned());
        Ok(Relocation { storage, options, to, from: self, carried, arrival, arriving, is_copied: false })
    }

    /// The bytes that the files of a layer have allocated.
    fn bytes_of(&self, layer: &LayerRecord) -> u64 {
        allocated_bytes(&self.head.directory, layer)
    }

    /// Opens a layer to be read. Its files are locked as those of the volume are.
    fn content_of(
        &self,
        layer: &LayerRecord,
        options: &RelocateOptions<'_>,
    ) -> Result<LayerContent, DatastoreError> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        let (options, file_system) = (options.to_open(Access::ReadOnly), directory.file_system()?);
        let opening = Opening { directory, file_system, descriptor, options: &options, sharing: None };
        let opened = opening.open(&without_log(layer))?;
        Ok(LayerContent::of(directory.path.clone(), descriptor, layer, opened))
    }
}

/// Moves the volume at `from`, which nobody may use, to `to`, which must not exist, by one rename.
/// Returns its descriptor, which is the same as before; `None` if they lie on two file systems.
///
/// # Errors
/// As [`begin_relocation`]. Nothing has changed then, unless a sync has failed.
pub fn move_within(
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'_>,
) -> Result<Option<Descriptor>, DatastoreError> {
    check_name(to)?;
    let storage = BY_PATH;
    let head = VolumeHead::open_on(storage, from, &options.to_open(Access::ReadWrite))?;
    refuse_taken_place(storage, from, head.descriptor.volume, to)?;
    head.refuse_a_second_group()?;
    match storage.rename(from, to) {
        Ok(()) => {}
        Err(Errno::XDEV | Errno::NOENT) => return Ok(None),
        Err(Errno::EXIST | Errno::NOTEMPTY) => return Err(DatastoreError::Exists { path: to.to_owned() }),
        Err(errno) => return Err(system("move", from)(errno)),
    }
    sync_parent(storage, to)?;
    sync_parent(storage, from)?;
    Ok(Some(head.descriptor))
}

/// Refuses a place where something is.
fn refuse_taken_place(
    storage: &dyn Storage,
    from: &Path,
    volume: VolumeId,
    to: &Path,
) -> Result<(), DatastoreError> {
    if !storage.exists(to) {
        return Ok(());
    }
    let exists = || DatastoreError::Exists { path: to.to_owned() };
    let found = VolumeDirectory::open(storage, to).map_err(|_| exists())?;
    // The volume itself, by another path, is locked.
    lock::acquire(&*found.handle, Sharing::Shared, Duration::ZERO, to).map_err(|_| exists())?;
    let encoded = found.read_descriptor().map_err(|_| exists())?;
    match encoded.unverified().volume == volume {
        true => Err(DatastoreError::TwoPlaces { path: from.to_owned(), other: to.to_owned(), volume }),
        false => Err(exists()),
    }
}

impl<'a> Relocation<'a> {
    /// The volume's descriptor at its present place, authenticated.
    pub fn descriptor(&self) -> &Descriptor {
        &self.from.head.descriptor
    }

    /// Copies all layers, and has the destination read them back. `watch` learns how far that is
    /// after each MiB at most, and can end it: the result is `None` then. May be repeated.
    ///
    /// # Errors
    /// If a file cannot be read or written; [`DatastoreError::NotRelocated`];
    /// [`DatastoreError::Full`], after which nothing is left at the destination.
    pub fn copy(
        &mut self,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let copied = self.copy_layers(watch);
        if self.arrival.gives_way(&copied) {
            self.carried.clear();
        }
        self.is_copied = matches!(copied, Ok(Some(_)));
        copied
    }

    fn copy_layers(
        &self,
        watch: &mut dyn FnMut(RelocateProgress) -> ControlFlow<()>,
    ) -> Result<Option<CopiedVolume>, DatastoreError> {
        let Self { from, arrival, arriving, options, .. } = self;
        let is_left = |layer: &&LayerRecord| !self.carried.iter().any(|carried| carried.is(layer));
        let left: Vec<&LayerRecord> = arriving.layers.iter().filter(is_left).collect();
        let all_bytes: u64 = left.iter().map(|layer| from.bytes_of(layer)).sum();
        let mut copied = CopiedVolume { layers: left.len(), ..CopiedVolume::default() };
        for (at, layer) in left.iter().enumerate() {
            let mut moved = |bytes| {
                copied.read_bytes += bytes;
                let done_bytes = copied.read_bytes.min(all_bytes);
                let left_layers = left.len() - at;
                watch(RelocateProgress { done_bytes, left_bytes: all_bytes - done_bytes, left_layers })
            };
            let content = from.content_of(layer, options)?;
            let Some(written_bytes) =
                arrival.carry(&mut LayerOrigin::Here(&content), arriving, layer, &mut moved)?
            else {
                return Ok(None);
            };
            copied.written_bytes += written_bytes;
            copied.shared_layers += usize::from(from.head.directory.shares(layer));
        }
        Ok(Some(copied))
    }

    /// Gives the copy the volume's name at the destination, durably, with a descriptor of a higher
    /// generation, which is authentic when it is read back. Returns it. From then on the caller's
    /// record decides which of the two is the volume.
    ///
    /// # Errors
    /// [`DatastoreError::NotCopied`] before all layers were copied; if the place is taken, or the
    /// descriptor cannot be written. The volume is where it was.
    pub fn take_place(&mut self) -> Result<Descriptor, DatastoreError> {
        let Self { options, arrival, arriving, to, is_copied, .. } = self;
        if !*is_copied {
            return Err(DatastoreError::NotCopied { path: to.clone() });
        }
        arrival.take_place(arriving, options)?;
        Ok(arriving.clone())
    }

    /// Deletes the volume at its former place. It must have taken its new one, and the caller must
    /// have recorded that. The former one was locked all the time.
    ///
    /// # Errors
    /// If `to` is not the volume; those of [`delete`](super::delete()).
    pub fn remove_former(self) -> Result<(), DatastoreError> {
        let Self { storage, options, to, from: Settled { head, top }, carried, arrival, .. } = self;
        // The caller may use the volume by now.
        drop(arrival);
        let arrived = arrived_at(storage, &to, &options)?;
        expect_former(&head.descriptor, head.path(), &arrived)?;
        drop((top, carried));
        delete_locked(storage, &head.directory, options.lock_wait)
    }

    /// Gives the move up, and removes what was copied.
    ///
    /// # Errors
    /// If a file cannot be removed. The volume is where it was.
    pub fn give_up(self) -> Result<(), DatastoreError> {
        self.arrival.clear()
    }
}

/// Deletes the volume at `from`, after it has moved to `to` and the caller has recorded that. May
/// be repeated, also when nothing is left of it, and while the volume is in use at `to`.
///
/// # Errors
/// If `to` is not the volume at `from`, of a higher generation; those of
/// [`delete`](super::delete()).
pub fn remove_former(from: &Path, to: &Path, options: &RelocateOptions<'_>) -> Result<(), DatastoreError> {
    remove_former_on(BY_PATH, from, to, options)
}

/// As [`remove_former`], on another file system.
pub fn remove_former_on(
    storage: &dyn Storage,
    from: &Path,
    to: &Path,
    options: &RelocateOptions<'_>,
) -> Result<(), DatastoreError> {
    let arrived = arrived_at(storage, to, options)?;
    if !storage.exists(from) {
        remove_rests(storage, parent_of(from), &arrived, options.lock_wait)?;
        // A killed process may have removed the name.
        return sync_parent(storage, from);
    }
    let directory = VolumeDirectory::open(storage, from)?;
    lock::acquire(&*directory.handle, Sharing::Exclusive, options.lock_wait, from)?;
    match directory.read_descriptor() {
        Ok(encoded) => {
            let former = RelocateOptions { least_generation: 0, ..*options };
            expect_former(&authenticate(from, encoded, &former.to_open(Access::ReadOnly))?, from, &arrived)?;
            delete_locked(storage, &directory, options.lock_wait)
        }
        // A deletion that was interrupted.
        Err(DatastoreError::NotAVolume { .. }) => {
            drop(directory);
            delete_on(storage, from, options.lock_wait)
        }
        Err(error) => Err(error),
    }
}

/// Removes what an interrupted deletion of the volume has left in a datastore, under a name that
/// nobody knows: it has files of the volume's layers, or none any more. What cannot be removed is
/// listed with the datastore's volumes, as after any deletion.
fn remove_rests(
    storage: &dyn Storage,
    datastore: &Path,
    arrived: &Descriptor,
    lock_wait: Duration,
) -> Result<(), DatastoreError> {
    for name in VolumeDirectory::open_datastore(storage, datastore)?.names()? {
        if !name.starts_with(DELETING_PREFIX) {
            continue;
        }
        let rest = datastore.join(name);
        let names = VolumeDirectory::open(storage, &rest).and_then(|directory| directory.names());
        let is_of_it = |name: &String| layer_of_name(name).is_some_and(|id| arrived.layer(id).is_some());
        if names.is_ok_and(|names| names.is_empty() || names.iter().any(is_of_it))
            && let Err(error) = delete_on(storage, &rest, lock_wait)
        {
            tracing::warn!("a rest of a deletion stays: {error}");
        }
    }
    Ok(())
}

/// The descriptor of the volume at `to`, authenticated. It and its name are durable.
fn arrived_at(
    storage: &dyn Storage,
    to: &Path,
    options: &RelocateOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let directory = VolumeDirectory::open(storage, to)?;
    let encoded = directory.read_descriptor()?;
    refuse_the_other_sort(to, encoded.unverified(), options.protection)?;
    let arrived = authenticate(to, encoded, &options.to_open(Access::ReadOnly))?;
    directory.sync()?;
    directory.sync_place(storage)?;
    Ok(arrived)
}

/// Refuses to take `former` for what `arrived` was before it moved.
fn expect_former(former: &Descriptor, path: &Path, arrived: &Descriptor) -> Result<(), DatastoreError> {
    former.expect_volume(path, Some(arrived.volume))?;
    arrived.expect_generation(path, former.generation + 1)
}

/// Takes the name of a volume at `to` back, durably, after a move that its caller has not recorded:
/// the volume is where it was. What was copied is kept for the next attempt. Nothing happens if
/// nothing is at `to`.
///
/// # Errors
/// [`DatastoreError::OtherVolume`]; if the volume at `to` is in use, or is not authentic.
pub fn withdraw(to: &Path, volume: VolumeId, options: &RelocateOptions<'_>) -> Result<(), DatastoreError> {
    withdraw_on(BY_PATH, to, volume, options)
}

/// As [`withdraw`], on another file system.
pub fn withdraw_on(
    storage: &dyn Storage,
    to: &Path,
    volume: VolumeId,
    options: &RelocateOptions<'_>,
) -> Result<(), DatastoreError> {
    if !storage.exists(to) {
        return if storage.is_directory(parent_of(to)) { sync_parent(storage, to) } else { Ok(()) };
    }
    let directory = VolumeDirectory::open(storage, to)?;
    lock::acquire(&*directory.handle, Sharing::Exclusive, options.lock_wait, to)?;
    let encoded = directory.read_descriptor()?;
    encoded.unverified().expect_volume(to, Some(volume))?;
    authenticate(to, encoded, &options.to_open(Access::ReadOnly))?;
    let staging = staging_of(to, volume);
    storage.rename(to, &staging).map_err(system("withdraw", to))?;
    sync_parent(storage, to)
}

/// Removes what an interrupted move of this volume to `to` has left there, apart from a volume that
/// has its name already ([`withdraw`]). Nothing happens if nothing is left.
///
/// # Errors
/// If it is in use, or holds a file that is no volume's.
pub fn cancel_relocation(to: &Path, volume: VolumeId, lock_wait: Duration) -> Result<(), DatastoreError> {
    cancel_relocation_on(BY_PATH, to, volume, lock_wait)
}

/// As [`cancel_relocation`], on another file system.
pub fn cancel_relocation_on(
    storage: &dyn Storage,
    to: &Path,
    volume: VolumeId,
    lock_wait: Duration,
) -> Result<(), DatastoreError> {
    match delete_on(storage, &staging_of(to, volume), lock_wait) {
        Err(DatastoreError::System { errno: Errno::NOENT, .. }) => Ok(()),
        deleted => deleted,
    }
}
