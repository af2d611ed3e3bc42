//! Counts and reports the results of comparing blocks with their tags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_io::Waker;

use crate::file::tagging::Binding;

/// The least interval between log messages about blocks: a damaged disk has many, and each is
/// counted.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The results of comparing an open volume's blocks with their tags, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagCounts {
    /// Blocks that matched their tags when they were read.
    pub verified: u64,
    /// Blocks that did not match and need not: they may have been in flight when power or the
    /// process failed. They were accepted as they are, and tagged again unless the volume is open
    /// for reading only.
    pub adopted: u64,
    /// Blocks that a failed change has altered while the volume was in use; they were tagged again.
    pub left_by_failures: u64,
    /// Reads of blocks whose content is not what was last written.
    pub mismatched: u64,
    /// Regions of 16 MiB that may hold blocks that will be adopted.
    pub unsettled_regions: u64,
}

/// Reads an open volume's counts of blocks that did not match their tags.
#[derive(Clone, Debug)]
pub struct TagsWatch(pub(super) Arc<Counts>);

impl TagsWatch {
    /// The counts of adopted blocks ([`TagCounts::adopted`]) and of failed reads
    /// ([`TagCounts::mismatched`]).
    pub fn adopted_and_mismatched(&self) -> (u64, u64) {
        let TagCounts { adopted, mismatched, .. } = self.0.now(0);
        (adopted, mismatched)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    verified: AtomicU64,
    adopted: AtomicU64,
    left_by_failures: AtomicU64,
    mismatched: AtomicU64,
    said: Mutex<Option<Instant>>,
    /// The waker to call when a block did not match.
    reader: Mutex<Option<Arc<Waker>>>,
}

impl Counts {
    pub fn verified(&self, blocks: u64) {
        self.verified.fetch_add(blocks, Ordering::Relaxed);
    }

    pub fn adopted(&self, blocks: u64) {
        self.adopted.fetch_add(blocks, Ordering::Relaxed);
        if blocks > 0 {
            self.wake_reader();
        }
    }

    pub fn set_reader(&self, reader: Arc<Waker>) {
        *self.reader.lock() = Some(reader);
    }

    fn wake_reader(&self) {
        if let Some(reader) = &*self.reader.lock() {
            reader.wake();
        }
    }

    pub fn left_by_failures(&self, blocks: u64) {
        self.left_by_failures.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Counts a read of a wrong block, and logs it at most every [`SAY_EVERY`].
    pub fn mismatched(&self, binding: &Binding, block: u64) {
        let count = self.mismatched.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake_reader();
        let mut said = self.said.lock();
        if said.is_some_and(|last| last.elapsed() < SAY_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        tracing::error!(
            volume = %binding.volume,
            block,
            count,
            "a block is damaged or was put back to an earlier content: its tag does not match; reads of it fail"
        );
    }

    pub fn now(&self, unsettled_regions: usize) -> TagCounts {
        TagCounts {
            verified: self.verified.load(Ordering::Relaxed),
            adopted: self.adopted.load(Ordering::Relaxed),
            left_by_failures: self.left_by_failures.load(Ordering::Relaxed),
            mismatched: self.mismatched.load(Ordering::Relaxed),
            unsettled_regions: unsettled_regions as u64,
        }
    }
}
