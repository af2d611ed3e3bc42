//! Opens and locks the files of a volume: those of its top layer, and those of the layers below,
//! which are only read.
//!
//! A writer locks the top exclusively. Any number of processes can read the layers below, because
//! these no longer change.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_keys::{Cipher, EnvelopeContext, Kek, Purpose};
use strongroom_types::LayerId;

use super::descriptor::{
    CHAIN_LAYERS_MAX, Descriptor, EncodedDescriptor, EpochRecord, LayerRecord, LogRecord,
};
use super::directory::{VolumeDirectory, discards_name, layer_name, log_name, system, tags_name};
use super::discards::{self, DiscardsFacts};
use super::disk::{LayerFacts, LogFacts, OpenLayer};
use super::error::DatastoreError;
use super::filesystem::{FileSystem, FileSystemKind};
use super::lock::{self, Sharing};
use super::log;
use super::open::{Access, Deks, OpenOptions, Protection};
use super::shared::refuse_shared;
use super::storage::StoredFile;
use super::tags::{self, TagsFacts};

/// Opens and locks the volume's layers, and returns the top, which contains those below. The caller
/// holds the directory's lock.
pub(super) fn open_layer_of(
    directory: &VolumeDirectory,
    options: &OpenOptions<'_>,
) -> Result<(Descriptor, OpenLayer, Deks), DatastoreError> {
    let path = &directory.path;
    let file_system = directory.file_system()?;
    let (encoded, file) = lock_top(directory, file_system.kind, options)?;
    let descriptor = authenticate(path, encoded, options)?;
    let chain = chain_of(path, &descriptor)?;
    if options.access == Access::ReadWrite {
        // A process may have been killed after it replaced the descriptor and before that was
        // durable. Writes must not be acknowledged in layers that a power cut can still undo.
        directory.sync()?;
    }
    let sharing = options.access.sharing();
    let opening =
        Opening { directory, file_system, descriptor: &descriptor, options, sharing: Some(sharing) };
    let mut top = opening.complete(chain[0], file.into())?;
    let below = OpenOptions { access: Access::ReadOnly, ..*options };
    let below = Opening { options: &below, sharing: Some(below.access.sharing()), ..opening };
    for layer in &chain[1..] {
        // The exclusive lock of a layer that is merged into waits for the last writes of a killed
        // process that merged. A layer that others have too is only read.
        let takes_merge = descriptor.takes_merge(layer.id) && !directory.shares(layer);
        let opening = if layer.closing || takes_merge { &opening } else { &below };
        let mut lower = opening.open(layer)?;
        if !layer.closing {
            lower.vouch_for_tags();
        }
        if layer.closing || takes_merge {
            // Shared from now on: the owner of the volume opens it beside the process that does the
            // I/O, and once it is complete others read its snapshot.
            lower.share_locks_within(options.lock_wait, path)?;
        }
        top.lower.push(lower);
    }
    let deks = open_chain_envelopes(path, &descriptor, options.protection)?;
    Ok((descriptor, top, deks))
}

/// Opens the layers of a volume to read, none of which takes writes any more. Each is locked
/// against a merge.
pub(super) fn open_settled_layers(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    options: &OpenOptions<'_>,
) -> Result<(OpenLayer, Deks), DatastoreError> {
    let path = &directory.path;
    let chain = chain_of(path, descriptor)?;
    if let Some(closing) = chain.iter().find(|layer| layer.closing) {
        return Err(DatastoreError::NotClosed { path: path.clone(), layer: closing.id });
    }
    if descriptor.merging.is_some_and(|merging| chain.iter().any(|layer| layer.id == merging.into)) {
        return Err(DatastoreError::Merging { path: path.clone() });
    }
    let (file_system, sharing) = (directory.file_system()?, Some(options.access.sharing()));
    let opening = Opening { directory, file_system, descriptor, options, sharing };
    let open = |layer: &LayerRecord| {
        let mut opened = opening.open(layer)?;
        opened.vouch_for_tags();
        Ok::<_, DatastoreError>(opened)
    };
    let mut top = open(chain[0])?;
    top.lower = chain[1..].iter().map(|layer| open(layer)).collect::<Result<_, _>>()?;
    let deks = open_chain_envelopes(path, descriptor, options.protection)?;
    Ok((top, deks))
}

/// The layers of a volume's present content, the top first. Fails if there are too many.
pub(super) fn chain_of<'a>(
    path: &Path,
    descriptor: &'a Descriptor,
) -> Result<Vec<&'a LayerRecord>, DatastoreError> {
    let chain: Vec<_> = descriptor.chain().collect();
    let (count, most) = (chain.len(), CHAIN_LAYERS_MAX);
    if count > most {
        return Err(DatastoreError::LongChain { path: path.to_owned(), count, most });
    }
    Ok(chain)
}

/// Opens and locks the top layer's file. The descriptor names the file, but it may change until the
/// lock is held, so it is read again until both agree.
fn lock_top(
    directory: &VolumeDirectory,
    kind: FileSystemKind,
    options: &OpenOptions<'_>,
) -> Result<(EncodedDescriptor, Box<dyn StoredFile>), DatastoreError> {
    let path = &directory.path;
    let mut encoded = directory.read_descriptor()?;
    loop {
        refuse_the_other_sort(path, encoded.unverified(), options.protection)?;
        let top = encoded.unverified().top;
        let file =
            open_file(directory, &layer_name(top), kind, options.access).map_err(|errno| match errno {
                Errno::NOENT => DatastoreError::MissingLayer { path: path.clone(), layer: top },
                Errno::ROFS | Errno::ACCESS | Errno::PERM => {
                    DatastoreError::ReadOnly { path: path.clone(), errno }
                }
                errno => system("open a layer of", path)(errno),
            })?;
        lock::acquire(&*file, options.access.sharing(), options.lock_wait, path)?;
        let reread = directory.read_descriptor()?;
        if reread.bytes() == encoded.bytes() {
            return Ok((reread, file));
        }
        encoded = reread;
    }
}

/// The parameters that are the same for all files that are being opened.
pub(super) struct Opening<'a> {
    pub(super) directory: &'a VolumeDirectory,
    pub(super) file_system: FileSystem,
    pub(super) descriptor: &'a Descriptor,
    pub(super) options: &'a OpenOptions<'a>,
    /// `None` opens without a lock, to read where the files have content ([`maps`](super::maps)).
    pub(super) sharing: Option<Sharing>,
}

impl Opening<'_> {
    /// Opens and locks all files of a layer.
    pub(super) fn open(&self, layer: &LayerRecord) -> Result<OpenLayer, DatastoreError> {
        let (id, path) = (layer.id, self.directory.path.clone());
        let missing = DatastoreError::MissingLayer { path, layer: id };
        let file = self.lock(id, &layer_name(id), missing, "open a layer of")?;
        self.complete(layer, file)
    }

    /// Opens and locks the other files of a layer whose own file is locked: a killed predecessor's
    /// last writes to each of them land as late as those to the layer.
    fn complete(&self, layer: &LayerRecord, file: Arc<dyn StoredFile>) -> Result<OpenLayer, DatastoreError> {
        let Self { directory, file_system, descriptor, options, .. } = self;
        let (path, id) = (&directory.path, layer.id);
        let size_bytes = descriptor.layer_size(layer);
        check_length(path, layer, &*file, size_bytes.block_aligned_bytes())?;
        let mut locked = OpenLayer {
            file,
            log: None,
            log_index: None,
            tags: None,
            discards: None,
            facts: LayerFacts {
                size_bytes,
                provisioning: descriptor.provisioning,
                read_only: options.access == Access::ReadOnly,
                is_merged_into: descriptor.is_merged_into(id),
                write_epoch: layer.write_epoch(),
                syncs_in_turn: file_system.syncs_in_turn,
                log: None,
                tags: None,
                discards: None,
            },
            lower: Vec::new(),
        };
        if let Some(record @ LogRecord { bytes }) = layer.log {
            let missing = DatastoreError::MissingLog { path: path.clone(), layer: id };
            let log = self.lock(id, &log_name(id), missing, "open the log of")?;
            log::check_identity(path, id, &*log, record)?;
            locked.log = Some(log);
            let fill_bytes_min = file_system.fill_bytes_min;
            locked.facts.log = Some(LogFacts { bytes, fill_bytes_min, handed_over: false, indexed: false });
        }
        if let Some(integrity) = layer.integrity {
            let available = integrity.algorithm().check_available();
            available.map_err(|error| DatastoreError::Key { path: path.clone(), error: error.into() })?;
            let missing = DatastoreError::MissingTags { path: path.clone(), layer: id };
            let tags = self.lock(id, &tags_name(id, integrity), missing, "open the tags of")?;
            check_tags_length(path, layer, &*tags, descriptor)?;
            locked.tags = Some(tags);
            locked.facts.tags = Some(TagsFacts {
                volume: descriptor.maker_of(layer),
                layer: id,
                integrity,
                absence: Descriptor::absence_of(layer),
                handed_over: false,
                syncs_in_turn: file_system.syncs_in_turn,
            });
        }
        if layer.parent.is_some() {
            let missing = DatastoreError::MissingDiscards { path: path.clone(), layer: id };
            let discards = self.lock(id, &discards_name(id), missing, "open the record of discards of")?;
            check_discards_length(path, layer, &*discards, descriptor)?;
            locked.discards = Some(discards);
            locked.facts.discards = Some(DiscardsFacts {
                volume: descriptor.maker_of(layer),
                layer: id,
                // The record of a layer below was made durable when another layer was put on it.
                is_durable: options.access == Access::ReadOnly,
            });
        }
        Ok(locked)
    }

    /// Opens one of a layer's files and locks it. One that can be written, of a layer below the
    /// top, must have no other name.
    fn lock(
        &self,
        layer: LayerId,
        name: &str,
        missing: DatastoreError,
        action: &'static str,
    ) -> Result<Arc<dyn StoredFile>, DatastoreError> {
        let Self { directory, file_system, options, sharing, .. } = self;
        let opened = open_file(directory, name, file_system.kind, options.access);
        let file = opened.map_err(|errno| match errno {
            Errno::NOENT => missing,
            errno => system(action, &directory.path)(errno),
        })?;
        if let Some(sharing) = sharing {
            lock::acquire(&*file, *sharing, options.lock_wait, &directory.path)?;
        }
        if options.access == Access::ReadWrite && layer != self.descriptor.top {
            refuse_shared(&*file, &directory.path, layer)?;
        }
        Ok(file.into())
    }
}

/// Refuses a tags file that is too short.
pub(super) fn check_tags_length(
    path: &Path,
    layer: &LayerRecord,
    tags: &dyn StoredFile,
    descriptor: &Descriptor,
) -> Result<(), DatastoreError> {
    let layout = tags::Layout::of(Descriptor::absence_of(layer));
    let wanted_bytes = layout.file_bytes(descriptor.layer_size(layer).block_aligned_bytes());
    let found_bytes = tags.length().map_err(system("examine the tags of", path))?;
    if found_bytes < wanted_bytes {
        let (path, layer) = (path.to_owned(), layer.id);
        return Err(DatastoreError::TruncatedTags { path, layer, found_bytes, wanted_bytes });
    }
    Ok(())
}

/// Refuses a record of discards that is too short.
pub(super) fn check_discards_length(
    path: &Path,
    layer: &LayerRecord,
    discards: &dyn StoredFile,
    descriptor: &Descriptor,
) -> Result<(), DatastoreError> {
    let wanted_bytes = discards::file_bytes(descriptor.layer_size(layer).block_aligned_bytes());
    let found_bytes = discards.length().map_err(system("examine the record of discards of", path))?;
    if found_bytes < wanted_bytes {
        let (path, layer) = (path.to_owned(), layer.id);
        return Err(DatastoreError::TruncatedDiscards { path, layer, found_bytes, wanted_bytes });
    }
    Ok(())
}

fn open_file(
    directory: &VolumeDirectory,
    name: &str,
    kind: FileSystemKind,
    access: Access,
) -> Result<Box<dyn StoredFile>, Errno> {
    let access = match access {
        Access::ReadWrite => OFlags::RDWR,
        Access::ReadOnly => OFlags::RDONLY,
    };
    match directory.file(name, access | OFlags::DIRECT) {
        // tmpfs supports O_DIRECT since Linux 6.6. It has no device below, so nothing is lost
        // without it.
        Err(Errno::INVAL) if kind == FileSystemKind::Tmpfs => directory.file(name, access),
        opened => opened,
    }
}

pub(super) fn refuse_the_other_sort(
    path: &Path,
    descriptor: &Descriptor,
    protection: Protection<'_>,
) -> Result<(), DatastoreError> {
    match (descriptor.key_source(), protection.keks().first()) {
        (Some(source), None) => {
            Err(DatastoreError::Encrypted { path: path.to_owned(), source_name: source.name() })
        }
        (None, Some(_)) => Err(DatastoreError::NotEncrypted { path: path.to_owned() }),
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

/// Returns the descriptor, if the key at hand authenticates it and it is not too old.
pub(super) fn authenticate(
    path: &Path,
    encoded: EncodedDescriptor,
    options: &OpenOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let keks = options.protection.keks();
    let descriptor = match options.protection {
        Protection::Encrypted(kek) | Protection::Encrypting(kek) | Protection::Decrypting(kek) => {
            encoded.verify(path, kek)?
        }
        Protection::Between { .. } => encoded.verify_under_all(path, &keks)?,
        Protection::Unencrypted => encoded.unverified().clone(),
    };
    if !descriptor.opens_as(options.protection) {
        return Err(DatastoreError::Reencrypting { path: path.to_owned() });
    }
    descriptor.expect_generation(path, options.least_generation)?;
    Ok(descriptor)
}

/// Refuses a layer that is not a regular file, or is too short. A longer one remains from a growth
/// that a power cut interrupted before the descriptor was written.
pub(super) fn check_length(
    path: &Path,
    layer: &LayerRecord,
    file: &dyn StoredFile,
    wanted_bytes: u64,
) -> Result<(), DatastoreError> {
    let found_bytes = file.length().map_err(|errno| match errno {
        Errno::NOTSUP => DatastoreError::MissingLayer { path: path.to_owned(), layer: layer.id },
        errno => system("examine a layer of", path)(errno),
    })?;
    if found_bytes < wanted_bytes {
        return Err(DatastoreError::Truncated {
            path: path.to_owned(),
            layer: layer.id,
            found_bytes,
            wanted_bytes,
        });
    }
    Ok(())
}

/// The keys of all layers of the chain, oldest first; none for a clear volume.
pub(super) fn open_chain_envelopes(
    path: &Path,
    descriptor: &Descriptor,
    protection: Protection<'_>,
) -> Result<Deks, DatastoreError> {
    let (chain, keks): (Vec<_>, _) = (descriptor.chain().collect(), protection.keks());
    let mut deks = Vec::new();
    for layer in chain.into_iter().rev() {
        deks.extend(deks_of(path, descriptor, layer, &keks)?);
    }
    Ok(deks)
}

/// The keys of one layer, oldest first, by the KEK at hand that they are wrapped under; none
/// without a KEK.
pub(super) fn deks_of(
    path: &Path,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    keks: &[&Kek],
) -> Result<Deks, DatastoreError> {
    match keks.iter().find(|kek| layer.opens_under(kek)).or(keks.first()) {
        Some(kek) => open_envelopes(path, descriptor, layer, kek),
        None => Ok(Deks::new()),
    }
}

/// The context that an envelope of this DEK is bound to.
pub(super) fn context_of(
    descriptor: &Descriptor,
    layer: &LayerRecord,
    record: &EpochRecord,
) -> EnvelopeContext {
    EnvelopeContext {
        purpose: Purpose::LayerData,
        volume: descriptor.volume,
        layer: layer.id,
        epoch: record.epoch,
        cipher: record.cipher,
    }
}

/// The keys of one layer, oldest first, by this KEK.
pub(super) fn open_envelopes(
    path: &Path,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    kek: &Kek,
) -> Result<Deks, DatastoreError> {
    let mut deks = Vec::new();
    for record in &layer.epochs {
        let Cipher::Aes256Xts4096 = record.cipher;
        let context = context_of(descriptor, layer, record);
        let envelope =
            record.envelopes.iter().find(|envelope| envelope.kek() == kek.id()).ok_or_else(|| {
                DatastoreError::Damaged {
                    path: path.to_owned(),
                    reason: format!("key epoch {} has no envelope for KEK {}", record.epoch, kek.id()),
                }
            })?;
        let dek = envelope.open(&context, kek);
        deks.push((record.epoch, dek.map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?));
    }
    Ok(deks)
}
