//! A file system that breaks one rule of the datastore on purpose, which looks to the disk like a
//! datastore that breaks it. Each must be caught. Rules that a thread's queues break are in
//! `broken_queue`.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem};
use strongroom_io::DataFile;
use strongroom_sim::SimFs;
use strongroom_types::BLOCK_BYTES;

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A flush is acknowledged without fdatasync.
    FlushWithoutSync,
    /// A durable write is written like any other.
    DurableWriteWithoutSync,
    /// A durable zeroing is not followed by its flush.
    DurableZeroWithoutSync,
    /// After a failed fdatasync the next one is trusted.
    StickyFailureForgotten,
    /// A descriptor gets its name before its content is durable.
    DescriptorNotSynced,
    /// A descriptor is replaced in two steps.
    DescriptorRemovedFirst,
    /// Names are not made durable.
    DirectoryNotSynced,
    /// A layer's size is not made durable.
    LayerNotSynced,
    /// A layer grows only after its descriptor.
    LayerGrownAfterDescriptor,
    /// A zeroing is acknowledged when it is submitted.
    ZeroAcknowledgedEarly,
    /// A flush syncs only the log.
    FlushForgetsLayer,
    /// A flush syncs only the layer.
    FlushForgetsLog,
    /// A flush syncs only the top, and not the incomplete layer below it.
    FlushForgetsLowerLayer,
    /// Blocks are destaged before the log that holds them is durable.
    DestagedBeforeLogIsDurable,
    /// The log's tail passes blocks that are not durable in the layer.
    TrimmedBeforeLayerIsDurable,
    /// Blocks are overwritten in place before the log's tail has durably passed them.
    TailNotDurable,
    /// Blocks that were cleared in the log are left in the layer.
    ClearsNotDestaged,
    /// Syncs of a file overlap on a file system that acknowledges some of them early.
    SyncsSideBySide,
    /// A block is freed before the record that hides the layers below is durable.
    DiscardRecordNotDurable,
    /// That record is never written.
    DiscardRecordForgotten,
    /// The first of two records of one page overwrites the second.
    DiscardRecordsOverwrite,
    /// A read ends at the top layer.
    ReadStopsAtTop,
    /// A layer is added over one that is not durable.
    OldTopNotSynced,
    /// A layer is named before it is durable.
    NewTopNotSynced,
    /// The old top's log is removed before the descriptor without a log is durable.
    LogRemovedEarly,
    /// A volume is opened although its descriptor's name may be lost in a power cut.
    OpenedWithoutDirectorySync,
    /// A volume is opened although its own name may be lost in a power cut.
    OpenedWithoutDatastoreSync,
    /// The log found on opening is relied on without being durable.
    FoundLogNotSynced,
    /// The same for a log that was closed empty.
    ClosedLogNotSynced,
    /// The same for the record of discards.
    FoundDiscardsNotSynced,
    /// A linked clone gets its name before the names of its files are durable.
    LinksNotSynced,
    /// The name of a volume that moves to another datastore is not durable there.
    PlaceNotSynced,
}

pub struct Broken<T> {
    below: T,
    /// The path of a directory.
    path: PathBuf,
    mutation: Mutation,
}

/// A rule that is broken during a whole life, with the state for that.
#[derive(Clone, Debug)]
pub struct Mutation {
    pub rule: Rule,
    pub shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub struct Shared {
    /// Layers' new lengths, deferred until the next sync of the directory.
    put_off: Mutex<Vec<(String, u64)>>,
    /// The names of open files, by the address of the file below.
    names: Mutex<BTreeMap<usize, String>>,
    /// The file of the writable layer.
    pub top: Mutex<String>,
    /// A volume is being opened.
    opening: AtomicBool,
    /// A layer is being added.
    adding: AtomicBool,
    /// The descriptor with the new layer has its name.
    named: AtomicBool,
    /// The correct last content of pages of the records of discards, by file and offset.
    pub pages: Mutex<BTreeMap<(String, u64), Vec<u8>>>,
}

impl Mutation {
    pub fn new(rule: Rule) -> Self {
        Self { rule, shared: Arc::default() }
    }

    /// The file system of a datastore that breaks the rule.
    pub fn storage(&self, below: SimFs) -> Box<dyn Storage> {
        Box::new(Broken { below, path: PathBuf::new(), mutation: self.clone() })
    }

    /// Marks the opening of a volume, until the guard is dropped.
    pub fn opening(&self) -> Opening {
        self.shared.opening.store(true, Ordering::SeqCst);
        Opening(Arc::clone(&self.shared))
    }

    fn is_broken_by_opening(&self, rule: Rule) -> bool {
        self.rule == rule && self.shared.opening.load(Ordering::SeqCst)
    }
}

/// A guard during which a volume is being opened.
pub struct Opening(Arc<Shared>);

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.opening.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    /// The name of an open file.
    pub fn name_of(&self, file: &Arc<dyn DataFile>) -> String {
        self.names.lock().get(&place_of(file.as_any())).cloned().unwrap_or_default()
    }

    /// Marks the beginning or end of adding a layer.
    pub fn set_adding(&self, is_adding: bool) {
        self.adding.store(is_adding, Ordering::SeqCst);
        self.named.store(false, Ordering::SeqCst);
    }

    fn is_adding(&self) -> bool {
        self.adding.load(Ordering::SeqCst)
    }
}

fn place_of(file: &dyn Any) -> usize {
    std::ptr::from_ref(file).addr()
}

impl Storage for Broken<SimFs> {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let below = Storage::open_directory(&self.below, path)?;
        Ok(Arc::new(Broken { below, path: path.to_owned(), mutation: self.mutation.clone() }))
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        self.below.make_directory(path)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        self.below.remove_directory(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        Storage::rename(&self.below, from, to)
    }

    fn exists(&self, path: &Path) -> bool {
        self.below.exists(path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.below.is_directory(path)
    }
}

type AnyDirectory = Arc<dyn Directory>;

impl Lockable for Broken<AnyDirectory> {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        self.below.try_lock(operation)
    }

    fn lock_holder(&self) -> Option<u32> {
        self.below.lock_holder()
    }
}

impl Directory for Broken<AnyDirectory> {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.as_fd()
    }

    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError> {
        let found = self.below.file_system(path)?;
        let syncs_in_turn = found.syncs_in_turn && self.mutation.rule != Rule::SyncsSideBySide;
        Ok(FileSystem { syncs_in_turn, ..found })
    }

    fn sync_file_system(&self) -> Result<(), Errno> {
        self.below.sync_file_system()
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        let file = self.below.open(name, flags)?;
        self.mutation.shared.names.lock().insert(place_of(file.as_any()), name.to_owned());
        let is_new = flags.contains(OFlags::CREATE);
        let (name, mutation) = (name.to_owned(), self.mutation.clone());
        Ok(Box::new(BrokenFile { file, name, is_new, left_as_it_is: AtomicBool::new(false), mutation }))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        self.below.names()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        if self.mutation.rule == Rule::DescriptorRemovedFirst {
            match self.below.remove(to) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.below.rename(from, to)?;
        self.mutation.shared.named.store(self.mutation.shared.is_adding(), Ordering::SeqCst);
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        self.below.remove(name)
    }

    fn link(&self, from: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno> {
        self.below.link(from, name, file)
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        self.below.allocated_bytes(name)
    }

    fn link_count(&self, name: &str) -> Result<u64, Errno> {
        self.below.link_count(name)
    }

    fn sync(&self) -> Result<(), Errno> {
        let Mutation { rule, shared } = &self.mutation;
        let is_early = *rule == Rule::LogRemovedEarly && shared.named.load(Ordering::SeqCst);
        let unsynced = if self.path.ends_with("ds") {
            Rule::OpenedWithoutDatastoreSync
        } else {
            Rule::OpenedWithoutDirectorySync
        };
        let is_hidden = self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let is_place = *rule == Rule::PlaceNotSynced && self.path.ends_with("other");
        if (*rule == Rule::LinksNotSynced && is_hidden) || is_place {
            return Ok(());
        }
        if *rule == Rule::DirectoryNotSynced || is_early || self.mutation.is_broken_by_opening(unsynced) {
            return Ok(());
        }
        self.below.sync()?;
        for (name, bytes) in shared.put_off.lock().drain(..) {
            let file = self.below.open(&name, OFlags::RDWR)?;
            file.set_length(bytes)?;
            file.sync()?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct BrokenFile {
    file: Box<dyn StoredFile>,
    name: String,
    is_new: bool,
    /// The last write was skipped, because it would have changed nothing.
    left_as_it_is: AtomicBool,
    mutation: Mutation,
}

impl BrokenFile {
    fn is_layer(&self) -> bool {
        self.name.starts_with("layer-")
    }

    /// Whether the broken rule skips the rewrite and sync of this file that opening a volume
    /// requires.
    fn leaves_as_it_is(&self) -> bool {
        let log = if self.is_closed_log() { Rule::ClosedLogNotSynced } else { Rule::FoundLogNotSynced };
        self.name.starts_with("log-") && self.mutation.is_broken_by_opening(log)
            || self.name.starts_with("discards-")
                && self.mutation.is_broken_by_opening(Rule::FoundDiscardsNotSynced)
    }

    /// Whether, by the newest superblock, the log was closed empty.
    fn is_closed_log(&self) -> bool {
        let mut superblocks = vec![0; 2 * BLOCK_BYTES as usize];
        let word = |superblock: &[u8], at: usize| {
            u64::from_le_bytes(superblock[at..at + 8].try_into().unwrap_or_default())
        };
        let is_read = self.file.read_at(0, &mut superblocks).is_ok();
        let newest = superblocks.chunks(BLOCK_BYTES as usize).max_by_key(|found| word(found, 40));
        is_read && newest.is_some_and(|found| word(found, 56) != 0)
    }

    /// Whether this growth of a layer is deferred.
    fn put_off(&self, bytes: u64) -> bool {
        let puts_off = self.mutation.rule == Rule::LayerGrownAfterDescriptor
            && self.is_layer()
            && self.file.length().is_ok_and(|length| length > 0);
        if puts_off {
            self.mutation.shared.put_off.lock().push((self.name.clone(), bytes));
        }
        puts_off
    }
}

impl DataFile for BrokenFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self.file.as_any()
    }
}

impl Lockable for BrokenFile {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        self.file.try_lock(operation)
    }

    fn lock_holder(&self) -> Option<u32> {
        None
    }
}

impl StoredFile for BrokenFile {
    fn length(&self) -> Result<u64, Errno> {
        self.file.length()
    }

    fn link_count(&self) -> Result<u64, Errno> {
        self.file.link_count()
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        if self.put_off(bytes) { Ok(()) } else { self.file.set_length(bytes) }
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        if self.put_off(offset + bytes) { Ok(()) } else { self.file.allocate(offset, bytes) }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if self.leaves_as_it_is() {
            let mut found = vec![0; from.len()];
            let is_same = self.file.read_at(offset, &mut found)? == from.len() && found == from;
            self.left_as_it_is.store(is_same, Ordering::SeqCst);
            if is_same {
                return Ok(());
            }
        }
        self.file.write_at(offset, from)
    }

    fn sync(&self) -> Result<(), Errno> {
        let is_adding = self.mutation.shared.is_adding();
        if self.left_as_it_is.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        match self.mutation.rule {
            Rule::OldTopNotSynced if is_adding && self.is_layer() && !self.is_new => Ok(()),
            Rule::NewTopNotSynced if is_adding && self.is_layer() && self.is_new => Ok(()),
            Rule::DescriptorNotSynced if !self.is_layer() => Ok(()),
            Rule::LayerNotSynced if self.is_layer() => Ok(()),
            _ => self.file.sync(),
        }
    }

    fn next_data(&self, at: u64) -> Result<u64, Errno> {
        self.file.next_data(at)
    }

    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        self.file.next_hole(at)
    }
}
