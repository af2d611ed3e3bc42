//! All records of a kind, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use strongroom_store::Revision;

use crate::records::Record;

/// A record with the revision that wrote it.
#[derive(Debug)]
pub struct Row<R> {
    /// It.
    pub record: Arc<R>,
    /// Which revision wrote it: what a change of it is made on.
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

/// All records of a kind, in the order of their keys.
pub struct Table<R> {
    rows: BTreeMap<String, Row<R>>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new() }
    }
}

impl<R: Record> Table<R> {
    /// The one of this id.
    pub fn get(&self, id: &str) -> Option<&Row<R>> {
        self.rows.get(id)
    }

    /// Whether there is one.
    pub fn contains(&self, id: &str) -> bool {
        self.rows.contains_key(id)
    }

    /// All of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Row<R>> {
        self.rows.values()
    }

    /// Those after an id.
    pub fn after(&self, id: &str) -> impl DoubleEndedIterator<Item = &Row<R>> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rows.range::<str, _>((Excluded(id), Unbounded)).map(|(_, row)| row)
    }

    /// The last one.
    pub fn last(&self) -> Option<&Row<R>> {
        self.rows.values().next_back()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Puts one in; hands back the one that was there.
    pub(super) fn insert(&mut self, row: Row<R>) -> Option<Row<R>> {
        self.rows.insert(row.record.id(), row)
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, id: &str) -> Option<Row<R>> {
        self.rows.remove(id)
    }
}
