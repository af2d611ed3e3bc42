//! Moving a volume from one KEK to another. No block is touched: only the envelopes change.
//!
//! There are three steps: the descriptor is written under both KEKs; it is read back, and the new
//! one has to open all of it; it is written under the new one alone. What is between the first and
//! the last is in the descriptor itself, so whoever finds it knows how to go on, and either KEK
//! opens the volume until then. A step that fails leaves what the one before it has made.
//! `docs/decisions/0011-rewrapping.md` says what each KEK's tag is good for meanwhile.

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
use super::storage::{HOST, Storage};

/// From which KEK to which.
#[derive(Clone, Copy, Debug)]
pub struct RewrapOptions<'a> {
    /// A KEK that opens the volume. Of a re-wrap that was begun it can be the new one, so that it
    /// is finished where the old one cannot be had any more.
    pub from: &'a Kek,
    /// The KEK that is to open it, as whoever keeps it hands it out now, so that nothing is wrapped
    /// under a key that nobody gets back.
    pub to: &'a Kek,
    /// How long to wait for whoever has the volume.
    pub lock_wait: Duration,
    /// The least descriptor generation that the caller knows to exist; 0 knows nothing.
    pub least_generation: u64,
}

/// Moves the volume at `path`, which nobody uses, to another KEK, or goes on with that where it was
/// left. Says what the volume is now; nothing is done to one that is under the new KEK alone
/// already.
///
/// # Errors
/// While the volume is in use, once `lock_wait` has passed; if `from` does not open it; if what was
/// written does not read back; for want of room. Then `from` opens the volume still, unless it is
/// the new one that does.
pub fn rewrap(path: &Path, options: &RewrapOptions<'_>) -> Result<Descriptor, DatastoreError> {
    rewrap_on(HOST, path, options)
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
        // It was finished before.
        Err(error @ DatastoreError::Key { .. }) => open(to).map_err(|_| error)?,
        opened => opened?,
    };
    head.rewrap(from, to)?;
    Ok(head.descriptor)
}

impl VolumeHead {
    /// Opens a volume for what changes its descriptor and needs none of its blocks.
    pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<Self, DatastoreError> {
        Self::open_on(HOST, path, options)
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
            // Whoever put the descriptor there may have been killed before that was durable.
            directory.sync()?;
            directory.sync_place(storage)?;
        }
        Ok(Self { directory, descriptor, access: options.access })
    }

    /// All steps of a re-wrap, from where it was left. See [`rewrap`]. Whatever fails,
    /// [`Self::descriptor`] says then which KEKs open the volume.
    pub fn rewrap(&mut self, from: &Kek, to: &Kek) -> Result<(), DatastoreError> {
        let mut steps = || {
            self.begin_rewrap(from, to)?;
            self.verify_rewrap(from, to)?;
            self.finish_rewrap(to)
        };
        steps().inspect_err(|_| {
            // A replacement that failed may be in place all the same.
            let _ = self.read_again(to).or_else(|_| self.read_again(from));
        })
    }

    /// The first step: either KEK opens the volume.
    pub fn begin_rewrap(&mut self, from: &Kek, to: &Kek) -> Result<(), DatastoreError> {
        self.read_again(if self.descriptor.is_under(from.id()) { from } else { to })?;
        if self.descriptor.is_under(to.id()) {
            return Ok(());
        }
        let both = under_both(&self.directory.path, &self.descriptor, from, to)?;
        self.replace_descriptor(both, &[from, to])
    }

    /// The second: what is on the disk opens under the new KEK, all of it, and is what it was under
    /// the old one.
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

    /// The last, after the others: the new KEK alone opens the volume.
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

    /// Takes over what the disk says, if this KEK vouches for it: the same volume, and no older.
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

/// The descriptor with all that `to` needs beside what `from` has. A third KEK, which an earlier
/// re-wrap was bringing in, goes.
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

fn keep_envelopes(descriptor: &mut Descriptor, kept: impl Fn(KekId) -> bool) {
    for record in descriptor.layers.iter_mut().flat_map(|layer| &mut layer.epochs) {
        record.envelopes.retain(|envelope| kept(envelope.kek()));
    }
}

fn record_of(kek: &Kek) -> KekRecord {
    KekRecord { id: kek.id(), source: kek.source().clone() }
}
