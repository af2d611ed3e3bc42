//! What feeds the index: a watch of the store, and the whole store when the watch has failed.

use std::time::Duration;

use strongroom_store::{Entry, KeyRange, Snapshot, Store, StoreError, Watch};

use super::Failure;
use super::index::Index;

/// The watch of the store.
pub(super) struct Feed {
    watch: Box<dyn Watch>,
    /// Whether the index has everything that the watch has told. If not, the whole store is read
    /// again: the watch tells each change once.
    is_complete: bool,
}

/// What the index lacks.
pub(super) enum News {
    /// Nothing.
    None,
    /// The present values of some keys.
    Some {
        /// The revision up to which they are complete.
        newest: u64,
        /// The keys, and their entries unless they were deleted.
        entries: Vec<(Vec<u8>, Option<Entry>)>,
    },
    /// Everything.
    All(Box<dyn Snapshot>),
}

impl Feed {
    /// Feeds an index that was read from this snapshot.
    pub fn after(store: &dyn Store, snapshot: &dyn Snapshot) -> Result<Self, Failure> {
        let watch = store.watch(KeyRange::all(), snapshot.revision().next())?;
        Ok(Self { watch, is_complete: true })
    }

    /// Takes what the index lacks. The caller [confirms](Self::confirm) that the index has it.
    pub fn next(&mut self, store: &dyn Store) -> Result<News, Failure> {
        if self.is_complete {
            match self.watch.next(Duration::ZERO) {
                Ok(changes) => {
                    let Some(last) = changes.last() else { return Ok(News::None) };
                    self.is_complete = false;
                    let newest = last.revision.0;
                    let snapshot = store.snapshot()?;
                    let mut entries = Vec::with_capacity(changes.len());
                    for change in changes.into_iter().filter(|change| Index::has(&change.key)) {
                        let entry = snapshot.get(&change.key)?;
                        entries.push((change.key, entry));
                    }
                    return Ok(News::Some { newest, entries });
                }
                Err(StoreError::Compacted { .. }) => self.is_complete = false,
                Err(error) => return Err(error.into()),
            }
        }
        let snapshot = store.snapshot()?;
        self.watch = store.watch(KeyRange::all(), snapshot.revision().next())?;
        Ok(News::All(snapshot))
    }

    /// The index has the news.
    pub fn confirm(&mut self) {
        self.is_complete = true;
    }
}
