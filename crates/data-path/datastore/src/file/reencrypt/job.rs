//! The job of a volume that nobody uses.

use std::path::Path;

use super::rewriter::Rewriter;
use super::{
    LeftToReencrypt, OpenRewrite, ReencryptOptions, RewrittenLayer, cancelled, finished, marked,
    refuse_without_room, replaced,
};
use crate::file::add_layer::{
    make_durable, refuse_an_open_log, refuse_unclosed, refuse_unsettled_tags, remove_layers, remove_leftovers,
};
use crate::file::descriptor::{Descriptor, LayerRecord, LogRecord};
use crate::file::directory::VolumeDirectory;
use crate::file::error::DatastoreError;
use crate::file::head::VolumeHead;
use crate::file::lock::{self, Sharing};
use crate::file::log;
use crate::file::open::{Access, Deks, open_apart_on};
use crate::file::open_files::{open_envelopes, refuse_the_other_sort};
use crate::file::storage::{BY_PATH, Storage};

/// A re-encryption that is under way, of a volume that nobody else uses.
pub struct Reencryption<'a> {
    head: VolumeHead,
    options: ReencryptOptions<'a>,
}

/// Begins to re-encrypt the volume at `path`, or continues with that. The volume's log must be
/// empty, and no merge may be marked.
///
/// # Errors
/// If the volume is still in use after `lock_wait`, was not closed in order, or is between two KEKs
/// of a re-wrap; if a KEK that the descriptor names is not at hand; if the datastore lacks the room
/// for the rewritten layers. Nothing has changed then.
pub fn begin_reencryption<'a>(
    path: &Path,
    options: &ReencryptOptions<'a>,
) -> Result<Reencryption<'a>, DatastoreError> {
    begin_reencryption_on(BY_PATH, path, options)
}

/// As [`begin_reencryption`], on another file system.
pub fn begin_reencryption_on<'a>(
    storage: &dyn Storage,
    path: &Path,
    options: &ReencryptOptions<'a>,
) -> Result<Reencryption<'a>, DatastoreError> {
    let mut job = Reencryption::open(storage, path, options)?;
    if let Some(merging) = job.head.descriptor.merging {
        return Err(DatastoreError::UnfinishedMerge { path: path.to_owned(), layer: merging.from });
    }
    refuse_unclosed(path, &job.head.descriptor)?;
    job.complete_top()?;
    let marked = marked(path, &job.head.descriptor, options.to, options.tags)?;
    refuse_without_room(&job.head.directory, &marked)?;
    if marked != job.head.descriptor {
        job.head.replace_descriptor(marked, &options.keks())?;
    }
    Ok(job)
}

/// Reads the descriptor of the volume at `path`, which a re-encryption may have between two KEKs,
/// and checks it as [`authenticated`](crate::file::authenticated) does, under every KEK that it
/// names. Nothing is locked or opened.
///
/// # Errors
/// Those of reading and authenticating the descriptor, and of the sync;
/// [`DatastoreError::BetweenKeys`] if a KEK that it names is not at hand.
pub fn authenticated_between_keks(
    path: &Path,
    options: &ReencryptOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let directory = VolumeDirectory::open(BY_PATH, path)?;
    let descriptor = authenticated_under_all(&directory, options)?;
    directory.sync()?;
    Ok(descriptor)
}

/// Ends a re-encryption that is not finished, without rewriting anything. The volume stays under
/// the KEK of `from`, with new DEKs where it was done. Returns its new descriptor.
///
/// # Errors
/// [`DatastoreError::NotReencrypting`]; [`DatastoreError::HalfClear`] if some layers are clear and
/// others are not; and those of [`begin_reencryption`].
pub fn cancel_reencryption(
    path: &Path,
    options: &ReencryptOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    cancel_reencryption_on(BY_PATH, path, options)
}

/// As [`cancel_reencryption`], on another file system.
pub fn cancel_reencryption_on(
    storage: &dyn Storage,
    path: &Path,
    options: &ReencryptOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let mut job = Reencryption::open(storage, path, options)?;
    let descriptor = &job.head.descriptor;
    if descriptor.reencrypting.is_none() {
        return Err(DatastoreError::NotReencrypting { path: path.to_owned() });
    }
    let clear = descriptor.layers.iter().filter(|layer| layer.epochs.is_empty()).count();
    let keks = options.keks();
    let cancelled = match options.from.kek() {
        _ if clear == descriptor.layers.len() => {
            let generation = descriptor.generation + 1;
            Descriptor { encryption: None, reencrypting: None, generation, ..descriptor.clone() }
        }
        Some(kek) if clear == 0 => cancelled(path, descriptor, kek, &keks)?,
        _ => return Err(DatastoreError::HalfClear { path: path.to_owned() }),
    };
    remove_leftovers(&job.head.directory, &job.head.descriptor)?;
    job.head.replace_descriptor(cancelled, &keks)?;
    Ok(job.head.descriptor)
}

impl<'a> Reencryption<'a> {
    /// Locks the volume, and authenticates its descriptor under every KEK that it names.
    fn open(
        storage: &dyn Storage,
        path: &Path,
        options: &ReencryptOptions<'a>,
    ) -> Result<Self, DatastoreError> {
        let directory = VolumeDirectory::open(storage, path)?;
        directory.file_system()?;
        if directory.read_descriptor()?.unverified().reencrypting.is_none() {
            drop(directory);
            // As for any other use: what its last user has left is settled, and former tags are
            // renewed.
            let (head, top, _) =
                open_apart_on(storage, path, &options.to_open(options.from, Access::ReadWrite))?;
            drop(top);
            if let Some(next) = head.descriptor.encryption.as_ref().and_then(|found| found.next_kek.as_ref())
            {
                return Err(DatastoreError::BetweenKeys {
                    path: path.to_owned(),
                    missing: next.id,
                    source_name: next.source.to_string(),
                });
            }
            return Ok(Self { head, options: *options });
        }
        lock::acquire(&*directory.handle, Sharing::Exclusive, options.lock_wait, path)?;
        let descriptor = authenticated_under_all(&directory, options)?;
        // The process that wrote the descriptor may have been killed before it was durable.
        directory.sync()?;
        directory.sync_place(storage)?;
        Ok(Self { head: VolumeHead { directory, descriptor, access: Access::ReadWrite }, options: *options })
    }

    /// The descriptor, authenticated.
    pub fn descriptor(&self) -> &Descriptor {
        &self.head.descriptor
    }

    /// What is left to do.
    pub fn left(&self) -> LeftToReencrypt {
        LeftToReencrypt::of(&self.head.directory, &self.head.descriptor)
    }

    /// Waits for the last writes of a killed process to the top, which must be complete, and makes
    /// them durable.
    fn complete_top(&self) -> Result<(), DatastoreError> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        let Some(record) = descriptor.layer(descriptor.top) else { return Ok(()) };
        let options = self.options.to_open(self.options.from, Access::ReadWrite);
        let top = self.rewriter().opening(descriptor, &options, Sharing::Exclusive)?.open(record)?;
        refuse_an_open_log(&directory.path, record.id, &top)?;
        refuse_unsettled_tags(&directory.path, record.id, &top, &self.rewriter().deks_of(record)?)?;
        make_durable(&directory.path, &top)
    }

    /// Makes the files of the layer that takes the place of the next one, and opens both; `None` if
    /// all are done. Files of an interrupted attempt are removed first.
    ///
    /// # Errors
    /// If there is no room, or a layer cannot be opened.
    pub fn open_next(&mut self) -> Result<Option<OpenRewrite>, DatastoreError> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        let Some(old) = descriptor.to_reencrypt().next() else { return Ok(None) };
        remove_leftovers(directory, descriptor)?;
        self.rewriter().open(old).map(Some)
    }

    fn rewriter(&self) -> Rewriter<'_> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        Rewriter { directory, descriptor, options: &self.options }
    }

    /// Puts a rewritten layer, which is flushed and has everything, in the place of the old one,
    /// durably, and removes the old one's files.
    ///
    /// # Errors
    /// If the new layer's tags were not closed in order; if the descriptor cannot be replaced, or
    /// does not read back. The layer can then be rewritten again.
    pub fn replace(&mut self, mut rewritten: RewrittenLayer) -> Result<(), DatastoreError> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        let path = directory.path.clone();
        let missing = || DatastoreError::MissingLayer { path: path.clone(), layer: rewritten.old };
        let old = descriptor.layer(rewritten.old).ok_or_else(missing)?.clone();
        let new = &rewritten.new;
        let named = replaced(descriptor, &old, new);
        let deks = match self.options.to.kek() {
            Some(kek) => open_envelopes(&path, &named, new, kek)?,
            None => Deks::new(),
        };
        self.rewriter().expect_complete(&named, new, &deks)?;
        if let Some(LogRecord { bytes }) = new.log {
            log::create(directory, new.id, bytes, log::FileState::Closed, &path)?;
        }
        directory.sync()?;
        let keks = self.options.keks();
        let written = self.head.replace_descriptor(named, &keks);
        let found = self.head.directory.read_descriptor();
        // A descriptor that was renamed, and could not be made durable, names the new layer too.
        rewritten.is_named =
            found.as_ref().map_or(true, |found| found.unverified().layer(rewritten.new.id).is_some());
        written?;
        self.read_back(&rewritten.new, &deks)?;
        remove_layers(&self.head.directory, std::slice::from_ref(&old));
        Ok(())
    }

    /// Checks that the descriptor on the disk is authentic under every KEK, and opens the DEK that
    /// the layer was written with: its old one is about to go.
    fn read_back(&mut self, new: &LayerRecord, written: &Deks) -> Result<(), DatastoreError> {
        let path = self.head.path().to_owned();
        let failed = |reason: String| DatastoreError::NotReencrypted { path: path.clone(), reason };
        let found = authenticated_under_all(&self.head.directory, &self.options);
        let found = found.map_err(|error| failed(error.to_string()))?;
        if found != self.head.descriptor {
            return Err(failed("it is not what was written".to_owned()));
        }
        match self.rewriter().deks_of(new).map_err(|error| failed(error.to_string()))? == *written {
            true => Ok(()),
            false => Err(failed(format!("the envelope of layer {} holds another key", new.id))),
        }
    }

    /// Ends the job, once all layers are done: no file of an old layer is left, and the descriptor
    /// has no mark. Returns it.
    ///
    /// # Errors
    /// [`DatastoreError::NotReencrypted`] if there are layers left.
    pub fn finish(mut self) -> Result<Descriptor, DatastoreError> {
        let VolumeHead { directory, descriptor, .. } = &self.head;
        let done = finished(&directory.path, descriptor, self.options.to)?;
        // A power cut must not bring back a name of what the report says is gone.
        remove_leftovers(directory, descriptor)?;
        directory.sync()?;
        let keks = self.options.keks();
        self.head.replace_descriptor(done, &keks)?;
        Ok(self.head.descriptor)
    }
}

/// The descriptor on the disk, which every KEK that it names must authenticate.
fn authenticated_under_all(
    directory: &VolumeDirectory,
    options: &ReencryptOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let path = &directory.path;
    let encoded = directory.read_descriptor()?;
    if encoded.unverified().encryption.is_none() {
        refuse_the_other_sort(path, encoded.unverified(), options.to)?;
    }
    let descriptor = encoded.verify_under_all(path, &options.keks())?;
    descriptor.expect_generation(path, options.least_generation)?;
    Ok(descriptor)
}
