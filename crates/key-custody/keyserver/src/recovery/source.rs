//! A server's store as the records of a backup.

use std::sync::Arc;

use strongroom_store::{Entries, Entry, KeyRange, Store};
use zeroize::Zeroizing;

use super::AUDIT_PREFIX;
use crate::authority::{Authority, transfer};
use crate::backup::{BackupSource, Content, Failure, Record, RecordKind, Snapshot};
use crate::grant::{holding, ledger as grants};
use crate::management::{custody, hand_over};
use crate::objects::clock::SystemClock;
use crate::objects::destruction;
use crate::objects::keeping::{NAME_PREFIX, OBJECT_PREFIX, OWNED_PREFIX, Objects};
use crate::objects::sealing::{self, SealingError};
use crate::objects::transfer::PlainRecord;
use crate::state::{RESTORED, State};

/// The store has an entry that backups do not know.
#[derive(Debug, thiserror::Error)]
#[error(
    "the store has {key}, which this program does not know how to back up; it was written by another version"
)]
pub struct UnknownEntry {
    /// Its key, escaped.
    key: String,
}

/// A key server's whole state, read from its store while it serves.
pub struct ServerSource {
    store: Arc<dyn Store>,
    objects: Objects,
    authority: Arc<Authority>,
}

impl ServerSource {
    /// Reads the store of `state`.
    ///
    /// # Errors
    /// [`SealingError`] if no keys can be derived.
    pub fn new(state: &State) -> Result<Self, SealingError> {
        let store = Arc::clone(&state.store);
        let objects = Objects::new(Arc::clone(&store), &state.objects_key, Arc::new(SystemClock))?;
        Ok(Self { store, objects, authority: Arc::clone(&state.authority) })
    }

    /// An entry's record in a backup; `None` if it is left out.
    fn record(&self, entry: &Entry) -> Result<Option<Record>, Failure> {
        let is_at = |prefix: &[u8]| entry.key.starts_with(prefix);
        let record = |kind, value| Some(Record { kind, key: entry.key.clone(), value });
        match () {
            () if is_at(OBJECT_PREFIX) => Ok(self.objects.open_plain(entry)?.map(of_object)),
            () if is_at(transfer::PREFIX.as_bytes()) => {
                let opened = self.authority.opened(entry)?;
                Ok(opened.and_then(|value| record(RecordKind::Authority, value)))
            }
            () if [destruction::PREFIX, grants::VM, grants::KEY, holding::HELD, custody::APPROVED]
                .into_iter()
                .any(is_at) =>
            {
                Ok(record(RecordKind::Ledger, Zeroizing::new(entry.value.clone())))
            }
            () if is_at(NAME_PREFIX) || is_at(OWNED_PREFIX) => Ok(None),
            () if is_at(custody::PREFIX) || is_at(hand_over::PREFIX) => Ok(None),
            () if is_at(grants::PREFIX) || is_at(AUDIT_PREFIX) || is_at(RESTORED) => Ok(None),
            () => Err(UnknownEntry { key: entry.key.escape_ascii().to_string() }.into()),
        }
    }
}

impl BackupSource for ServerSource {
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure> {
        let snapshot = self.store.snapshot()?;
        let generation = snapshot.revision().0;
        let entries = Entries::new(snapshot, KeyRange::all());
        let records = entries.filter_map(|entry| match entry {
            Ok(entry) => self.record(&entry).transpose(),
            Err(error) => Some(Err(error.into())),
        });
        Ok(Snapshot { content: Content::KeyServer, generation, records: Box::new(records) })
    }
}

/// The backup record of an object or a tombstone.
pub(super) fn of_object(object: PlainRecord) -> Record {
    let kind = match object.kind {
        sealing::RecordKind::Object => RecordKind::Object,
        sealing::RecordKind::Tombstone => RecordKind::Tombstone,
    };
    Record { kind, key: object.id.as_bytes().to_vec(), value: object.content }
}
