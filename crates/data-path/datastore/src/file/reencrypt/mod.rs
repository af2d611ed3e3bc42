//! Gives a volume other data keys, or none, or its first ones: every layer is rewritten.
//!
//! A layer is rewritten into a new one beside it, with a DEK of its own; then one replacement of
//! the descriptor puts the new layer in the place of the old one, and the old one's files go. The
//! content of a layer does not depend on the layers below it, so the order is free; it is from the
//! newest to the oldest, because the epochs of a descriptor's layers ascend.
//!
//! ```text
//! the descriptor has the mark -> for each layer, the newest first:
//!     its new files are complete and durable, and their names -> the descriptor has the new layer
//!         -> the old one's files go
//! -> no file of an old layer is left, durably -> the descriptor without the mark
//! ```
//!
//! The descriptor alone says how far that is: what an interrupted job left is continued by the
//! next one, with the layer that it was at. Each DEK is wrapped under one KEK only: a job that
//! brings in a new KEK never wraps a new DEK under the old one, nor an old DEK under the new one.
//! So the old KEK, once destroyed, leaves nothing that opens an old DEK, and nothing that it opens
//! shows a new one. Meanwhile the descriptor has a tag under each.
//!
//! Moving the blocks needs ciphers, and is done elsewhere; this module does what comes before and
//! after. `docs/decisions/0029-reencryption.md` has the reasons.

mod beside;
mod job;
mod rewriter;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_keys::{Envelope, Kek};
use strongroom_types::{KeyEpoch, LayerId, display_bytes};

use super::add_layer::remove_layers;
use super::descriptor::{Descriptor, EncryptionRecord, EpochRecord, Integrity, LayerRecord};
use super::directory::{VolumeDirectory, layer_name};
use super::disk::LayerBlocks;
use super::error::DatastoreError;
use super::layer_files;
use super::open::{Access, Deks, OpenOptions, Protection};
use super::open_files::{context_of, deks_of};
use super::rewrap::{keep_envelopes, record_of};
use super::storage::BY_PATH;

pub use self::beside::{open_rewrite_beside, open_rewrite_beside_on};
pub use self::job::{
    Reencryption, authenticated_between_keks, begin_reencryption, begin_reencryption_on, cancel_reencryption,
    cancel_reencryption_on,
};

/// Room for what a rewritten layer has beyond its content: the marks of tags, the directory.
const SLACK_BYTES: u64 = 1 << 20;

/// The bytes of a layer for each byte of its tags.
const BYTES_PER_TAG_BYTE: u64 = 256;

/// The re-encryption of a volume that is under way: which layers are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reencrypting {
    /// Layers get new DEKs.
    Encrypted {
        /// Layers whose epochs are not below this one are done. As many epochs from here on as the
        /// volume had layers are reserved.
        first_epoch: KeyEpoch,
        /// How the blocks of the new layers are tagged.
        integrity: Option<Integrity>,
    },
    /// Layers lose their encryption; clear ones are done.
    Clear {},
}

impl Descriptor {
    /// Whether the re-encryption that is under way has nothing left to do for this layer.
    pub fn is_reencrypted(&self, layer: &LayerRecord) -> bool {
        match self.reencrypting {
            None => true,
            Some(Reencrypting::Clear {}) => layer.is_clear(),
            Some(Reencrypting::Encrypted { first_epoch, .. }) => {
                layer.epochs.first().is_some_and(|record| record.epoch >= first_epoch)
            }
        }
    }

    /// The layers that are still to be rewritten, in that order.
    fn to_reencrypt(&self) -> impl Iterator<Item = &LayerRecord> {
        self.layers.iter().rev().filter(|layer| !self.is_reencrypted(layer))
    }

    /// Whether the volume can be used under this protection: always, unless its re-encryption is
    /// not finished. Then its KEKs must open all layers, of which some may be clear only if a
    /// person has them encrypted or decrypted, and the top only if they are decrypted.
    pub(super) fn opens_as(&self, protection: Protection<'_>) -> bool {
        let Some(reencrypting) = self.reencrypting else { return true };
        let keks = protection.keks();
        let is_open = |layer: &LayerRecord| keks.iter().any(|kek| layer.opens_under(kek));
        let are_open = self.layers.iter().all(is_open);
        let is_sealed = |layer: &LayerRecord| !layer.is_clear();
        match (protection, reencrypting) {
            (Protection::Decrypting(_), Reencrypting::Clear {}) => are_open,
            (Protection::Encrypting(_), Reencrypting::Encrypted { .. }) => {
                are_open && self.layer(self.top).is_some_and(is_sealed)
            }
            (Protection::Encrypting(_), Reencrypting::Clear {})
            | (Protection::Decrypting(_), Reencrypting::Encrypted { .. })
            | (
                Protection::Encrypted(_) | Protection::Between { .. } | Protection::Unencrypted,
                Reencrypting::Encrypted { .. } | Reencrypting::Clear {},
            ) => are_open && self.layers.iter().all(is_sealed),
        }
    }

    /// Whether the top is what it will be when the re-encryption that is under way has ended.
    fn has_top_done(&self) -> bool {
        self.layer(self.top).is_some_and(|top| self.is_reencrypted(top))
    }
}

impl LayerRecord {
    /// Whether this KEK opens all of its DEKs.
    pub(super) fn opens_under(&self, kek: &Kek) -> bool {
        let is_under = |record: &EpochRecord| record.envelopes.iter().any(|found| found.kek() == kek.id());
        self.epochs.iter().all(is_under)
    }
}

/// How rewritten layers are tagged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewTags {
    /// As before: a clear volume that is encrypted gets no tags.
    #[default]
    Kept,
    /// By this algorithm.
    By(Integrity),
    /// Not at all.
    None,
}

/// Options of [`begin_reencryption`].
#[derive(Clone, Copy, Debug)]
pub struct ReencryptOptions<'a> {
    /// What the volume is under now.
    pub from: Protection<'a>,
    /// What it will be under, freshly fetched from its source, so that nothing is sealed under a
    /// key that cannot be fetched again. The same KEK means new DEKs under it.
    pub to: Protection<'a>,
    /// How the rewritten layers are tagged.
    pub tags: NewTags,
    /// How long to wait for the process that holds the volume.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 accepts any.
    pub least_generation: u64,
}

impl<'a> ReencryptOptions<'a> {
    /// The KEKs at hand.
    fn keks(&self) -> Vec<&'a Kek> {
        let mut keks: Vec<&Kek> = self.from.kek().into_iter().collect();
        keks.extend(self.to.kek().filter(|to| keks.iter().all(|kek| kek.id() != to.id())));
        keks
    }

    /// What the volume is under meanwhile.
    pub fn meanwhile(&self) -> Protection<'a> {
        match (self.from.kek(), self.to.kek()) {
            (Some(from), Some(to)) if from.id() != to.id() => Protection::Between { from, to },
            (Some(_), Some(_)) | (None, None) => self.to,
            (None, Some(to)) => Protection::Encrypting(to),
            (Some(from), None) => Protection::Decrypting(from),
        }
    }

    /// How the volume is opened while it is under one protection.
    fn to_open(self, protection: Protection<'a>, access: Access) -> OpenOptions<'a> {
        let Self { lock_wait, least_generation, .. } = self;
        OpenOptions { protection, access, lock_wait, least_generation }
    }
}

/// What a re-encryption still has to rewrite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftToReencrypt {
    /// Layers.
    pub layers: usize,
    /// Bytes that these have allocated.
    pub bytes: u64,
}

/// What a re-encryption of the volume at `path` still has to rewrite, as its descriptor says, which
/// is not authenticated.
pub fn left_to_reencrypt(path: &Path) -> Result<LeftToReencrypt, DatastoreError> {
    let directory = VolumeDirectory::open(BY_PATH, path)?;
    let encoded = directory.read_descriptor()?;
    Ok(LeftToReencrypt::of(&directory, encoded.unverified()))
}

/// As [`left_to_reencrypt`]; of a volume whose re-encryption has not begun, everything.
pub fn whole_to_reencrypt(path: &Path) -> Result<LeftToReencrypt, DatastoreError> {
    let directory = VolumeDirectory::open(BY_PATH, path)?;
    let encoded = directory.read_descriptor()?;
    let descriptor = encoded.unverified();
    Ok(match descriptor.reencrypting {
        Some(_) => LeftToReencrypt::of(&directory, descriptor),
        None => LeftToReencrypt::in_layers(&directory, descriptor.layers.iter()),
    })
}

/// Bytes that clear layers of the volume at `path` have allocated; `None` if it has no such layer,
/// as its descriptor says, which is not authenticated.
pub fn clear_bytes(path: &Path) -> Result<Option<u64>, DatastoreError> {
    let directory = VolumeDirectory::open(BY_PATH, path)?;
    let encoded = directory.read_descriptor()?;
    let clear = encoded.unverified().layers.iter().filter(|layer| layer.is_clear());
    let LeftToReencrypt { layers, bytes } = LeftToReencrypt::in_layers(&directory, clear);
    Ok((layers > 0).then_some(bytes))
}

impl LeftToReencrypt {
    fn of(directory: &VolumeDirectory, descriptor: &Descriptor) -> Self {
        Self::in_layers(directory, descriptor.to_reencrypt())
    }

    fn in_layers<'d>(directory: &VolumeDirectory, layers: impl Iterator<Item = &'d LayerRecord>) -> Self {
        let bytes_of =
            |layer: &LayerRecord| directory.handle.allocated_bytes(&layer_name(layer.id)).unwrap_or_default();
        layers.map(bytes_of).fold(Self::default(), |Self { layers, bytes }, of_layer| Self {
            layers: layers + 1,
            bytes: bytes + of_layer,
        })
    }
}

/// A layer that is being rewritten.
pub struct OpenRewrite {
    /// The size of the layer, in bytes of whole blocks.
    pub size_bytes: u64,
    /// The old layer and the new one.
    pub layers: RewriteLayers,
    /// Their keys.
    pub keys: RewriteKeys,
    /// Goes back to [`Reencryption::replace`] once all blocks were written and flushed, and nothing
    /// uses the layers any more.
    pub rewritten: RewrittenLayer,
}

/// The layers of a rewrite.
pub struct RewriteLayers {
    /// The old layer, which is read.
    pub from: LayerBlocks,
    /// The new, empty layer, which is written to.
    pub into: LayerBlocks,
    /// The layer below, which decides where zeroes hide something.
    pub below: Option<LayerBlocks>,
}

/// The keys of the layers of a rewrite; none of a clear layer.
pub struct RewriteKeys {
    /// Those of the old layer.
    pub from: Deks,
    /// That of the new one.
    pub into: Deks,
}

/// A new layer that is not in the descriptor yet. Its files are removed if it never gets there.
pub struct RewrittenLayer {
    directory: VolumeDirectory,
    old: LayerId,
    new: LayerRecord,
    /// Whether other volumes have files of the old layer.
    is_kept: bool,
    /// Whether the descriptor on the disk names the new layer.
    is_named: bool,
}

impl RewrittenLayer {
    /// Whether other volumes have the old layer too, and keep it, under its old DEK.
    pub fn is_kept_by_others(&self) -> bool {
        self.is_kept
    }

    /// The old layer.
    pub fn old(&self) -> LayerId {
        self.old
    }

    /// The new layer, as the descriptor is to name it.
    pub fn record(&self) -> &LayerRecord {
        &self.new
    }

    /// Leaves its files in place whatever happens: another process is about to name them.
    pub fn keep(&mut self) {
        self.is_named = true;
    }

    /// Removes its files, unless the descriptor on the disk names them. No other process may be
    /// about to name them any more.
    pub fn discard(mut self) {
        let found = self.directory.read_descriptor();
        self.is_named = found.map_or(true, |found| found.unverified().layer(self.new.id).is_some());
    }
}

impl Drop for RewrittenLayer {
    fn drop(&mut self) {
        if !self.is_named {
            remove_layers(&self.directory, std::slice::from_ref(&self.new));
        }
    }
}

/// The descriptor with the mark of a job. One that has it already does not change.
fn marked(
    path: &Path,
    descriptor: &Descriptor,
    to: Protection<'_>,
    tags: NewTags,
) -> Result<Descriptor, DatastoreError> {
    let mut marked = descriptor.clone();
    match to {
        Protection::Unencrypted | Protection::Decrypting(_) => {
            if marked.encryption.as_ref().is_some_and(|encryption| encryption.next_kek.is_some()) {
                return Err(DatastoreError::Reencrypting { path: path.to_owned() });
            }
            marked.reencrypting = Some(Reencrypting::Clear {});
        }
        Protection::Encrypted(kek) | Protection::Between { to: kek, .. } | Protection::Encrypting(kek) => {
            let to = record_of(kek);
            let encryption = marked.encryption.get_or_insert_with(|| EncryptionRecord {
                kek: to.clone(),
                next_kek: None,
                next_epoch: KeyEpoch::FIRST,
            });
            let target = encryption.next_kek.as_ref().unwrap_or(&encryption.kek);
            let is_same_job = matches!(marked.reencrypting, Some(Reencrypting::Encrypted { .. }));
            if target.id == to.id && is_same_job {
                return Ok(marked);
            }
            if encryption.kek.id != to.id {
                encryption.next_kek = Some(to);
            }
            let first_epoch = encryption.next_epoch;
            let after = first_epoch.number().checked_add(marked.layers.len() as u32);
            encryption.next_epoch = after.and_then(KeyEpoch::new).ok_or_else(|| no_epoch_left(path))?;
            let integrity = match tags {
                NewTags::Kept => {
                    let newest = descriptor.layers.iter().rev().find_map(|layer| layer.integrity);
                    newest.map(Integrity::renewed)
                }
                NewTags::By(integrity) => Some(integrity.renewed()),
                NewTags::None => None,
            };
            marked.reencrypting = Some(Reencrypting::Encrypted { first_epoch, integrity });
        }
    }
    if marked.reencrypting != descriptor.reencrypting {
        marked.generation += 1;
    }
    Ok(marked)
}

/// Refuses to begin if the rewritten layers do not fit beside those that are left: one at a time,
/// and those whose old files other volumes keep.
fn refuse_without_room(directory: &VolumeDirectory, marked: &Descriptor) -> Result<(), DatastoreError> {
    let (mut kept_bytes, mut needed_bytes) = (0_u64, 0_u64);
    for layer in marked.to_reencrypt() {
        let files = layer_files::names(layer);
        let mut layer_bytes: u64 =
            files.map(|name| directory.handle.allocated_bytes(&name).unwrap_or_default()).sum();
        if layer.integrity.is_none() {
            layer_bytes += layer_bytes / BYTES_PER_TAG_BYTE;
        }
        needed_bytes = needed_bytes.max(kept_bytes + layer_bytes + SLACK_BYTES);
        if directory.shares(layer) {
            kept_bytes += layer_bytes;
        }
    }
    match directory.file_system()?.available_bytes >= needed_bytes {
        true => Ok(()),
        false => {
            Err(DatastoreError::Full { path: directory.path.clone(), needed: display_bytes(needed_bytes) })
        }
    }
}

/// The descriptor of a volume whose layers are all done.
fn finished(path: &Path, descriptor: &Descriptor, to: Protection<'_>) -> Result<Descriptor, DatastoreError> {
    if descriptor.to_reencrypt().next().is_some() {
        let reason = "not all of its layers are done".to_owned();
        return Err(DatastoreError::NotReencrypted { path: path.to_owned(), reason });
    }
    let mut done = descriptor.clone();
    match to {
        Protection::Encrypted(kek) | Protection::Between { to: kek, .. } | Protection::Encrypting(kek) => {
            settle_under(&mut done, kek);
        }
        Protection::Decrypting(_) | Protection::Unencrypted => done.encryption = None,
    }
    done.reencrypting = None;
    done.generation += 1;
    Ok(done)
}

/// The descriptor with `new` in the place of `old`.
fn replaced(descriptor: &Descriptor, old: &LayerRecord, new: &LayerRecord) -> Descriptor {
    let mut replaced = descriptor.clone();
    for layer in &mut replaced.layers {
        if layer.id == old.id {
            *layer = new.clone();
        } else if layer.parent == Some(old.id) {
            layer.parent = Some(new.id);
        }
    }
    for layer in replaced.kept_layers_mut().filter(|layer| **layer == old.id) {
        *layer = new.id;
    }
    if replaced.top == old.id {
        replaced.top = new.id;
    }
    replaced.generation += 1;
    replaced
}

/// The descriptor of an encrypted volume whose job ends early: under this KEK alone, with new DEKs
/// where it was done.
fn cancelled(
    path: &Path,
    descriptor: &Descriptor,
    kek: &Kek,
    keks: &[&Kek],
) -> Result<Descriptor, DatastoreError> {
    let mut cancelled = descriptor.clone();
    for (layer, wrapped) in descriptor.layers.iter().zip(&mut cancelled.layers) {
        if layer.opens_under(kek) {
            continue;
        }
        let deks = deks_of(path, descriptor, layer, keks)?;
        for (record, (_, dek)) in wrapped.epochs.iter_mut().zip(&deks) {
            let envelope = Envelope::seal(&context_of(descriptor, layer, record), dek, kek);
            record.envelopes.push(envelope.map_err(key_error(path))?);
        }
    }
    settle_under(&mut cancelled, kek);
    cancelled.reencrypting = None;
    cancelled.generation += 1;
    Ok(cancelled)
}

/// Leaves this KEK alone in a descriptor whose layers all have an envelope under it.
fn settle_under(descriptor: &mut Descriptor, kek: &Kek) {
    if let Some(encryption) = &mut descriptor.encryption {
        (encryption.kek, encryption.next_kek) = (record_of(kek), None);
    }
    keep_envelopes(descriptor, |other| other == kek.id());
}

fn key_error(path: &Path) -> impl Fn(strongroom_keys::KeyError) -> DatastoreError {
    let path: PathBuf = path.to_owned();
    move |error| DatastoreError::Key { path: path.clone(), error }
}

fn no_epoch_left(path: &Path) -> DatastoreError {
    DatastoreError::Damaged { path: path.to_owned(), reason: "it has no key epoch left".to_owned() }
}
