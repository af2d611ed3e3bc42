//! An uncommitted change of the inventory.

use strongroom_api::access::AccessEntry;
use strongroom_api::alarm::Alarm;
use strongroom_api::event::Event;
use strongroom_api::{ObjectRef, WhenFull};
use strongroom_store::{Is, Operation, Store, Transaction};
use uuid::Uuid;

use super::access_log::{Era, Removal, most_bytes};
use super::{Failure, NextNumbers, Row};
use crate::records::{
    AccessRetentionRecord, DatastoreRecord, HostRecord, Named, NetworkRecord, PlacementGroupRecord,
    PolicyRecord, RecipientRecord, Record, VmRecord, VolumeRecord,
};

/// Records to create, replace and remove, with the events of the change.
#[derive(Clone)]
#[must_use]
pub struct Draft {
    transaction: Transaction,
    events: Vec<Event>,
    access: Vec<AccessEntry>,
    removal: Option<Removal>,
    /// The folder of the VM that it removes.
    folder: Option<Uuid>,
    when_full: WhenFull,
    failed: Option<Failure>,
    at_unix_ms: u64,
}

impl Draft {
    /// An empty draft at this time.
    pub fn new(now_unix_ms: u64) -> Self {
        Self {
            transaction: Transaction::new(),
            events: Vec::new(),
            access: Vec::new(),
            removal: None,
            folder: None,
            when_full: WhenFull::Refused,
            failed: None,
            at_unix_ms: now_unix_ms,
        }
    }

    /// Creates a record that must not exist.
    pub fn create<R: Record>(self, record: &R) -> Self {
        let key = record.key();
        self.put(record).when(key, Is::Absent)
    }

    /// Creates a record whose name must be free, too.
    pub fn create_named<R: Named>(self, record: &R) -> Self {
        let (name, id) = (record.name_key(), record.id());
        let mut draft = self.create(record).when(name.clone(), Is::Absent);
        draft.transaction = draft.transaction.put(name, id);
        draft
    }

    /// Replaces the record that was read, of which it keeps [what stays](Record::keep_past).
    pub fn replace<R: Record>(self, read: &Row<R>, record: &R) -> Self {
        let kept = record.keep_past(read);
        self.put(kept.as_ref().unwrap_or(record)).when(record.key(), Is::ModifiedAt(read.revision))
    }

    /// Replaces the record that was read. If it has another name then, that must be free, and the
    /// former one becomes free.
    pub fn replace_named<R: Named>(self, read: &Row<R>, record: &R) -> Self {
        let draft = self.replace(read, record);
        let (before, after) = (read.name_key(), record.name_key());
        if before == after {
            return draft;
        }
        let mut draft = draft.when(after.clone(), Is::Absent);
        draft.transaction = draft.transaction.delete(before).put(after, record.id());
        draft
    }

    /// Creates or replaces a record.
    pub fn put<R: Record>(mut self, record: &R) -> Self {
        match serde_json::to_vec(record) {
            Ok(value) => self.transaction = self.transaction.put(record.key(), value),
            Err(error) => {
                self.failed = Some(Failure::Damaged { key: record.key(), reason: error.to_string() });
            }
        }
        self
    }

    /// Removes the record that was read.
    pub fn remove<R: Record>(mut self, read: &Row<R>) -> Self {
        let key = read.key();
        self.transaction = self.transaction.delete(key.clone());
        self.when(key, Is::ModifiedAt(read.revision))
    }

    /// Removes the record that was read, and frees its name.
    pub fn remove_named<R: Named>(self, read: &Row<R>) -> Self {
        let mut draft = self.remove(read);
        draft.transaction = draft.transaction.delete(read.name_key());
        draft
    }

    /// Removes a record of this kind and id, if it exists.
    pub fn discard<R: Record>(mut self, id: &str) -> Self {
        self.transaction = self.transaction.delete(format!("{}{id}", R::PREFIX));
        self
    }

    /// The folder of the VM that it removes. Who may view the folder sees the last event of the VM.
    pub fn out_of(self, folder: Option<Uuid>) -> Self {
        Self { folder, ..self }
    }

    /// Requires that a record is unchanged since it was read.
    pub fn unchanged<R: Record>(self, read: &Row<R>) -> Self {
        let (key, revision) = (read.key(), read.revision);
        self.when(key, Is::ModifiedAt(revision))
    }

    /// Requires that a record still exists, changed or not.
    pub fn present<R: Record>(self, read: &Row<R>) -> Self {
        let key = read.key();
        self.when(key, Is::Present)
    }

    /// Adds an event.
    pub fn event(
        mut self,
        kind: impl Into<String>,
        object: &ObjectRef,
        message: impl Into<String>,
        task: Option<Uuid>,
    ) -> Self {
        let (kind, object, message) = (kind.into(), object.clone(), message.into());
        let at_unix_ms = self.at_unix_ms;
        // The number, and what is gone, are those of the transaction.
        let (id, gone) = (0, Vec::new());
        let (alarm, folder) = (None, None);
        self.events.push(Event { id, at_unix_ms, kind, object, message, task, alarm, gone, folder });
        self
    }

    /// Adds an event about an alarm.
    pub fn alarm_event(self, kind: impl Into<String>, alarm: &Alarm, message: impl Into<String>) -> Self {
        let mut draft = self.event(kind, &alarm.object, message, None);
        if let Some(event) = draft.events.last_mut() {
            event.alarm = Some(alarm.clone());
        }
        draft
    }

    /// Adds an entry to the access log. Its number and time are those of the transaction.
    pub fn access(mut self, entry: AccessEntry) -> Self {
        self.access.push(AccessEntry { at_unix_ms: self.at_unix_ms, ..entry });
        self
    }

    /// What becomes of it when the access log is full: unless this is called, it is refused.
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Removes the oldest entries of the access log, with the entry that says so.
    pub(super) fn remove_access(mut self, removal: Removal, entry: AccessEntry) -> Self {
        self.removal = Some(removal);
        self.access(entry).when_full(WhenFull::Done)
    }

    /// The records of a kind that it creates or replaces.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn records<R: Record>(&self) -> Result<Vec<R>, Failure> {
        let written = self.transaction.operations.iter().filter_map(|operation| match operation {
            Operation::Put { key, value, .. } if key.starts_with(R::PREFIX.as_bytes()) => Some((key, value)),
            Operation::Put { .. } | Operation::Delete { .. } => None,
        });
        let read = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            serde_json::from_slice(value).map_err(|error| Failure::Damaged {
                key: String::from_utf8_lossy(key).into_owned(),
                reason: error.to_string(),
            })
        };
        written.map(read).collect()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.failed.is_none()
    }

    /// The number of entries that it changes.
    pub fn len(&self) -> usize {
        self.transaction.operations.len() + self.events.len() + self.access.len()
    }

    fn when(mut self, key: String, is: Is) -> Self {
        self.transaction = self.transaction.when(key, is);
        self
    }

    /// Makes the transaction. Its events and entries are numbered from `next` on, which is
    /// advanced.
    pub(super) fn into_transaction(
        self,
        store: &dyn Store,
        next: &mut NextNumbers,
        retention: AccessRetentionRecord,
    ) -> Result<Numbered, Failure> {
        let mut numbered = self;
        let gone = removed_objects(&numbered.transaction);
        for event in std::mem::take(&mut numbered.events) {
            let mut event = Event { id: next.event, gone: gone.clone(), ..event };
            event.folder = numbered.folder.filter(|_| event.ends_its_object());
            numbered = numbered.put(&event);
            next.event += 1;
        }
        let Self { transaction, access, removal, when_full, failed, .. } = numbered;
        if let Some(failure) = failed {
            return Err(failure);
        }
        if access.is_empty() {
            return Ok(Numbered { transaction, era: None });
        }
        let most_bytes = most_bytes(retention, when_full);
        let (transaction, era) =
            next.chain.extend(store, access, removal.as_ref(), most_bytes, transaction)?;
        Ok(Numbered { transaction, era: Some(era) })
    }
}

/// A transaction with its numbers.
pub(super) struct Numbered {
    pub transaction: Transaction,
    /// Where it continues the access log, if it does.
    pub era: Option<Era>,
}

/// The prefixes of the records of objects that events and tasks are about, or that belong to them.
const OBJECTS: [&str; 8] = [
    VmRecord::PREFIX,
    VolumeRecord::PREFIX,
    DatastoreRecord::PREFIX,
    HostRecord::PREFIX,
    NetworkRecord::PREFIX,
    PolicyRecord::PREFIX,
    PlacementGroupRecord::PREFIX,
    RecipientRecord::PREFIX,
];

/// The ids of the objects that a transaction removes.
fn removed_objects(transaction: &Transaction) -> Vec<Uuid> {
    let mut removed = Vec::new();
    for operation in &transaction.operations {
        let (Operation::Put { key, .. } | Operation::Delete { key }) = operation;
        let key = String::from_utf8_lossy(key);
        let Some(id) = OBJECTS.iter().find_map(|prefix| key.strip_prefix(prefix)) else { continue };
        let Ok(id) = id.parse::<Uuid>() else { continue };
        removed.retain(|other| *other != id);
        if matches!(operation, Operation::Delete { .. }) {
            removed.push(id);
        }
    }
    removed
}
