//! Moving a volume from one KEK to another. No block is touched: only the envelopes change.
//!
//! There are three steps: the descriptor is written under both KEKs; it is read back, and the new
//! KEK must open all of it; it is written under the new KEK alone. The descriptor itself records
//! the state between the first and the last step, so any process can resume it, and either KEK
//! opens the volume until then. A step that fails leaves the result of the step before.
//! `docs/decisions/0011-rewrapping.md` explains what each KEK's tag guarantees meanwhile.

use std::path::Path;
use std::time::Duration;

use strongroom_keys::{Envelope, Kek};
use strongroom_types::KekId;

use super::descriptor::{Descriptor, KekRecord};
use super::directory::VolumeDirectory;
use super::error::DatastoreError;
use super::head::VolumeHead;
use super::lock;
use super::open::{Access, OpenOptions, Protection};
use super::open_files::{authenticate, context_of, open_envelopes, refuse_the_other_sort};
use super::storage::{BY_PATH, Storage};

/// Options of [`rewrap`].
#[derive(Clone, Copy, Debug)]
pub struct RewrapOptions<'a> {
    /// A KEK that opens the volume. To resume a re-wrap it can be the new one, so that the re-wrap
    /// can be finished when the old one is no longer available.
    pub from: &'a Kek,
    /// The new KEK, freshly fetched from its source, so that nothing is wrapped under a key that
    /// cannot be fetched again.
    pub to: &'a Kek,
    /// How long to wait for the process that holds the volume.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 accepts any.
    pub least_generation: u64,
}

/// Moves the volume at `path`, which must not be in use, to another KEK, or resumes an interrupted
/// move. Returns the volume's new descriptor. A volume that is already under the new KEK alone is
/// not changed.
///
/// # Errors
/// If the volume is still in use after `lock_wait`; if `from` does not open it; if the new
/// descriptor does not read back; if there is no room. Unless only the new KEK opened the volume
/// before, `from` still opens it.
pub fn rewrap(path: &Path, options: &RewrapOptions<'_>) -> Result<Descriptor, DatastoreError> {
    rewrap_on(BY_PATH, path, options)
}

/// As [`rewrap`], on another file system.
pub fn rewrap_on(
    storage: &dyn Storage,
    path: &Path,
    options: &RewrapOptions<'_>,
) -> Result<Descriptor, DatastoreError> {
    let &RewrapOptions { from, to, lock_wait, least_generation } = options;
    let open = |kek| {
        let protection = Protection::Encrypted(kek);
        let options = OpenOptions { protection, access: Access::ReadWrite, lock_wait, least_generation };
        VolumeHead::open_on(storage, path, &options)
    };
    let mut head = match open(from) {
        // The re-wrap was finished before.
        Err(error @ DatastoreError::Key { .. }) => open(to).map_err(|_| error)?,
        opened => opened?,
    };
    head.rewrap(from, to)?;
    Ok(head.descriptor)
}

impl VolumeHead {
    /// Opens a volume for changes of its descriptor, without its blocks.
    pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<Self, DatastoreError> {
        Self::open_on(BY_PATH, path, options)
    }

    /// As [`Self::open`], on another file system.
    pub fn open_on(
        storage: &dyn Storage,
        path: &Path,
        options: &OpenOptions<'_>,
    ) -> Result<Self, DatastoreError> {
        let directory = VolumeDirectory::open(storage, path)?;
        directory.file_system()?;
        refuse_the_other_sort(path, directory.read_descriptor()?.unverified(), options.protection)?;
        lock::acquire(&*directory.handle, options.access.sharing(), options.lock_wait, path)?;
        let descriptor = authenticate(path, directory.read_descriptor()?, options)?;
        if options.access == Access::ReadWrite {
            // The process that wrote the descriptor may have been killed before it was durable.
            directory.sync()?;
            directory.sync_place(storage)?;
        }
        Ok(Self { directory, descriptor, access: options.access })
    }

    /// Runs the remaining steps of a re-wrap. See [`rewrap`]. After an error, [`Self::descriptor`]
    /// tells which KEKs open the volume.
    pub fn rewrap(&mut self, from: &Kek, to: &Kek) -> Result<(), DatastoreError> {
        let mut steps = || {
            self.begin_rewrap(from, to)?;
            self.verify_rewrap(from, to)?;
            self.finish_rewrap(to)
        };
        steps().inspect_err(|_| {
            // A descriptor whose replacement failed may be in place nevertheless.
            let _ = self.read_again(to).or_else(|_| self.read_again(from));
        })
    }

    /// The first step: makes either KEK open the volume.
    pub fn begin_rewrap(&mut self, from: &Kek, to: &Kek) -> Result<(), DatastoreError> {
        self.read_again(if self.descriptor.is_under(from.id()) { from } else { to })?;
        if self.descriptor.reencrypting.is_some() {
            // Both jobs use the place of the second KEK, each in its own way.
            return Err(DatastoreError::Reencrypting { path: self.directory.path.clone() });
        }
        if self.descriptor.is_under(to.id()) {
            return Ok(());
        }
        let both = under_both(&self.directory.path, &self.descriptor, from, to)?;
        self.replace_descriptor(both, &[from, to])
    }

    /// The second step: checks that everything on the disk opens under the new KEK, and equals what
    /// the old KEK opens.
    pub fn verify_rewrap(&mut self, from: &Kek, to: &Kek) -> Result<(), DatastoreError> {
        let path = self.directory.path.clone();
        let failed = |reason: String| DatastoreError::NotRewrapped { path: path.clone(), reason };
        let expected = self.descriptor.clone();
        self.read_again(to).map_err(|error| failed(error.to_string()))?;
        if self.descriptor != expected {
            return Err(failed("it is not what was written".to_owned()));
        }
        let compares = self.descriptor.is_under(from.id());
        if compares {
            self.read_again(from)?;
        }
        for layer in &self.descriptor.layers {
            let deks = open_envelopes(&path, &self.descriptor, layer, to);
            let deks = deks.map_err(|error| failed(error.to_string()))?;
            if compares && deks != open_envelopes(&path, &self.descriptor, layer, from)? {
                return Err(failed(format!("the envelopes of layer {} hold another key", layer.id)));
            }
        }
        Ok(())
    }

    /// The last step: makes the new KEK alone open the volume.
    pub fn finish_rewrap(&mut self, to: &Kek) -> Result<(), DatastoreError> {
        let mut alone = self.descriptor.clone();
        let Some(encryption) = &mut alone.encryption else {
            return Err(DatastoreError::NotEncrypted { path: self.directory.path.clone() });
        };
        let kek = record_of(to);
        if encryption.next_kek.is_none() && encryption.kek == kek {
            return Ok(());
        }
        (encryption.kek, encryption.next_kek) = (kek, None);
        keep_envelopes(&mut alone, |kek| kek == to.id());
        alone.generation += 1;
        self.replace_descriptor(alone, &[to])
    }

    pub(super) fn replace_descriptor(
        &mut self,
        descriptor: Descriptor,
        keks: &[&Kek],
    ) -> Result<(), DatastoreError> {
        let encoded = descriptor.encode(&self.directory.path, keks)?;
        self.directory.write_descriptor(&encoded)?;
        self.descriptor = descriptor;
        Ok(())
    }

    /// Rereads the descriptor from the disk. This KEK must authenticate it, and it must be of the
    /// same volume and no older.
    fn read_again(&mut self, kek: &Kek) -> Result<(), DatastoreError> {
        let path = &self.directory.path;
        let options = OpenOptions {
            protection: Protection::Encrypted(kek),
            access: self.access,
            lock_wait: Duration::ZERO,
            least_generation: self.descriptor.generation,
        };
        let found = authenticate(path, self.directory.read_descriptor()?, &options)?;
        let (expected, id) = (self.descriptor.volume, found.volume);
        if id != expected {
            return Err(DatastoreError::Replaced { path: path.clone(), expected, found: id });
        }
        self.descriptor = found;
        Ok(())
    }
}

/// The descriptor with envelopes for `to` in addition to those for `from`. A third KEK, from an
/// earlier unfinished re-wrap, is dropped.
fn under_both(
    path: &Path,
    descriptor: &Descriptor,
    from: &Kek,
    to: &Kek,
) -> Result<Descriptor, DatastoreError> {
    let mut both = descriptor.clone();
    both.generation += 1;
    keep_envelopes(&mut both, |kek| kek == from.id());
    for (layer, wrapped) in descriptor.layers.iter().zip(&mut both.layers) {
        let deks = open_envelopes(path, descriptor, layer, from)?;
        for (record, (_, dek)) in wrapped.epochs.iter_mut().zip(&deks) {
            let context = context_of(descriptor, layer, record);
            let envelope = Envelope::seal(&context, dek, to);
            record
                .envelopes
                .push(envelope.map_err(|error| DatastoreError::Key { path: path.to_owned(), error })?);
        }
    }
    if let Some(encryption) = &mut both.encryption {
        let old = encryption.keks().find(|record| record.id == from.id()).cloned();
        encryption.kek = old.unwrap_or_else(|| record_of(from));
        encryption.next_kek = Some(record_of(to));
    }
    Ok(both)
}

pub(super) fn keep_envelopes(descriptor: &mut Descriptor, kept: impl Fn(KekId) -> bool) {
    for record in descriptor.layers.iter_mut().flat_map(|layer| &mut layer.epochs) {
        record.envelopes.retain(|envelope| kept(envelope.kek()));
    }
}

pub(super) fn record_of(kek: &Kek) -> KekRecord {
    KekRecord { id: kek.id(), source: kek.source().clone() }
}
