//! All records of one kind, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// How many rows were handed out, so that a reader that walks over all of them is found.
    read: AtomicU64,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), read: AtomicU64::new(0) }
    }
}

/// Rows of a table, in order. Each that is taken counts as read.
pub(super) struct Reading<'table, Rows> {
    rows: Rows,
    taken: u64,
    read: &'table AtomicU64,
}

impl<Rows: Iterator> Iterator for Reading<'_, Rows> {
    type Item = Rows::Item;

    fn next(&mut self) -> Option<Rows::Item> {
        let row = self.rows.next()?;
        self.taken += 1;
        Some(row)
    }
}

impl<Rows: DoubleEndedIterator> DoubleEndedIterator for Reading<'_, Rows> {
    fn next_back(&mut self) -> Option<Rows::Item> {
        let row = self.rows.next_back()?;
        self.taken += 1;
        Some(row)
    }
}

impl<Rows> Drop for Reading<'_, Rows> {
    fn drop(&mut self) {
        self.read.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl<R: Record> Table<R> {
    /// The record with this id.
    pub fn get(&self, id: &str) -> Option<&Row<R>> {
        let row = self.rows.get(id)?;
        self.read.fetch_add(1, Ordering::Relaxed);
        Some(row)
    }

    /// The number of rows that were read since the table was made.
    pub fn rows_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Counts the rows that are taken from these.
    pub(super) fn reading<Rows>(&self, rows: Rows) -> Reading<'_, Rows> {
        Reading { rows, taken: 0, read: &self.read }
    }

    /// Whether it has a record with this id.
    pub fn contains(&self, id: &str) -> bool {
        self.rows.contains_key(id)
    }

    /// All records.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Row<R>> {
        self.reading(self.rows.values())
    }

    /// The records after an id.
    pub fn after<'table>(
        &'table self,
        id: &str,
    ) -> impl DoubleEndedIterator<Item = &'table Row<R>> + use<'table, R> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.reading(self.rows.range::<str, _>((Excluded(id), Unbounded)).map(|(_, row)| row))
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
