//! Reading: everything at one revision.

use std::ops::Bound;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable};

use crate::entry::{Entry, Revision};
use crate::error::StoreError;
use crate::limits::{PAGE_MAX_BYTES, PAGE_MAX_ENTRIES};
use crate::range::{KeyRange, Page};
use crate::store::{Event, Snapshot};

use super::tables::{self, Changes, ENTRIES, HISTORY, META, META_REVISION};
use super::unavailable;

/// A read transaction of redb, which sees what was committed when it began.
pub(super) struct EngineSnapshot {
    transaction: ReadTransaction,
    entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
    revision: Revision,
}

impl EngineSnapshot {
    pub(super) fn begin(transaction: ReadTransaction) -> Result<Self, StoreError> {
        let meta = transaction.open_table(META).map_err(unavailable)?;
        let revision = Revision(tables::number(&meta, META_REVISION).map_err(unavailable)?);
        Ok(Self { entries: transaction.open_table(ENTRIES).map_err(unavailable)?, transaction, revision })
    }

    fn page(&self, range: &KeyRange, limit: usize) -> Result<Page, redb::Error> {
        let mut entries = Vec::new();
        if range.is_empty() {
            return Ok(Page { entries, rest: None });
        }
        let limit = limit.min(PAGE_MAX_ENTRIES);
        let start = Bound::Included(range.start.as_slice());
        let end = range.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        for row in self.entries.range::<&[u8]>((start, end))? {
            let (key, row) = row?;
            if entries.len() >= limit || bytes >= PAGE_MAX_BYTES {
                let rest = KeyRange { start: key.value().to_vec(), end: range.end.clone() };
                return Ok(Page { entries, rest: Some(rest) });
            }
            bytes += key.value().len() + row.value().len();
            entries.push(tables::entry(key.value(), row.value())?);
        }
        Ok(Page { entries, rest: None })
    }

    /// The history, which only watches read.
    fn history(&self) -> Result<ReadOnlyTable<u64, &'static [u8]>, StoreError> {
        self.transaction.open_table(HISTORY).map_err(unavailable)
    }

    /// The first revision whose changes are known, or the next one if none are.
    pub(super) fn oldest(&self) -> Result<Revision, StoreError> {
        let history = self.history()?;
        let first = history.first().map_err(unavailable)?;
        Ok(first.map_or(self.revision.next(), |(revision, _)| Revision(revision.value())))
    }

    /// The changes in a range from a revision on, up to `most` revisions, and the revision to
    /// continue from.
    pub(super) fn changes(
        &self,
        range: &KeyRange,
        from: Revision,
        most: usize,
    ) -> Result<(Vec<Event>, Revision), StoreError> {
        let mut events = Vec::new();
        let mut next = from;
        for row in self.history()?.range(from.0..).map_err(unavailable)?.take(most) {
            let (revision, row) = row.map_err(unavailable)?;
            let revision = Revision(revision.value());
            let changes = Changes::events(revision, row.value()).map_err(unavailable)?;
            events.extend(changes.into_iter().filter(|event| range.contains(&event.key)));
            next = revision.next();
        }
        Ok((events, next))
    }
}

impl Snapshot for Arc<EngineSnapshot> {
    fn revision(&self) -> Revision {
        self.revision
    }

    fn get(&self, key: &[u8]) -> Result<Option<Entry>, StoreError> {
        let row = self.entries.get(key).map_err(unavailable)?;
        row.map(|row| tables::entry(key, row.value())).transpose().map_err(unavailable)
    }

    fn range(&self, range: &KeyRange, limit: usize) -> Result<Page, StoreError> {
        self.page(range, limit).map_err(unavailable)
    }
}
