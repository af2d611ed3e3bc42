//! Renews tags of the former format when a volume is opened for writing.
//!
//! The order is the same as when a layer is added: the new files and their names are durable -> the
//! descriptor says so -> the former files go. A power cut leaves the volume with the former tags or
//! the new ones, and at most files that no descriptor names. If there is no room for the new ones,
//! or the volume is between two keys, it is used with the former tags.

use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::descriptor::{Descriptor, Integrity, LayerRecord};
use super::directory::{VolumeDirectory, system, tags_name};
use super::error::DatastoreError;
use super::open::Protection;
use super::open_files::deks_of;
use super::tagging::Binding;
use super::{layer_files, tags};

/// Gives the volume new tags, if it has former ones. Returns whether it did. The caller has
/// exclusive access, and knows that the descriptor is durable.
pub(super) fn renew_tags(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    protection: Protection<'_>,
) -> Result<bool, DatastoreError> {
    let path = &directory.path;
    let is_former = |layer: &&LayerRecord| layer.integrity == Some(Integrity::HmacSha256);
    let former: Vec<&LayerRecord> = descriptor.layers.iter().filter(is_former).collect();
    if former.is_empty() {
        return Ok(false);
    }
    let mut renewed = descriptor.clone();
    renewed.generation += 1;
    for layer in &mut renewed.layers {
        layer.integrity = layer.integrity.map(Integrity::renewed);
    }
    let made = match renewed.encode(path, &protection.keks()) {
        Ok(encoded) => put_in_place(directory, descriptor, &renewed, &former, protection, &encoded),
        Err(error) => Err(error),
    };
    match made {
        Ok(()) => {
            for layer in former {
                // No descriptor names it any more: if it stays, it is a leftover.
                let _ = directory.handle.remove(&tags_name(layer.id, Integrity::HmacSha256));
            }
            tracing::info!(volume = %descriptor.volume, "the volume's tags vouch for what is not there from now on");
            Ok(true)
        }
        Err(error @ (DatastoreError::Full { .. } | DatastoreError::BetweenKeys { .. })) => {
            remove_new(directory, &former);
            tracing::warn!(
                volume = %descriptor.volume,
                %error,
                "the volume keeps tags of the former format, which do not notice a block that is erased together with its tag"
            );
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn put_in_place(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    renewed: &Descriptor,
    former: &[&LayerRecord],
    protection: Protection<'_>,
    encoded: &[u8],
) -> Result<(), DatastoreError> {
    // The leftovers of an interrupted attempt.
    remove_new(directory, former);
    for layer in former {
        renew_layer(directory, descriptor, renewed, layer, protection)?;
    }
    directory.sync()?;
    directory.write_descriptor(encoded)
}

fn renew_layer(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    renewed: &Descriptor,
    layer: &LayerRecord,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    let path: &Path = &directory.path;
    let from =
        directory.file(&tags_name(layer.id, Integrity::HmacSha256), OFlags::RDONLY).map_err(|errno| {
            match errno {
                Errno::NOENT => DatastoreError::MissingTags { path: path.to_owned(), layer: layer.id },
                errno => system("open the tags of", path)(errno),
            }
        })?;
    let name = tags_name(layer.id, Integrity::HmacSha256Absence);
    let to = directory.file(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL);
    let to = to.map_err(system("create the tags of", path))?;
    let Some(record) = renewed.layer(layer.id) else { return Ok(()) };
    layer_files::size_tags(&*to, renewed, record, path)?;
    let Some(epoch) = Descriptor::absence_of(record) else { return Ok(()) };
    let deks = deks_of(path, descriptor, layer, &protection.keks())?;
    let Some(keys) = layer_files::tag_keys(&deks, record, path)? else { return Ok(()) };
    let layer_bytes = descriptor.layer_size(layer).block_aligned_bytes();
    let binding = Binding { volume: descriptor.maker_of(layer), layer: layer.id };
    tags::renew(&*from, &*to, &binding, &keys, epoch, layer_bytes)
        .map_err(|error| layer_files::no_room_for_tags(error, layer, path))?;
    to.sync().map_err(system("sync the tags of", path))
}

fn remove_new(directory: &VolumeDirectory, former: &[&LayerRecord]) {
    for layer in former {
        let _ = directory.handle.remove(&tags_name(layer.id, Integrity::HmacSha256Absence));
    }
}
