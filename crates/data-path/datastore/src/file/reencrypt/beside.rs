//! The job of a volume in use: one process owns the descriptor, one does the I/O, and a third one
//! rewrites layers below the top, which do not change.
//!
//! ```text
//! owner: the descriptor has the mark -> a new top takes the writes -> what was the top is complete
//! rewriter, for each layer: opens it as a reader of a snapshot does -> the new one is complete
//!     -> owner: checks it, makes it durable -> the descriptor has it -> the process that does the I/O reads it
//!         -> the old one's files go
//! owner: no file of an old layer is left, durably -> the descriptor without the mark
//! ```
//!
//! The old layer and the new one have the same content, so it does not matter which of them is read
//! until the old one's files go. If the job brings in a new KEK, owner and rewriter have both: new
//! DEKs, also those of tops and snapshots that are made meanwhile, are under the new one alone.
//!
//! A volume that gets or loses its encryption has clear and sealed layers meanwhile. The mark and
//! the new top are in one descriptor ([`VolumeHead::prepare_layer_of`]): no descriptor of a volume
//! that is being encrypted has a clear top, so what is written is sealed from the change-over on.

use std::path::Path;
use std::time::Duration;

use strongroom_keys::Kek;
use strongroom_types::LayerId;

use super::rewriter::{Rewriter, epoch_in_place_of};
use super::{
    NewTags, OpenRewrite, ReencryptOptions, Reencrypting, cancelled, finished, marked, refuse_without_room,
    replaced,
};
use crate::file::add_layer::{remove_layers, remove_leftovers};
use crate::file::descriptor::{Descriptor, LayerRecord};
use crate::file::directory::VolumeDirectory;
use crate::file::disk::OpenLayer;
use crate::file::error::DatastoreError;
use crate::file::head::VolumeHead;
use crate::file::lock::Sharing;
use crate::file::open::{Access, Deks, Protection};
use crate::file::open_files::{authenticate, open_envelopes, refuse_the_other_sort};
use crate::file::storage::{BY_PATH, Storage};

/// Opens the next layer of the volume at `path` to be rewritten, beside the processes that use the
/// volume; `None` if none is left. The mark must be there.
///
/// # Errors
/// [`DatastoreError::NotRewritable`] if the next layer still takes writes;
/// [`DatastoreError::Merging`]; if there is no room, or a layer cannot be opened.
pub fn open_rewrite_beside(
    path: &Path,
    options: &ReencryptOptions<'_>,
) -> Result<Option<OpenRewrite>, DatastoreError> {
    open_rewrite_beside_on(BY_PATH, path, options)
}

/// [`open_rewrite_beside`], on any storage.
///
/// # Errors
/// See [`open_rewrite_beside`].
pub fn open_rewrite_beside_on(
    storage: &dyn Storage,
    path: &Path,
    options: &ReencryptOptions<'_>,
) -> Result<Option<OpenRewrite>, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    loop {
        let encoded = directory.read_descriptor()?;
        refuse_the_other_sort(path, encoded.unverified(), options.meanwhile())?;
        let bytes = encoded.bytes().to_vec();
        let reading = options.to_open(options.meanwhile(), Access::ReadOnly);
        let descriptor = authenticate(path, encoded, &reading)?;
        let Some(old) = descriptor.to_reencrypt().next() else { return Ok(None) };
        if old.id == descriptor.top || old.closing {
            return Err(not_rewritable(path, "it still takes writes"));
        }
        if descriptor.merging.is_some() {
            return Err(DatastoreError::Merging { path: path.to_owned() });
        }
        let opened = Rewriter { directory: &directory, descriptor: &descriptor, options }.open(old);
        // Until the layers were locked, they could be removed or merged.
        if directory.read_descriptor()?.bytes() == bytes {
            return opened.map(Some);
        }
    }
}

impl VolumeHead {
    /// Durably marks the volume as being re-encrypted, unless it is marked so: under the KEK that
    /// it has, or the next one of [`Protection::Between`]. `tags` are those of the new layers.
    ///
    /// # Errors
    /// [`DatastoreError::Reencrypting`] if another job, or a re-wrap, is under way;
    /// [`DatastoreError::Full`] without room for the rewritten layers.
    pub fn mark_reencryption(
        &mut self,
        protection: Protection<'_>,
        tags: NewTags,
    ) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let (Some(kek), Some(encryption)) = (protection.kek(), &self.descriptor.encryption) else {
            return Err(DatastoreError::NotEncrypted { path: path.clone() });
        };
        let is_other = match (&self.descriptor.reencrypting, &encryption.next_kek) {
            (Some(Reencrypting::Clear {}), _) | (None, Some(_)) => true,
            (Some(Reencrypting::Encrypted { .. }), Some(next)) => next.id != kek.id(),
            (Some(Reencrypting::Encrypted { .. }) | None, None) => false,
        };
        if is_other {
            return Err(DatastoreError::Reencrypting { path: path.clone() });
        }
        let marked = marked(path, &self.descriptor, protection, tags)?;
        if marked == self.descriptor {
            return Ok(());
        }
        refuse_without_room(&self.directory, &marked)?;
        // What an interrupted job has left; nobody rewrites a layer without the mark.
        remove_leftovers(&self.directory, &self.descriptor)?;
        self.replace_descriptor(marked, &protection.keks())
    }

    /// Durably marks the volume as being encrypted ([`Protection::Encrypting`]) or decrypted
    /// ([`Protection::Decrypting`]), and puts a new, empty top of that sort over the layer that
    /// another process writes to: as [`Self::prepare_layer`], in one descriptor. `tags` are those
    /// of the new layers. The present protection need not be known: the volume is open.
    ///
    /// # Errors
    /// [`DatastoreError::Reencrypting`] if it is between two KEKs, or is under another one;
    /// [`DatastoreError::Full`] without room for the rewritten layers; and those of
    /// [`Self::prepare_layer`].
    pub fn prepare_layer_of(
        &mut self,
        protection: Protection<'_>,
        tags: NewTags,
        log_bytes: Option<u64>,
    ) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let keks = protection.keks();
        let is_other = self.descriptor.encryption.as_ref().is_some_and(|encryption| {
            encryption.next_kek.is_some() || keks.iter().all(|kek| kek.id() != encryption.kek.id)
        });
        if is_other {
            return Err(DatastoreError::Reencrypting { path: path.clone() });
        }
        let marked = marked(path, &self.descriptor, protection, tags)?;
        refuse_without_room(&self.directory, &marked)?;
        self.put_top_of(&marked, protection, log_bytes, None)
    }

    /// Takes the mark of [`Self::prepare_layer_of`] away again, after its top was
    /// [withdrawn](Self::withdraw_layer): the volume is what it was `before`. Returns `false`, and
    /// changes nothing, if that top is still there.
    ///
    /// # Errors
    /// If the descriptor cannot be replaced.
    pub fn withdraw_mark(
        &mut self,
        before: &Descriptor,
        protection: Protection<'_>,
    ) -> Result<bool, DatastoreError> {
        if self.descriptor.top != before.top {
            return Ok(false);
        }
        let Descriptor { encryption, reencrypting, .. } = before.clone();
        if (&self.descriptor.encryption, self.descriptor.reencrypting) != (&encryption, reencrypting) {
            let generation = self.descriptor.generation + 1;
            let without = Descriptor { encryption, reencrypting, generation, ..self.descriptor.clone() };
            self.replace_descriptor(without, &protection.keks())?;
        }
        Ok(true)
    }

    /// Ends a re-encryption that is not finished, without rewriting anything: the volume is under
    /// the KEK of the old DEKs, with new ones where it was done. Nobody rewrites a layer any more.
    ///
    /// # Errors
    /// [`DatastoreError::HalfClear`] for a volume that gets or loses its encryption.
    pub fn cancel_reencryption(&mut self, protection: Protection<'_>) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let keks = protection.keks();
        let is_all_sealed = self.descriptor.layers.iter().all(|layer| !layer.is_clear());
        match (self.descriptor.reencrypting, keks.first()) {
            (None, _) => Ok(()),
            (Some(Reencrypting::Encrypted { .. }), Some(from)) if is_all_sealed => {
                let cancelled = cancelled(path, &self.descriptor, from, &keks)?;
                remove_leftovers(&self.directory, &self.descriptor)?;
                self.replace_descriptor(cancelled, &keks)
            }
            (Some(_), _) => Err(DatastoreError::HalfClear { path: path.clone() }),
        }
    }

    /// Whether a re-encryption has only layers left that take no writes.
    pub fn is_top_reencrypted(&self) -> bool {
        self.descriptor.has_top_done()
    }

    /// Puts a layer that another process has rewritten in the place of the old one, durably. The
    /// old one's files stay until [`Self::remove_replaced`].
    ///
    /// # Errors
    /// [`DatastoreError::NotRewritable`] if it is not what this job makes of the old one; if its
    /// DEK does not open; if its tags were not closed in order.
    pub fn replace_rewritten(
        &mut self,
        old: LayerId,
        new: &LayerRecord,
        protection: Protection<'_>,
    ) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let old = self.descriptor.layer(old);
        let old = old.ok_or_else(|| not_rewritable(&path, "the volume does not have it any more"))?;
        self.expect_rewritten(old, new, protection.kek())?;
        let named = replaced(&self.descriptor, old, new);
        let deks = match protection.kek() {
            Some(kek) => open_envelopes(&path, &named, new, kek)?,
            None => Deks::new(),
        };
        let options = self.options_under(protection);
        let rewriter =
            Rewriter { directory: &self.directory, descriptor: &self.descriptor, options: &options };
        rewriter.expect_complete(&named, new, &deks)?;
        self.directory.sync()?;
        self.replace_descriptor(named, &protection.keks())
    }

    /// Refuses a record that is not what a layer becomes, except for its id and its DEK, which is
    /// under this KEK alone. Without one, the volume is being decrypted.
    fn expect_rewritten(
        &self,
        old: &LayerRecord,
        new: &LayerRecord,
        kek: Option<&Kek>,
    ) -> Result<(), DatastoreError> {
        let (path, descriptor) = (&self.directory.path, &self.descriptor);
        let refused = |reason| Err(not_rewritable(path, reason));
        let integrity = match (descriptor.reencrypting, kek) {
            (Some(Reencrypting::Encrypted { integrity, .. }), Some(_)) => integrity,
            (Some(Reencrypting::Clear {}), None) => None,
            (Some(Reencrypting::Encrypted { .. }), None) | (Some(Reencrypting::Clear {}), Some(_)) => {
                return refused("the volume becomes what its owner does not expect");
            }
            (None, _) => return refused("the volume is not being re-encrypted"),
        };
        if descriptor.is_reencrypted(old) {
            return refused("it is done already");
        }
        if old.id == descriptor.top || old.closing {
            return refused("it still takes writes");
        }
        if descriptor.merging.is_some_and(|merging| [merging.from, merging.into].contains(&old.id)) {
            return refused("it is being merged");
        }
        match (new.epochs.as_slice(), kek) {
            ([], None) => {}
            ([record], Some(kek)) => {
                if record.envelopes.len() != 1 || !new.opens_under(kek) {
                    return refused("its key is not under the new KEK alone");
                }
                if record.epoch != epoch_in_place_of(path, descriptor, old)? {
                    return refused("its key is not of the epoch of its place");
                }
            }
            (_, Some(_)) => return refused("it does not have one key"),
            (_, None) => return refused("it has a key, and the volume is being decrypted"),
        }
        let expected =
            LayerRecord { id: new.id, epochs: new.epochs.clone(), integrity, volume: None, ..old.clone() };
        let is_new = descriptor.layer(new.id).is_none();
        if !is_new || *new != expected {
            return refused("it is not what the job makes of the old one");
        }
        Ok(())
    }

    /// Opens a layer below the top to be read, for the process that does the I/O.
    ///
    /// # Errors
    /// If its files cannot be opened.
    pub fn open_lower(
        &self,
        layer: LayerId,
        protection: Protection<'_>,
    ) -> Result<OpenLayer, DatastoreError> {
        let missing = || DatastoreError::MissingLayer { path: self.directory.path.clone(), layer };
        let record = self.descriptor.layer(layer).ok_or_else(missing)?;
        let options = self.options_under(protection);
        let reading = options.to_open(protection, Access::ReadOnly);
        let rewriter =
            Rewriter { directory: &self.directory, descriptor: &self.descriptor, options: &options };
        let mut opened = rewriter.opening(&self.descriptor, &reading, Sharing::Shared)?.open(record)?;
        opened.vouch_for_tags();
        Ok(opened)
    }

    /// Removes the files of a layer that was replaced, once the process that does the I/O reads it
    /// no more.
    pub fn remove_replaced(&self, old: &LayerRecord) {
        if self.descriptor.layer(old.id).is_none() {
            remove_layers(&self.directory, std::slice::from_ref(old));
        }
    }

    /// Ends the job, once all layers are done: no file of an old layer is left, and the descriptor
    /// has no mark.
    ///
    /// # Errors
    /// [`DatastoreError::NotReencrypted`] if there are layers left.
    pub fn finish_reencryption(&mut self, protection: Protection<'_>) -> Result<(), DatastoreError> {
        if self.descriptor.reencrypting.is_none() {
            return Ok(());
        }
        let done: Descriptor = finished(&self.directory.path, &self.descriptor, protection)?;
        // As at the end of the other job: a power cut must not bring back a name.
        remove_leftovers(&self.directory, &self.descriptor)?;
        self.directory.sync()?;
        self.replace_descriptor(done, &protection.keks())
    }

    fn options_under<'k>(&self, protection: Protection<'k>) -> ReencryptOptions<'k> {
        let from = match protection {
            Protection::Between { from, .. } => Protection::Encrypted(from),
            Protection::Encrypted(_)
            | Protection::Encrypting(_)
            | Protection::Decrypting(_)
            | Protection::Unencrypted => protection,
        };
        ReencryptOptions {
            from,
            to: protection.kek().map_or(protection, Protection::Encrypted),
            tags: NewTags::Kept,
            lock_wait: Duration::ZERO,
            least_generation: self.descriptor.generation,
        }
    }
}

fn not_rewritable(path: &Path, reason: &'static str) -> DatastoreError {
    DatastoreError::NotRewritable { path: path.to_owned(), reason }
}
