//! Adds a new, empty layer to a volume that is not in use.
//!
//! The former top takes no writes from then on, so its content must be complete in its own file,
//! not in a log. So the order is: the old top is durable -> the new files are, and their names ->
//! the descriptor that says so -> the old top's log goes. A power cut leaves the old volume or the
//! new one, and at most files that no descriptor names: those of an unfinished layer, or a log that
//! is no longer needed. The next call to `add_layer` removes them first.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use strongroom_keys::KeyError;
use strongroom_types::LayerId;

use super::create::new_epoch;
use super::descriptor::{CHAIN_LAYERS_MAX, Descriptor, Integrity, LAYERS_MAX, LayerRecord, SnapshotRecord};
use super::directory::{VolumeDirectory, layer_of_name, log_name, system};
use super::disk::OpenLayer;
use super::error::DatastoreError;
use super::filesystem::FileSystem;
use super::open::{Access, Deks, OpenOptions, Protection, open_apart_on};
use super::reencrypt::Reencrypting;
use super::sidecar_pages::{self, Found};
use super::storage::{BY_PATH, Storage};
use super::tags::TagKeys;
use super::{discards, layer_files, log, tags};

/// Options of [`add_layer`].
#[derive(Clone, Copy, Debug)]
pub struct AddLayerOptions<'a> {
    /// The protection that the caller accepts. The new layer's DEK is sealed under this KEK.
    pub protection: Protection<'a>,
    /// Bytes of the new layer's first-write log, on a thin volume; `None` chooses them by the
    /// volume's size.
    pub log_bytes: Option<u64>,
    /// How long to wait for the process that holds the volume.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 accepts any.
    pub least_generation: u64,
}

/// Adds a new, empty top layer to the volume at `path`, which takes all further writes. The
/// volume's content does not change. Returns the volume's new descriptor.
///
/// # Errors
/// If the volume is still in use after `lock_wait`; if its first-write log or its tags were not
/// closed in order; if it already has [`CHAIN_LAYERS_MAX`] layers; if there is no room. The volume
/// is then unchanged.
pub fn add_layer(path: &Path, options: &AddLayerOptions<'_>) -> Result<Descriptor, DatastoreError> {
    add_layer_on(BY_PATH, path, options)
}

/// As [`add_layer`], on another file system.
pub fn add_layer_on(
    storage: &dyn Storage,
    path: &Path,
    options: &AddLayerOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    put_on(storage, path, options, |descriptor| {
        Ok(Placement { on: descriptor.top, snapshots: descriptor.snapshots.clone() })
    })
}

/// Where a new top goes.
pub(super) struct Placement {
    /// The layer that it lies on.
    pub on: LayerId,
    /// The volume's snapshots from then on. Layers that neither they nor the new top need are
    /// removed.
    pub snapshots: Vec<SnapshotRecord>,
}

/// Puts a new, empty top on the layer that `place` chooses.
pub(super) fn put_on(
    storage: &dyn Storage,
    path: &Path,
    options: &AddLayerOptions<'_>,
    place: impl FnOnce(&Descriptor) -> Result<Placement, DatastoreError>,
) -> Result<Descriptor, DatastoreError> {
    let &AddLayerOptions { protection, lock_wait, least_generation, .. } = options;
    let to_write = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation };
    let (head, old_top, deks) = open_apart_on(storage, path, &to_write)?;
    let (directory, descriptor) = (&head.directory, &head.descriptor);
    let placement = place(descriptor)?;
    refuse_unclosed(path, descriptor)?;
    let file_system = directory.file_system()?;
    let (layered, pruned) = with_a_layer(path, descriptor, placement, OldTop::Closed, &file_system, options)?;
    let keeps_old_top = layered.layer(descriptor.top).is_some();
    if keeps_old_top {
        refuse_an_open_log(path, descriptor.top, &old_top)?;
        refuse_unsettled_tags(path, descriptor.top, &old_top, &deks)?;
    }
    remove_leftovers(directory, descriptor)?;
    let encoded = layered.encode(path, &protection.keks())?;
    if keeps_old_top {
        make_durable(path, &old_top)?;
    }
    put_in_place(directory, &layered, &encoded, log::FileState::Closed, protection)?;
    // No descriptor names these any more: a file that stays is a leftover.
    let _ = directory.handle.remove(&log_name(descriptor.top));
    remove_layers(directory, &pruned);
    Ok(layered)
}

/// Removes the files of layers that the volume no longer has.
pub(super) fn remove_layers(directory: &VolumeDirectory, layers: &[LayerRecord]) {
    for name in layers.iter().flat_map(layer_files::names) {
        // A file that stays is a leftover, which the next call to `add_layer` removes.
        let _ = directory.handle.remove(&name);
    }
}

/// Refuses a volume with a layer below the top that is not complete.
pub(super) fn refuse_unclosed(path: &Path, descriptor: &Descriptor) -> Result<(), DatastoreError> {
    match descriptor.closing() {
        Some(layer) => Err(DatastoreError::NotClosed { path: path.to_owned(), layer: layer.id }),
        None => Ok(()),
    }
}

/// Refuses a descriptor with more layers, or a longer chain, than a volume can be used with.
fn refuse_too_many(path: &Path, layered: &Descriptor) -> Result<(), DatastoreError> {
    let (count, most) = (layered.chain().count(), CHAIN_LAYERS_MAX);
    if count > most {
        return Err(DatastoreError::LongChain { path: path.to_owned(), count, most });
    }
    let (count, most) = (layered.layers.len(), LAYERS_MAX);
    if count > most {
        return Err(DatastoreError::ManyLayers { path: path.to_owned(), count, most });
    }
    Ok(())
}

/// Refuses a log that is not empty: the log of a layer below the top is never read.
pub(super) fn refuse_an_open_log(path: &Path, layer: LayerId, top: &OpenLayer) -> Result<(), DatastoreError> {
    match top.log.as_ref().map(|file| log::is_closed_empty(&**file, layer)) {
        None | Some(Ok(true)) => Ok(()),
        Some(Ok(false)) => Err(DatastoreError::LogNotEmpty { path: path.to_owned(), layer }),
        Some(Err(error)) => Err(log::damaged(path, layer)(error)),
    }
}

/// Refuses tags that still have marks. Only the top's tags are settled, so marked blocks of a lower
/// layer would be accepted unverified for good.
pub(super) fn refuse_unsettled_tags(
    path: &Path,
    layer: LayerId,
    top: &OpenLayer,
    deks: &Deks,
) -> Result<(), DatastoreError> {
    let (Some(file), Some(facts)) = (&top.tags, top.facts.tags) else { return Ok(()) };
    let key_error = |error| DatastoreError::Key { path: path.to_owned(), error: KeyError::from(error) };
    let Some(keys) = TagKeys::derive(deks).map_err(key_error)? else { return Ok(()) };
    let layer_bytes = top.facts.size_bytes.block_aligned_bytes();
    match tags::marks_nothing(&**file, facts, &keys, layer_bytes) {
        Ok(true) => Ok(()),
        Ok(false) => Err(DatastoreError::TagsNotSettled { path: path.to_owned(), layer }),
        Err(error) => Err(DatastoreError::UnreadableTags { path: path.to_owned(), layer, error }),
    }
}

/// Removes the files that an interrupted addition left behind. The descriptor must be authentic and
/// durable: if a power cut could still undo it, the log of the layer below might be needed again.
pub(super) fn remove_leftovers(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
) -> Result<(), DatastoreError> {
    for name in directory.names()?.iter().filter(|name| is_leftover(descriptor, name)) {
        match directory.handle.remove(name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(system("remove a leftover of", &directory.path)(errno)),
        }
    }
    Ok(())
}

/// Whether a file is named like a layer's file but belongs to no layer.
pub(super) fn is_leftover(descriptor: &Descriptor, name: &str) -> bool {
    layer_of_name(name).is_some() && !layer_files::are_of(descriptor, name)
}

/// The state of the former top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OldTop {
    /// It is complete, and its log is empty.
    Closed,
    /// A process writes to it until the new top takes over.
    Closing,
}

/// The descriptor of the volume with a new top, and the layers that it no longer has.
pub(super) fn with_a_layer(
    path: &Path,
    descriptor: &Descriptor,
    placement: Placement,
    old_top: OldTop,
    file_system: &FileSystem,
    options: &AddLayerOptions<'_>,
) -> Result<(Descriptor, Vec<LayerRecord>), DatastoreError> {
    let mut layered = descriptor.clone();
    let Placement { on, snapshots } = placement;
    let parent = descriptor.layer(on).ok_or_else(|| DatastoreError::Damaged {
        path: path.to_owned(),
        reason: format!("it has no layer {on}"),
    })?;
    let (id, size) = (LayerId::random(), descriptor.layer_size(parent));
    layered.generation += 1;
    layered.size_bytes = size;
    let epochs = new_epoch(path, &mut layered, id, options.protection)?.into_iter().collect();
    let log = log::record_for(file_system, descriptor.provisioning, options.log_bytes, size);
    let integrity = match descriptor.reencrypting {
        Some(Reencrypting::Encrypted { integrity, .. }) => integrity,
        Some(Reencrypting::Clear {}) => None,
        None => parent.integrity.map(Integrity::renewed),
    };
    if let Some(old) = layered.layers.iter_mut().find(|layer| layer.id == descriptor.top) {
        old.size_bytes = Some(descriptor.size_bytes);
        old.closing = old_top == OldTop::Closing;
        old.log = old.log.filter(|_| old.closing);
    }
    layered.layers.push(LayerRecord {
        id,
        parent: Some(on),
        size_bytes: None,
        epochs,
        log,
        integrity,
        closing: false,
        volume: None,
    });
    (layered.top, layered.snapshots) = (id, snapshots);
    let pruned = layered.prune();
    refuse_too_many(path, &layered)?;
    Ok((layered, pruned))
}

/// Makes everything written to the current top durable. It is not synced again.
pub(super) fn make_durable(path: &Path, old_top: &OpenLayer) -> Result<(), DatastoreError> {
    let synced = std::iter::once(&old_top.file).chain(&old_top.tags).try_for_each(|file| file.sync());
    synced.map_err(system("sync a layer of", path))?;
    let Some((file, facts)) = old_top.discards.as_ref().zip(old_top.facts.discards) else { return Ok(()) };
    let bytes = discards::file_bytes(old_top.facts.size_bytes.block_aligned_bytes());
    sidecar_pages::read(&**file, 0..bytes, Found::NotYet, |_, _| Ok(())).map_err(|error| {
        DatastoreError::UnwrittenDiscards { path: path.to_owned(), layer: facts.layer, error }
    })
}

/// Makes the files of the new top, and then the descriptor that names them. If that fails, the
/// files are removed, unless the descriptor is there all the same.
pub(super) fn put_in_place(
    directory: &VolumeDirectory,
    layered: &Descriptor,
    encoded: &[u8],
    log: log::FileState,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    let Some(layer) = layered.layer(layered.top) else { return Ok(()) };
    let put = || {
        layer_files::make(directory, layered, layer, log, &directory.path, protection)?;
        directory.sync()?;
        directory.write_descriptor(encoded)
    };
    put().inspect_err(|_| {
        // A descriptor that was renamed, and could not be made durable, names them.
        if directory.read_descriptor().is_ok_and(|found| found.bytes() != encoded) {
            remove_layers(directory, std::slice::from_ref(layer));
        }
    })
}
