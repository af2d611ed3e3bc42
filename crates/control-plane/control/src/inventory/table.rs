//! All records of one kind, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use strongroom_store::Revision;

use crate::records::Record;

/// A record with the revision that wrote it.
#[derive(Debug)]
pub struct Row<R> {
    /// The record.
    pub record: Arc<R>,
    /// The revision that wrote it. A change of the record is conditional on it.
    pub revision: Revision,
}

impl<R> Clone for Row<R> {
    fn clone(&self) -> Self {
        Self { record: Arc::clone(&self.record), revision: self.revision }
    }
}

impl<R> std::ops::Deref for Row<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.record
    }
}

/// All records of one kind, in the order of their keys.
pub struct Table<R> {
    rows: BTreeMap<String, Row<R>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new() }
    }
}

impl<R: Record> Table<R> {
    /// The record with this id.
    pub fn get(&self, id: &str) -> Option<&Row<R>> {
        self.rows.get(id)
    }

    /// Whether it has a record with this id.
    pub fn contains(&self, id: &str) -> bool {
        self.rows.contains_key(id)
    }

    /// All records.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Row<R>> {
        self.rows.values()
    }

    /// The records after an id.
    pub fn after<'table>(
        &'table self,
        id: &str,
    ) -> impl DoubleEndedIterator<Item = &'table Row<R>> + use<'table, R> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rows.range::<str, _>((Excluded(id), Unbounded)).map(|(_, row)| row)
    }

    /// The last record.
    pub fn last(&self) -> Option<&Row<R>> {
        self.rows.values().next_back()
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Inserts a record. Returns the old one.
    pub(super) fn insert(&mut self, row: Row<R>) -> Option<Row<R>> {
        self.rows.insert(row.record.id(), row)
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, id: &str) -> Option<Row<R>> {
        self.rows.remove(id)
    }
}
