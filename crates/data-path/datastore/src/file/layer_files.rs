//! The files of a layer, and their sizes.
//!
//! ```text
//! layer-<id>      its blocks
//! log-<id>        first writes on their way to it, of a thin top layer
//! tags2-<id>      the tags of its blocks, if it has any; `tags-<id>` of the former format
//! discards-<id>   which of its blocks of zeroes hide the layers below, if there are any
//! ```

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_crypto::CryptoError;
use strongroom_io::IoError;
use strongroom_types::{VolumeSize, display_bytes};

use super::descriptor::{Descriptor, LayerRecord, LogRecord, Provisioning};
use super::directory::{VolumeDirectory, discards_name, layer_name, log_name, system, tags_name};
use super::error::DatastoreError;
use super::open::{Deks, Protection};
use super::open_files::deks_of;
use super::shared::refuse_shared;
use super::storage::StoredFile;
use super::tagging::Binding;
use super::{discards, log, tags};

/// The names of all files that a layer has.
pub(super) fn names(layer: &LayerRecord) -> impl Iterator<Item = String> {
    let log = layer.log.map(|_| log_name(layer.id));
    let tags = layer.integrity.map(|integrity| tags_name(layer.id, integrity));
    let discards = layer.parent.map(|_| discards_name(layer.id));
    std::iter::once(layer_name(layer.id)).chain(log).chain(tags).chain(discards)
}

/// Whether a file belongs to one of the volume's layers.
pub(super) fn are_of(descriptor: &Descriptor, name: &str) -> bool {
    descriptor.layers.iter().flat_map(names).any(|of_layer| of_layer == name)
}

/// Makes the files of a new top layer, each of them durably. Their names are durable once the
/// directory is synced. `path` names the volume in errors.
pub(super) fn make(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    log: log::FileState,
    path: &Path,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    let new = |name: &str| directory.file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
    let file = new(&layer_name(layer.id)).map_err(system("create a layer of", path))?;
    size_layer(&*file, 0, descriptor, layer, path)?;
    file.sync().map_err(system("sync a layer of", path))?;
    if let Some(LogRecord { bytes }) = layer.log {
        log::create(directory, layer.id, bytes, log, path)?;
    }
    if let Some(integrity) = layer.integrity {
        let tags = new(&tags_name(layer.id, integrity)).map_err(system("create the tags of", path))?;
        size_tags(&*tags, descriptor, layer, path)?;
        say_nothing_is_there(&*tags, descriptor, layer, 0, path, protection)?;
        tags.sync().map_err(system("sync the tags of", path))?;
    }
    if layer.parent.is_some() {
        let discards =
            new(&discards_name(layer.id)).map_err(system("create the record of discards of", path))?;
        size_discards(&*discards, descriptor.layer_size(layer), path)?;
        discards.sync().map_err(system("sync the record of discards of", path))?;
    }
    Ok(())
}

/// Makes the files of a layer whose content is about to be copied into them, except for its log:
/// they have their lengths, and their space, and no content. Nothing of it is durable.
pub(super) fn make_for_copy(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    path: &Path,
) -> Result<(), DatastoreError> {
    let new = |name: &str, action| {
        let file = directory.file(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
        file.map_err(no_room_or(action, 0, path))
    };
    size_layer(&*new(&layer_name(layer.id), "create a layer of")?, 0, descriptor, layer, path)?;
    if let Some(integrity) = layer.integrity {
        let tags = new(&tags_name(layer.id, integrity), "create the tags of")?;
        size_tags(&*tags, descriptor, layer, path)?;
    }
    if layer.parent.is_some() {
        let discards = new(&discards_name(layer.id), "create the record of discards of")?;
        size_discards(&*discards, descriptor.layer_size(layer), path)?;
    }
    Ok(())
}

/// Makes the files of a layer as large as its new size in `grown` needs them, durably. `from` is
/// the size so far.
pub(super) fn grow(
    directory: &VolumeDirectory,
    grown: &Descriptor,
    layer: &LayerRecord,
    from: VolumeSize,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    let (path, id) = (&directory.path, layer.id);
    // Opens the files again: the locked open files may belong to another process.
    let open = |name: &str, missing: DatastoreError, action| {
        let file = directory.file(name, OFlags::RDWR).map_err(|errno| match errno {
            Errno::NOENT => missing,
            errno => system(action, path)(errno),
        })?;
        if id != grown.top {
            refuse_shared(&*file, path, id)?;
        }
        Ok::<_, DatastoreError>(file)
    };
    // The process that does the I/O may be syncing the same files.
    let in_turn = directory.file_system()?.syncs_in_turn;
    let sync = |file: &dyn StoredFile, action| {
        let synced = if in_turn { directory.handle.sync_file_system() } else { file.sync() };
        synced.map_err(system(action, path))
    };
    let missing = DatastoreError::MissingLayer { path: path.clone(), layer: id };
    let blocks = open(&layer_name(id), missing, "open a layer of")?;
    size_layer(&*blocks, from.block_aligned_bytes(), grown, layer, path)?;
    sync(&*blocks, "sync a layer of")?;
    if let Some(integrity) = layer.integrity {
        let missing = DatastoreError::MissingTags { path: path.clone(), layer: id };
        let tags = open(&tags_name(id, integrity), missing, "open the tags of")?;
        size_tags(&*tags, grown, layer, path)?;
        say_nothing_is_there(&*tags, grown, layer, from.block_aligned_bytes(), path, protection)?;
        sync(&*tags, "sync the tags of")?;
    }
    if layer.parent.is_some() {
        let missing = DatastoreError::MissingDiscards { path: path.clone(), layer: id };
        let discards = open(&discards_name(id), missing, "open the record of discards of")?;
        size_discards(&*discards, grown.layer_size(layer), path)?;
        sync(&*discards, "sync the record of discards of")?;
    }
    Ok(())
}

/// Gives a layer's file the length that its volume needs, and allocates the space if it is thick.
/// `from_bytes` is its present length.
fn size_layer(
    file: &dyn StoredFile,
    from_bytes: u64,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    path: &Path,
) -> Result<(), DatastoreError> {
    let bytes = descriptor.layer_size(layer).block_aligned_bytes();
    let sized = match descriptor.provisioning {
        Provisioning::Thin => file.set_length(bytes),
        // Growth within the last block needs no more space, and allocating zero bytes is an error.
        Provisioning::Thick if bytes == from_bytes => Ok(()),
        Provisioning::Thick => file.allocate(from_bytes, bytes - from_bytes),
    };
    sized.map_err(no_room_or("give its size to a layer of", bytes - from_bytes, path))
}

/// Gives the file of a layer's tags the length that it needs, and allocates the space if the layer
/// is thick.
pub(super) fn size_tags(
    tags: &dyn StoredFile,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    path: &Path,
) -> Result<(), DatastoreError> {
    let layout = tags::Layout::of(Descriptor::absence_of(layer));
    let layer_bytes = descriptor.layer_size(layer).block_aligned_bytes();
    let bytes = layout.file_bytes(layer_bytes);
    let sized = match descriptor.provisioning {
        Provisioning::Thin => tags.set_length(bytes),
        // Space that is already allocated keeps its content.
        Provisioning::Thick => {
            let mut used = layout.used(layer_bytes).into_iter();
            used.try_for_each(|used| tags.allocate(used.start, used.end - used.start))
        }
    };
    sized.map_err(no_room_or("give their size to the tags of", bytes, path))
}

/// Marks the new part of a layer as "nothing here" in its tags file. The layer's former size is
/// given in bytes.
fn say_nothing_is_there(
    tags: &dyn StoredFile,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    from_bytes: u64,
    path: &Path,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    if Descriptor::absence_of(layer).is_none() {
        return Ok(());
    }
    let deks = deks_of(path, descriptor, layer, &protection.keks())?;
    let Some(keys) = tag_keys(&deks, layer, path)? else { return Ok(()) };
    let new = from_bytes..descriptor.layer_size(layer).block_aligned_bytes();
    let binding = Binding { volume: descriptor.maker_of(layer), layer: layer.id };
    let said = tags::say_nothing_is_there(tags, &binding, &keys, new);
    said.map_err(|error| no_room_for_tags(error, layer, path))
}

/// The keys of a layer's tags.
pub(super) fn tag_keys(
    deks: &Deks,
    layer: &LayerRecord,
    path: &Path,
) -> Result<Option<tags::TagKeys>, DatastoreError> {
    let key_error = |error: CryptoError| DatastoreError::Key { path: path.to_owned(), error: error.into() };
    let Some(integrity) = layer.integrity else { return Ok(None) };
    let keys = tags::TagKeys::derive(deks).map_err(key_error)?;
    Ok(keys.map(|keys| keys.by(integrity.algorithm())))
}

/// The error for tags that could not be written.
pub(super) fn no_room_for_tags(error: IoError, layer: &LayerRecord, path: &Path) -> DatastoreError {
    match error {
        IoError::NoSpace => {
            DatastoreError::Full { path: path.to_owned(), needed: "room for its tags".to_owned() }
        }
        error => DatastoreError::UnwrittenTags { path: path.to_owned(), layer: layer.id, error },
    }
}

/// Gives the record of a layer's discards its length and allocates all of its space, even if the
/// layer is thin: a discard must not fail for lack of room. Existing content is kept.
fn size_discards(discards: &dyn StoredFile, size: VolumeSize, path: &Path) -> Result<(), DatastoreError> {
    let bytes = discards::file_bytes(size.block_aligned_bytes());
    discards.allocate(0, bytes).map_err(no_room_or("give its size to the record of discards of", bytes, path))
}

fn no_room_or(action: &'static str, needed_bytes: u64, path: &Path) -> impl Fn(Errno) -> DatastoreError {
    move |errno| match errno {
        Errno::FBIG => DatastoreError::FileTooLarge { path: path.to_owned() },
        Errno::NOSPC | Errno::DQUOT => {
            DatastoreError::Full { path: path.to_owned(), needed: display_bytes(needed_bytes) }
        }
        errno => system(action, path)(errno),
    }
}
