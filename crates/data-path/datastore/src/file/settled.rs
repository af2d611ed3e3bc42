//! Makes durable where the file system has put what was written.
//!
//! `fdatasync` promises that written data can be read back after a power cut. ext4 (Linux 6.18)
//! breaks that promise when it has no block for its tree of extents, as on a full file system, or
//! while it discards all of its free space: instead of splitting an unwritten extent it writes
//! zeroes to all of it, marks it as written, and does not note that a sync of data depends on this
//! (`docs/decisions/0050-syncs-of-maps.md`). `fsync` waits for all changes of a file's metadata,
//! those of its timestamps too, which most flushes need not wait for.
//!
//! So a file gets whole syncs as long as a write may have changed where its blocks lie, and syncs
//! of data otherwise. Which blocks are written already, the file system itself says (`SEEK_DATA`).
//!
//! It is a queue between a stage and its leaf, as that of [`turns`](super::turns).

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Slot,
};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};

use super::known::{self, Knowledge, Known};
use super::storage::StoredFile;

/// Where the blocks of one file lie, and whether that is durable. All threads share it.
pub(super) struct FileMap {
    file: Arc<dyn StoredFile>,
    /// All blocks before this one are written; in bytes.
    written_until: AtomicU64,
    known: Mutex<Known>,
    /// Changes of the map that are under way, and those that have ended.
    under_way: AtomicU64,
    changes: AtomicU64,
    /// How many of them a whole sync has covered.
    settled: AtomicU64,
}

impl FileMap {
    /// Of an open file; `None` if its syncs of data keep the promise.
    pub(super) fn of(file: &Arc<dyn StoredFile>) -> Option<Arc<Self>> {
        if !file.data_syncs_may_miss_its_map() {
            return None;
        }
        let length = file.length().unwrap_or(0);
        Some(Arc::new(Self {
            written_until: AtomicU64::new(file.next_hole(0).unwrap_or(0).min(length)),
            known: Mutex::new(Known::new(length)),
            file: Arc::clone(file),
            // What a predecessor changed may not be durable.
            under_way: AtomicU64::new(0),
            changes: AtomicU64::new(1),
            settled: AtomicU64::new(0),
        }))
    }

    /// Whether a write of these bytes leaves the map as it is. In doubt it does not.
    fn is_written(&self, extent: Extent) -> bool {
        if extent.end() <= self.written_until.load(Ordering::SeqCst) {
            return true;
        }
        if !extent.is_aligned_to(BLOCK_BYTES) {
            return false;
        }
        loop {
            let (chunk, changes) = {
                let known = self.known.lock();
                match known.of(extent) {
                    Knowledge::Written => return true,
                    Knowledge::NotAll => return false,
                    Knowledge::Unknown { chunk } => (chunk, known.changes()),
                }
            };
            let Ok(loaded) = known::load(&*self.file, chunk) else { return false };
            let mut known = self.known.lock();
            known.insert(&loaded, changes);
            if known.changes() != changes {
                return false;
            }
        }
    }

    /// Notes that a change of the map begins. The kernel may have made it before its end is known,
    /// and other threads may find its blocks written.
    fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that a change has been made, or has failed half-way.
    fn end(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Notes that the space of these bytes is about to be, or has been, freed or zeroed.
    fn clear(&self, extent: Extent) {
        self.written_until.fetch_min(extent.offset(), Ordering::SeqCst);
        let blocks = extent.narrowed_to(BLOCK_BYTES);
        self.known.lock().clear(blocks);
    }

    /// The changes that the next sync must cover, if there are any.
    fn due(&self) -> Option<u64> {
        let is_under_way = self.under_way.load(Ordering::SeqCst) > 0;
        let changes = self.changes.load(Ordering::SeqCst);
        (is_under_way || changes > self.settled.load(Ordering::SeqCst)).then_some(changes)
    }

    /// Notes that the map is durable as it was after so many changes.
    fn settle(&self, changes: u64) {
        self.settled.fetch_max(changes, Ordering::SeqCst);
    }
}

impl fmt::Debug for FileMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileMap({:?})", self.file)
    }
}

/// A queue that sends whole syncs where syncs of data are not enough.
pub(super) struct SettlingQueue {
    below: Box<dyn FileQueue>,
    maps: Vec<Arc<FileMap>>,
    files: Vec<Registered>,
    sent: InFlight<Sent>,
    below_done: Vec<FileDone>,
}

struct Registered {
    token: FileToken,
    map: Option<Arc<FileMap>>,
}

/// An operation that was sent below. Files are identified by their index.
struct Sent {
    tag: u64,
    file: Option<usize>,
    effect: Effect,
}

enum Effect {
    /// The map stays as it is.
    Keeps,
    /// Blocks are written that were not.
    Writes { extent: Extent, durable: bool },
    /// Blocks are freed or zeroed.
    Clears { extent: Extent },
    /// The map is made durable as it was after so many changes; the buffer is that of a durable
    /// write.
    Settles { changes: u64, written: Option<Buffer> },
}

impl SettlingQueue {
    pub(super) fn over(below: Box<dyn FileQueue>, maps: Vec<Arc<FileMap>>) -> Self {
        Self { below, maps, files: Vec::new(), sent: InFlight::with_depth(0), below_done: Vec::new() }
    }

    fn send(&mut self, sent: Sent, file: FileToken, operation: FileOperation) {
        let tag = self.sent.insert(sent).tag();
        self.below.submit(FileIo { tag, file, operation });
    }

    /// Takes the end of an operation. `None` if another one had to follow it.
    fn finish(&mut self, FileDone { tag, result, buffer }: FileDone) -> Option<FileDone> {
        let sent = Slot::from_tag(tag).and_then(|slot| self.sent.take(slot));
        debug_assert!(sent.is_some(), "the leaf returned what was not submitted");
        let Sent { tag, file, effect } = sent?;
        let registered = file.and_then(|file| self.files.get(file));
        let Some(Registered { token, map: Some(map) }) = registered else {
            return Some(FileDone { tag, result, buffer });
        };
        match effect {
            Effect::Keeps => {}
            Effect::Clears { extent } => {
                map.clear(extent);
                map.end();
            }
            Effect::Writes { extent, durable } => {
                if result.is_ok() {
                    map.known.lock().set(extent);
                }
                map.end();
                if durable && result.is_ok() {
                    let (token, changes) = (*token, map.changes.load(Ordering::SeqCst));
                    let effect = Effect::Settles { changes, written: buffer };
                    self.send(Sent { tag, file, effect }, token, FileOperation::Sync);
                    return None;
                }
            }
            Effect::Settles { changes, written } => {
                if result.is_ok() {
                    map.settle(changes);
                }
                return Some(FileDone { tag, result, buffer: written });
            }
        }
        Some(FileDone { tag, result, buffer })
    }
}

/// What an operation does to the map, and the operation as the file system must get it.
fn prepare(map: &FileMap, mut operation: FileOperation) -> (Effect, FileOperation) {
    let mut effect = Effect::Keeps;
    match &mut operation {
        FileOperation::Write { offset, from, durable } => {
            let extent = Extent::new(*offset, from.len() as u64).unwrap_or_default();
            if !map.is_written(extent) || *durable && map.due().is_some() {
                map.begin();
                effect = Effect::Writes { extent, durable: mem::take(durable) };
            }
        }
        FileOperation::SyncData => {
            if let Some(changes) = map.due() {
                operation = FileOperation::Sync;
                effect = Effect::Settles { changes, written: None };
            }
        }
        FileOperation::Punch { extent } | FileOperation::Zero { extent } => {
            map.begin();
            map.clear(*extent);
            effect = Effect::Clears { extent: *extent };
        }
        FileOperation::Read { .. } | FileOperation::Sync | FileOperation::Allocate { .. } => {}
    }
    (effect, operation)
}

impl FileQueue for SettlingQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        // Stages register files of their own, which show the one below.
        let identity = |file: &dyn DataFile| std::ptr::from_ref(file.as_any()).addr();
        let map = self.maps.iter().find(|map| identity(&*map.file) == identity(&*file)).cloned();
        let token = self.below.register(file)?;
        self.files.push(Registered { token, map });
        Ok(token)
    }

    fn submit(&mut self, io: FileIo) {
        let FileIo { tag, file: token, operation } = io;
        // An operation on an unknown file is refused below.
        let file = self.files.iter().position(|file| file.token == token);
        let map = file.and_then(|file| self.files[file].map.as_deref());
        let (effect, operation) = match map {
            Some(map) => prepare(map, operation),
            None => (Effect::Keeps, operation),
        };
        self.send(Sent { tag, file, effect }, token, operation);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        let mut below_done = mem::take(&mut self.below_done);
        self.below.poll(&mut below_done);
        let (before, ended) = (done.len(), below_done.len());
        done.extend(below_done.drain(..).filter_map(|done| self.finish(done)));
        self.below_done = below_done;
        if done.len() - before < ended {
            self.below.kick();
        }
    }
}

#[cfg(test)]
#[path = "settled_tests.rs"]
mod tests;
