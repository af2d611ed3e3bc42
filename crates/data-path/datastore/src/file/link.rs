//! Makes a linked clone: a volume that begins with the content of a snapshot of another one, of
//! which nothing is copied.
//!
//! The clone's directory gets hard links to the files of the snapshot's layers, and a new, empty
//! top. Its descriptor names those layers with the volume that made them, to which their tags are
//! bound, and has their DEKs in envelopes of its own, under its own KEK. So it needs neither the
//! origin nor the origin's key from then on.
//!
//! ```text
//! the snapshot's layers are locked, not to be merged -> a hidden directory has links to their files
//!     -> the new top -> the descriptor -> all of these names are durable -> the directory gets its name
//! ```
//!
//! A power cut leaves a complete clone, or a hidden directory. Whichever it is, the links keep the
//! layers as they are ([`super::shared`]).

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use strongroom_keys::Envelope;
use strongroom_types::{SnapshotId, VolumeId, unix_seconds_now};

use super::add_layer::{AddLayerOptions, OldTop, Placement, with_a_layer};
use super::create::{Building, check_place};
use super::descriptor::{Descriptor, EncryptionRecord, Integrity, KekRecord, LayerRecord};
use super::directory::{VolumeDirectory, system};
use super::disk::OpenLayer;
use super::error::DatastoreError;
use super::open::{OpenOptions, Protection, lock_snapshot};
use super::open_files::{context_of, deks_of};
use super::storage::{BY_PATH, Storage, StoredFile};
use super::{layer_files, log};

/// The snapshot that a clone begins with.
#[derive(Clone, Copy, Debug)]
pub struct CloneOrigin<'a> {
    /// The volume's path.
    pub path: &'a Path,
    /// The volume, if it must be a certain one.
    pub volume: Option<VolumeId>,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// How the volume is opened; it is only read.
    pub options: OpenOptions<'a>,
}

/// Makes a volume at `path` that begins with the content of a snapshot. Its DEKs are sealed under
/// the KEK of `protection`. The origin may be in use.
///
/// # Errors
/// [`DatastoreError::NotLinkable`] if the two do not lie on one file system, or one of them is
/// encrypted and the other is not; [`DatastoreError::LongChain`]; and those of
/// [`open_snapshot`](super::open_snapshot) and [`create`](super::create).
pub fn link_snapshot(
    origin: &CloneOrigin<'_>,
    path: &Path,
    protection: Protection<'_>,
) -> Result<Descriptor, DatastoreError> {
    link_snapshot_on(BY_PATH, origin, path, protection, None)
}

/// As [`link_snapshot`], on another file system, and with a first-write log of this size.
pub fn link_snapshot_on(
    storage: &dyn Storage,
    origin: &CloneOrigin<'_>,
    path: &Path,
    protection: Protection<'_>,
    log_bytes: Option<u64>,
) -> Result<Descriptor, DatastoreError> {
    check_place(storage, path)?;
    let not_linkable = |reason| DatastoreError::NotLinkable {
        path: path.to_owned(),
        origin: origin.path.to_owned(),
        reason,
    };
    if protection.kek().is_some() != origin.options.protection.kek().is_some() {
        return Err(not_linkable("what they share is encrypted for both, or for neither"));
    }
    // Locked until the clone is there.
    let (head, top, _) = lock_snapshot(storage, origin.path, origin.snapshot, &origin.options)?;
    head.descriptor.expect_volume(origin.path, origin.volume)?;
    if head.descriptor.chain().any(|layer| layer.integrity == Some(Integrity::HmacSha256)) {
        return Err(not_linkable("its tags have the former format, which the next start of its VM renews"));
    }
    let content = content_of(origin, &head.descriptor, path, protection)?;
    let put_on = Placement { on: content.top, snapshots: Vec::new() };
    let (lock_wait, least_generation) = (origin.options.lock_wait, 0);
    let options = AddLayerOptions { protection, log_bytes, lock_wait, least_generation };
    let file_system = head.directory.file_system()?;
    let (clone, _) = with_a_layer(path, &content, put_on, OldTop::Closed, &file_system, &options)?;
    let encoded = clone.encode(path, &protection.keks())?;

    let building = Building::start(storage, path, clone.volume)?;
    let locked = std::iter::once(&top).chain(&top.lower);
    for (layer, locked) in clone.chain().skip(1).zip(locked) {
        link_layer(&head.directory, &building.directory, layer, locked).map_err(|errno| match errno {
            Errno::XDEV => not_linkable("they are not on the same file system"),
            Errno::MLINK => not_linkable("its files have as many names as the file system can count"),
            errno => system("link to a layer of", origin.path)(errno),
        })?;
    }
    if let Some(top) = clone.layer(clone.top) {
        layer_files::make(&building.directory, &clone, top, log::FileState::Closed, path, protection)?;
    }
    building.directory.write_descriptor(&encoded)?;
    building.finish(path)?;
    Ok(clone)
}

/// Gives the files of a layer their names in the clone's directory.
fn link_layer(
    from: &VolumeDirectory,
    into: &VolumeDirectory,
    layer: &LayerRecord,
    locked: &OpenLayer,
) -> Result<(), Errno> {
    let OpenLayer { file, tags, discards, .. } = locked;
    let files: Vec<&Arc<dyn StoredFile>> = std::iter::once(file).chain(tags).chain(discards).collect();
    let mut named = layer_files::names(layer).zip(files);
    named.try_for_each(|(name, file)| into.handle.link(&*from.handle, &name, &**file))
}

/// The descriptor of a new volume with the layers of the origin's snapshot, whose DEKs are sealed
/// under the KEK of `protection`.
fn content_of(
    from: &CloneOrigin<'_>,
    origin: &Descriptor,
    path: &Path,
    protection: Protection<'_>,
) -> Result<Descriptor, DatastoreError> {
    let encryption = origin.encryption.as_ref().zip(protection.kek()).map(|(encryption, kek)| {
        let kek = KekRecord { id: kek.id(), source: kek.source().clone() };
        EncryptionRecord { kek, next_kek: None, next_epoch: encryption.next_epoch }
    });
    let of_origin = |layer: &LayerRecord| LayerRecord {
        size_bytes: (layer.id != origin.top).then(|| origin.layer_size(layer)),
        volume: Some(origin.maker_of(layer)),
        ..layer.clone()
    };
    let mut layers: Vec<LayerRecord> = origin.chain().map(of_origin).collect();
    layers.reverse();
    let mut content = Descriptor {
        volume: VolumeId::random(),
        generation: 0,
        created_unix_seconds: unix_seconds_now(),
        encryption,
        layers: Vec::new(),
        snapshots: Vec::new(),
        merging: None,
        reencrypting: None,
        group: None,
        ..origin.clone()
    };
    if let Some(ours) = protection.kek() {
        let theirs = from.options.protection.keks();
        for layer in &mut layers {
            let Some(sealed) = origin.layer(layer.id) else { continue };
            let deks = deks_of(from.path, origin, sealed, &theirs)?;
            let mut records = std::mem::take(&mut layer.epochs);
            for (record, (_, dek)) in records.iter_mut().zip(&deks) {
                let context = context_of(&content, layer, record);
                let envelope = Envelope::seal(&context, dek, ours);
                let key_error = |error| DatastoreError::Key { path: path.to_owned(), error };
                record.envelopes = vec![envelope.map_err(key_error)?];
            }
            layer.epochs = records;
        }
    }
    content.layers = layers;
    Ok(content)
}
