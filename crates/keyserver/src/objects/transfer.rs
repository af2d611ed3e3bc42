//! Objects out of one server's store and into another's: for backups, which are sealed by something else than the root key.
//!
//! The content of a [`PlainRecord`] is `generation (8, big-endian), metadata length (4), metadata, material`. It holds keys in the
//! clear, so it lives in memory that is wiped and goes straight into what encrypts it.

use strongroom_memory::secret::SecretBytes;
use strongroom_store::{KeyRange, Page, Snapshot, Transaction};
use zeroize::Zeroizing;

use super::id::ObjectId;
use super::keeping::{KeepingError, OBJECT_PREFIX, Objects, Work};
use super::object::{MetadataError, Object};
use super::sealing::RecordKind;

const GENERATION_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;

/// An object or its tombstone, opened.
pub struct PlainRecord {
    /// Which one.
    pub id: ObjectId,
    /// Whether it is alive.
    pub kind: RecordKind,
    /// All of it; see the [module](self).
    pub content: Zeroizing<Vec<u8>>,
}

/// Every object and tombstone of one moment, page by page.
pub struct Export<'a> {
    objects: &'a Objects,
    snapshot: Box<dyn Snapshot + 'a>,
    page: Page,
    next: usize,
}

impl Objects {
    /// Opens every record, as things are now, one at a time.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub fn export(&self) -> Result<Export<'_>, KeepingError> {
        let snapshot = self.store().snapshot()?;
        let page = snapshot.range(&KeyRange::prefix(OBJECT_PREFIX), usize::MAX)?;
        Ok(Export { objects: self, snapshot, page, next: 0 })
    }

    /// What puts a record into this store, sealed under this server's root. For a store that has no record of that object: it is
    /// restored, and never merged.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Metadata`] for a content that is none; [`KeepingError::Sealing`].
    pub fn import(&self, record: &PlainRecord) -> Result<Transaction, KeepingError> {
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
        let mut work: Work<'_> = self.begin()?;
        work.restore(object, u64::from_be_bytes(*generation));
        work.into_transaction()
    }
}

impl Iterator for Export<'_> {
    type Item = Result<PlainRecord, KeepingError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(entry) = self.page.entries.get(self.next) else {
                let rest = self.page.rest.take()?;
                self.next = 0;
                match self.snapshot.range(&rest, usize::MAX) {
                    Ok(page) => self.page = page,
                    Err(error) => {
                        self.page.entries.clear();
                        return Some(Err(error.into()));
                    }
                }
                continue;
            };
            self.next += 1;
            // The store's keys under this prefix are identifiers; what is none is nothing of ours.
            if let Some(id) = entry.key.last_chunk::<16>().map(|bytes| ObjectId::from_bytes(*bytes)) {
                return Some(self.objects.open_plain(id, entry));
            }
        }
    }
}

impl Objects {
    fn open_plain(&self, id: ObjectId, entry: &strongroom_store::Entry) -> Result<PlainRecord, KeepingError> {
        let record = self.open_record(id, entry)?;
        let (metadata, material) = (&record.metadata, record.material.expose());
        let length_bytes = GENERATION_BYTES + LENGTH_BYTES + metadata.len() + material.len();
        let mut content = Zeroizing::new(Vec::with_capacity(length_bytes));
        content.extend_from_slice(&record.generation.to_be_bytes());
        // METADATA_MAX_BYTES fits four bytes.
        content.extend_from_slice(&(metadata.len() as u32).to_be_bytes());
        content.extend_from_slice(metadata);
        content.extend_from_slice(material);
        Ok(PlainRecord { id, kind: record.kind, content })
    }
}
