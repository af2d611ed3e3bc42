//! Moves objects from one server's store into another's, for backups, which are not sealed by the
//! root key.
//!
//! The content of a [`PlainRecord`] is `generation (8, big-endian), metadata length (4), metadata,
//! material`. It holds plaintext keys, so it is in memory that is wiped, and goes straight to
//! encryption.

use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Entries, Entry, KeyRange, Transaction};
use zeroize::Zeroizing;

use super::id::ObjectId;
use super::keeping::{KeepingError, OBJECT_PREFIX, OWNED_PREFIX, Objects, Work, object_key};
use super::object::{MetadataError, Object};
use super::sealing::{RecordKind, header};

const GENERATION_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;

/// An object or its tombstone, opened.
pub struct PlainRecord {
    /// Which one.
    pub id: ObjectId,
    /// Its kind: object or tombstone.
    pub kind: RecordKind,
    /// Its content; see the [module](self).
    pub content: Zeroizing<Vec<u8>>,
}

/// Every object and tombstone of one snapshot, page by page.
pub struct Export<'a> {
    objects: &'a Objects,
    entries: Entries,
}

impl Objects {
    /// Opens every record of the current state, one at a time.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub fn export(&self) -> Result<Export<'_>, KeepingError> {
        let entries = Entries::new(self.store().snapshot()?, KeyRange::prefix(OBJECT_PREFIX));
        Ok(Export { objects: self, entries })
    }

    /// The transaction that puts a record into this store, sealed under this server's root. The
    /// store must have no record of that object: objects are restored, never merged.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Metadata`] for invalid content; [`KeepingError::Sealing`].
    pub fn import(&self, record: &PlainRecord) -> Result<Transaction, KeepingError> {
        let (object, generation) = read(record)?;
        let mut work: Work<'_> = self.begin()?;
        work.restore(object, generation);
        work.into_transaction()
    }

    /// The same for a record whose object `present` also has, on the server that the restore
    /// replaces: if that is the later state, it is kept. A key that was revoked since the backup
    /// stays revoked.
    ///
    /// # Errors
    ///
    /// As [`Objects::import`].
    pub(crate) fn import_over(
        &self,
        record: &PlainRecord,
        present: &PlainRecord,
    ) -> Result<Transaction, KeepingError> {
        let (mut object, mut generation) = read(record)?;
        let (later, later_generation) = read(present)?;
        if later_generation > generation && !later.is_destroyed() {
            (object.life, object.revocation, object.usage) = (later.life, later.revocation, later.usage);
            (object.fresh, generation) = (later.fresh, later_generation);
        }
        let mut work: Work<'_> = self.begin()?;
        work.restore(object, generation);
        work.into_transaction()
    }

    /// The transaction that puts a tombstone into this store, in place of the object if there is
    /// one. `None` if the store already has the tombstone.
    ///
    /// # Errors
    ///
    /// As [`Objects::import`], and all that can be wrong with the record in the store.
    pub(crate) fn bury(&self, tombstone: &PlainRecord) -> Result<Option<Transaction>, KeepingError> {
        let (object, generation) = read(tombstone)?;
        let mut work: Work<'_> = self.begin()?;
        match work.load(object.id) {
            Ok(present) if present.is_destroyed() => return Ok(None),
            Ok(_) => work.replace(object)?,
            Err(KeepingError::NotFound { .. }) => work.restore(object, generation),
            Err(error) => return Err(error),
        }
        work.into_transaction().map(Some)
    }
}

/// An object or a tombstone, and its generation.
fn read(record: &PlainRecord) -> Result<(Object, u64), KeepingError> {
    let damaged = |source| KeepingError::Metadata { id: record.id, source };
    let short = || damaged(MetadataError::Short);
    let (generation, rest) = record.content.split_first_chunk::<GENERATION_BYTES>().ok_or_else(short)?;
    let (length, rest) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(short)?;
    let (metadata, material) =
        rest.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(short)?;
    let mut secret = SecretBytes::zeroed(material.len())?;
    secret.expose_mut().copy_from_slice(material);
    let object = Object::from_metadata(record.id, metadata, secret).map_err(damaged)?;
    if object.is_destroyed() != (record.kind == RecordKind::Tombstone) {
        return Err(damaged(MetadataError::Kind));
    }
    Ok((object, u64::from_be_bytes(*generation)))
}

impl Iterator for Export<'_> {
    type Item = Result<PlainRecord, KeepingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let opened = |entry: Entry| self.objects.open_plain(&entry).transpose();
        loop {
            match self.entries.next()?.map(opened) {
                Ok(None) => {}
                Ok(Some(opened)) => return Some(opened),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

impl Objects {
    /// The record in an entry under `object/`; `None` for a key that is not an identifier.
    ///
    /// # Errors
    ///
    /// All that can be wrong with a record.
    pub(crate) fn open_plain(&self, entry: &Entry) -> Result<Option<PlainRecord>, KeepingError> {
        let Some(id) = entry.key.strip_prefix(OBJECT_PREFIX).and_then(|id| id.try_into().ok()) else {
            return Ok(None);
        };
        let id = ObjectId::from_bytes(id);
        let record = self.open_record(id, entry)?;
        let (metadata, material) = (&record.metadata, record.material.expose());
        let length_bytes = GENERATION_BYTES + LENGTH_BYTES + metadata.len() + material.len();
        let mut content = Zeroizing::new(Vec::with_capacity(length_bytes));
        content.extend_from_slice(&record.generation.to_be_bytes());
        // METADATA_MAX_BYTES fits four bytes.
        content.extend_from_slice(&(metadata.len() as u32).to_be_bytes());
        content.extend_from_slice(metadata);
        content.extend_from_slice(material);
        Ok(Some(PlainRecord { id, kind: record.kind, content }))
    }

    /// The record of `id`, if there is one.
    ///
    /// # Errors
    ///
    /// All that can be wrong with a record.
    pub(crate) fn plain(&self, id: ObjectId) -> Result<Option<PlainRecord>, KeepingError> {
        match self.store().get(&object_key(id))? {
            Some(entry) => self.open_plain(&entry),
            None => Ok(None),
        }
    }

    /// Every tombstone. A tombstone that cannot be opened is an error, because only it names the
    /// destroyed object.
    ///
    /// # Errors
    ///
    /// All that can be wrong with a record.
    pub(crate) fn tombstones(&self) -> Result<Vec<PlainRecord>, KeepingError> {
        let mut tombstones = Vec::new();
        for entry in Entries::new(self.store().snapshot()?, KeyRange::prefix(OBJECT_PREFIX)) {
            let entry = entry?;
            if header(&entry.value).is_some_and(|(kind, _)| kind == RecordKind::Tombstone) {
                tombstones.extend(self.open_plain(&entry)?);
            }
        }
        Ok(tombstones)
    }

    /// The number of live objects.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub(crate) fn live_count(&self) -> Result<u64, KeepingError> {
        let mut count = 0;
        for entry in Entries::new(self.store().snapshot()?, KeyRange::prefix(OWNED_PREFIX)) {
            entry?;
            count += 1;
        }
        Ok(count)
    }
}
