//! Objects in the store: their indexes, and changes to them as one transaction.
//!
//! | key | value |
//! |---|---|
//! | `object/` identifier (16 bytes) | the object's [sealed record](super::sealing), or its tombstone, permanently |
//! | `name/` owner (16) HMAC of a name (32) | the identifier of the live object that bears the name |
//! | `owned/` owner (16) identifier (16) | empty; live objects only, so that destroyed ones do not slow a search |
//!
//! A [`Work`] reads one snapshot and stages changes. They become one transaction, which commits
//! only if no changed object was modified by another client since; on a conflict the whole work is
//! repeated. So a crash at any moment leaves an object and its indexes either in the old or in the
//! new state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strongroom_memory::secret::{SecretBytes, SecretError};
use strongroom_store::{Entry, Is, KeyRange, Outcome, Revision, Snapshot, Store, StoreError, Transaction};

use super::clock::{Clock, UnixSeconds};
use super::id::ObjectId;
use super::object::{MetadataError, Object};
use super::sealing::{OpenedRecord, RecordKind, Sealing, SealingError};
use super::sketches::Sketches;
use crate::access::ClientId;

pub(crate) const OBJECT_PREFIX: &[u8] = b"object/";
pub(crate) const NAME_PREFIX: &[u8] = b"name/";
pub(crate) const OWNED_PREFIX: &[u8] = b"owned/";

/// Why objects cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum KeepingError {
    /// No such object exists or ever existed.
    #[error("there is no object {id}")]
    NotFound {
        /// The requested identifier.
        id: ObjectId,
    },
    /// Another live object of the owner has the name.
    #[error("another object of this owner bears the name {name:?}")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The record is older than the store's count of writes allows.
    #[error(
        "the record of object {id} is one from before: it is at generation {found} after {written} changes"
    )]
    RolledBack {
        /// The object.
        id: ObjectId,
        /// The generation in the record.
        found: u64,
        /// The store's count of writes.
        written: u64,
    },
    /// The record does not open.
    #[error(transparent)]
    Sealing(#[from] SealingError),
    /// The record opens but cannot be decoded.
    #[error("object {id}: {source}")]
    Metadata {
        /// The object.
        id: ObjectId,
        /// What is wrong with it.
        source: MetadataError,
    },
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No protected memory.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// All objects of the server.
pub struct Objects {
    store: Arc<dyn Store>,
    sealing: Sealing,
    sketches: Sketches,
    clock: Arc<dyn Clock>,
}

impl Objects {
    /// The objects in `store`, sealed under keys derived from `root`.
    ///
    /// # Errors
    ///
    /// [`SealingError`] if no keys can be derived.
    pub fn new(
        store: Arc<dyn Store>,
        root: &SecretBytes,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, SealingError> {
        Ok(Self { store, sealing: Sealing::new(root)?, sketches: Sketches::default(), clock })
    }

    /// Begins a piece of work on the current state.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub fn begin(&self) -> Result<Work<'_>, KeepingError> {
        Ok(Work {
            sealing: &self.sealing,
            sketches: &self.sketches,
            snapshot: self.store.snapshot()?,
            now: self.clock.now(),
            staged: BTreeMap::new(),
        })
    }

    /// Commits a work's changes. Returns `false` on a conflict, after which the work must be
    /// repeated.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`], also if it is uncertain whether the change was made.
    pub async fn commit(&self, transaction: Transaction) -> Result<bool, KeepingError> {
        Ok(matches!(self.store.submit(transaction).await?, Outcome::Committed(_)))
    }

    /// The same, for threads that may block.
    ///
    /// # Errors
    ///
    /// As [`Objects::commit`].
    pub fn commit_blocking(&self, transaction: Transaction) -> Result<bool, KeepingError> {
        Ok(matches!(self.store.commit(transaction)?, Outcome::Committed(_)))
    }

    /// The time by the server's clock.
    pub fn now(&self) -> UnixSeconds {
        self.clock.now()
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    pub(super) fn open_record(&self, id: ObjectId, entry: &Entry) -> Result<OpenedRecord, KeepingError> {
        open_record(&self.sealing, id, entry)
    }
}

/// Opens a record, and checks its generation against the store's count of writes.
fn open_record(sealing: &Sealing, id: ObjectId, entry: &Entry) -> Result<OpenedRecord, KeepingError> {
    let record = sealing.open(id, &entry.value)?;
    // Each change writes the record once, so the store's own count of writes is a floor for the
    // generation.
    if record.generation < entry.version {
        return Err(KeepingError::RolledBack { id, found: record.generation, written: entry.version });
    }
    Ok(record)
}

/// An object that a piece of work has changed.
struct Staged {
    /// The stored state, if there was one.
    before: Option<Before>,
    /// The first generation of an object new to this store: 1, or its generation in the store it
    /// comes from.
    first_generation: u64,
    object: Object,
}

/// The facts of the stored state that are needed to replace it.
#[derive(Clone)]
struct Before {
    modified: Revision,
    generation: u64,
    indexed: Option<IndexKeys>,
}

/// The index entries that an object has.
#[derive(Clone, PartialEq, Eq)]
struct IndexKeys {
    names: BTreeSet<Vec<u8>>,
    owned: Vec<u8>,
}

/// A piece of work: sees one snapshot of all objects and its own changes.
pub struct Work<'a> {
    sealing: &'a Sealing,
    sketches: &'a Sketches,
    snapshot: Box<dyn Snapshot + 'a>,
    now: UnixSeconds,
    staged: BTreeMap<ObjectId, Staged>,
}

impl Work<'_> {
    /// The time of this work.
    pub fn now(&self) -> UnixSeconds {
        self.now
    }

    /// This work's snapshot of the store, for records other than objects.
    pub(crate) fn snapshot(&self) -> &dyn Snapshot {
        self.snapshot.as_ref()
    }

    /// Whether anything was changed.
    pub fn has_changes(&self) -> bool {
        !self.staged.is_empty()
    }

    /// The identifiers of all objects in the store, destroyed ones included.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub fn every(&self) -> Result<Vec<ObjectId>, KeepingError> {
        let entries = self.snapshot.all(&KeyRange::prefix(OBJECT_PREFIX))?;
        let bytes = entries.iter().filter_map(|entry| entry.key.strip_prefix(OBJECT_PREFIX)?.try_into().ok());
        Ok(bytes.map(ObjectId::from_bytes).collect())
    }

    /// An object in its current state, or its tombstone.
    ///
    /// # Errors
    ///
    /// [`KeepingError::NotFound`]; all that can be wrong with a record.
    pub fn load(&self, id: ObjectId) -> Result<Object, KeepingError> {
        if let Some(staged) = self.staged.get(&id) {
            return Ok(staged.object.duplicate()?);
        }
        let entry = self.snapshot.get(&object_key(id))?.ok_or(KeepingError::NotFound { id })?;
        Ok(self.open(id, &entry)?.0)
    }

    /// Adds a new object.
    ///
    /// # Errors
    ///
    /// [`KeepingError::NameTaken`].
    pub fn add(&mut self, object: Object) -> Result<(), KeepingError> {
        self.check_names(&object)?;
        self.staged.insert(object.id, Staged { before: None, first_generation: 1, object });
        Ok(())
    }

    /// Adds an object in its state from another store.
    pub(super) fn restore(&mut self, object: Object, generation: u64) {
        self.staged.insert(object.id, Staged { before: None, first_generation: generation, object });
    }

    /// Replaces an object from [`Work::load`] by its changed version.
    ///
    /// # Errors
    ///
    /// [`KeepingError::NameTaken`]; [`KeepingError::NotFound`].
    pub fn replace(&mut self, object: Object) -> Result<(), KeepingError> {
        self.check_names(&object)?;
        let id = object.id;
        if let Some(staged) = self.staged.get_mut(&id) {
            staged.object = object;
            return Ok(());
        }
        let entry = self.snapshot.get(&object_key(id))?.ok_or(KeepingError::NotFound { id })?;
        let (stored, generation) = self.open(id, &entry)?;
        let before = Before { modified: entry.mod_revision, generation, indexed: self.index_keys(&stored)? };
        self.staged.insert(id, Staged { before: Some(before), first_generation: 1, object });
        Ok(())
    }

    /// The live object of `owner` that bears a name.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Store`].
    pub fn named(&self, owner: ClientId, name: &str) -> Result<Option<ObjectId>, KeepingError> {
        for staged in self.staged.values() {
            let object = &staged.object;
            if object.owner == owner && !object.is_destroyed() && object.names().any(|own| own == name) {
                return Ok(Some(object.id));
            }
        }
        let Some(entry) = self.snapshot.get(&self.name_key(owner, name)?)? else { return Ok(None) };
        // An object changed in this work would have been found above if it still had the name.
        Ok(read_id(&entry.value).filter(|id| !self.staged.contains_key(id)))
    }

    /// The live objects that bear `name`, of any owner. Nothing else is opened.
    ///
    /// # Errors
    ///
    /// All that can be wrong with a record.
    pub fn namesakes(&self, name: &str) -> Result<Vec<Object>, KeepingError> {
        let mut found = Vec::new();
        for owner in self.owners()? {
            found.extend(self.named(owner, name)?.map(|id| self.load(id)).transpose()?);
        }
        found.sort_by_key(|object| (object.life.initial(), object.id));
        Ok(found)
    }

    /// The owners of live objects: a step for each of them, not for each object.
    fn owners(&self) -> Result<BTreeSet<ClientId>, KeepingError> {
        let live = self.staged.values().filter(|staged| !staged.object.is_destroyed());
        let mut owners: BTreeSet<ClientId> = live.map(|staged| staged.object.owner).collect();
        let mut left = KeyRange::prefix(OWNED_PREFIX);
        while let Some(entry) = self.snapshot.range(&left, 1)?.entries.first() {
            let owner = entry.key.strip_prefix(OWNED_PREFIX).and_then(<[u8]>::first_chunk);
            let Some(owner) = owner.map(|bytes| ClientId::from_bytes(*bytes)) else { break };
            owners.insert(owner);
            let KeyRange { end: Some(after), .. } =
                KeyRange::prefix([OWNED_PREFIX, owner.as_bytes()].concat())
            else {
                break;
            };
            left.start = after;
        }
        Ok(owners)
    }

    /// Every live object of `owner`, or of everyone, oldest first.
    ///
    /// # Errors
    ///
    /// All that can be wrong with a record.
    pub fn live(&self, owner: Option<ClientId>) -> Result<Vec<Object>, KeepingError> {
        let prefix = match owner {
            Some(owner) => [OWNED_PREFIX, owner.as_bytes()].concat(),
            None => OWNED_PREFIX.to_vec(),
        };
        let mut found = Vec::new();
        for entry in self.snapshot.all(&KeyRange::prefix(prefix))? {
            let Some(id) = entry.key.last_chunk::<16>().map(|bytes| ObjectId::from_bytes(*bytes)) else {
                continue;
            };
            if self.staged.contains_key(&id) {
                continue;
            }
            if let Some(record) = self.snapshot.get(&object_key(id))? {
                found.push((record.create_revision, self.open(id, &record)?.0));
            }
        }
        for staged in self.staged.values() {
            let object = &staged.object;
            if !object.is_destroyed() && owner.is_none_or(|owner| owner == object.owner) {
                found.push((Revision(u64::MAX), object.duplicate()?));
            }
        }
        found.sort_by_key(|(created, object)| (object.life.initial(), *created, object.id));
        Ok(found.into_iter().map(|(_, object)| object).collect())
    }

    /// The work's changes as one transaction.
    ///
    /// # Errors
    ///
    /// [`KeepingError::Sealing`] for an object that is too large.
    pub fn into_transaction(self) -> Result<Transaction, KeepingError> {
        let mut transaction = Transaction::new();
        // Names that this work removes from objects, and names that it gives to objects.
        let mut freed = BTreeSet::new();
        let mut borne = BTreeMap::new();
        for (id, staged) in &self.staged {
            let object = &staged.object;
            let indexed = self.index_keys(object)?;
            let (condition, generation) = match &staged.before {
                Some(before) => (Is::ModifiedAt(before.modified), before.generation + 1),
                None => (Is::Absent, staged.first_generation),
            };
            let kind = if object.is_destroyed() { RecordKind::Tombstone } else { RecordKind::Object };
            let material = if object.is_destroyed() { None } else { object.material() };
            let record = self.sealing.seal(*id, kind, generation, &object.metadata(), material)?;
            transaction = transaction.when(object_key(*id), condition).put(object_key(*id), record);

            let before = staged.before.as_ref().and_then(|before| before.indexed.clone());
            let names =
                |keys: &Option<IndexKeys>| keys.as_ref().map(|keys| keys.names.clone()).unwrap_or_default();
            let (had, has) = (names(&before), names(&indexed));
            freed.extend(had.difference(&has).cloned());
            borne.extend(has.difference(&had).map(|name| (name.clone(), *id)));
            transaction = match (before, indexed) {
                (None, Some(keys)) => transaction.put(keys.owned, Vec::new()),
                (Some(keys), None) => transaction.delete(keys.owned),
                (Some(had), Some(has)) if had.owned != has.owned => {
                    transaction.delete(had.owned).put(has.owned, Vec::new())
                }
                (Some(_), Some(_)) | (None, None) => transaction,
            };
        }
        for (name, id) in &borne {
            if !freed.contains(name) {
                transaction = transaction.when(name.clone(), Is::Absent);
            }
            transaction = transaction.put(name.clone(), id.as_bytes().to_vec());
        }
        for name in freed.into_iter().filter(|name| !borne.contains_key(name)) {
            transaction = transaction.delete(name);
        }
        Ok(transaction)
    }

    fn open(&self, id: ObjectId, entry: &Entry) -> Result<(Object, u64), KeepingError> {
        let record = open_record(self.sealing, id, entry)?;
        let sketch = self.sketches.read(id, record.metadata);
        let sketch = sketch.map_err(|source| KeepingError::Metadata { id, source })?;
        let object = sketch.with(record.material)?;
        if object.is_destroyed() != (record.kind == RecordKind::Tombstone) {
            return Err(KeepingError::Metadata { id, source: MetadataError::Kind });
        }
        Ok((object, record.generation))
    }

    fn check_names(&self, object: &Object) -> Result<(), KeepingError> {
        if object.is_destroyed() {
            return Ok(());
        }
        for name in object.names() {
            if self.named(object.owner, name)?.is_some_and(|holder| holder != object.id) {
                return Err(KeepingError::NameTaken { name: name.to_owned() });
            }
        }
        Ok(())
    }

    /// The index entries of an object; a destroyed one has none.
    fn index_keys(&self, object: &Object) -> Result<Option<IndexKeys>, KeepingError> {
        if object.is_destroyed() {
            return Ok(None);
        }
        let names = object.names().map(|name| self.name_key(object.owner, name)).collect::<Result<_, _>>()?;
        let owned = [OWNED_PREFIX, object.owner.as_bytes(), object.id.as_bytes()].concat();
        Ok(Some(IndexKeys { names, owned }))
    }

    fn name_key(&self, owner: ClientId, name: &str) -> Result<Vec<u8>, KeepingError> {
        let index = self.sealing.index_of(name.as_bytes())?;
        Ok([NAME_PREFIX, owner.as_bytes(), &index].concat())
    }
}

pub(super) fn object_key(id: ObjectId) -> Vec<u8> {
    [OBJECT_PREFIX, id.as_bytes()].concat()
}

fn read_id(value: &[u8]) -> Option<ObjectId> {
    value.try_into().ok().map(ObjectId::from_bytes)
}
