//! A file system that breaks one rule of the datastore on purpose: the datastore that breaks it, as its disk sees it.
//! Each has to be caught. What a thread's queues break is in `broken_queue`.

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem};
use strongroom_io::DataFile;
use strongroom_sim::SimFs;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A flush is acknowledged without fdatasync.
    FlushWithoutSync,
    /// A durable write is written as any other.
    DurableWriteWithoutSync,
    /// A durable zeroing, which the flush that should follow never does.
    DurableZeroWithoutSync,
    /// After a failed fdatasync the next one is believed.
    StickyFailureForgotten,
    /// A descriptor gets its name before its content is durable.
    DescriptorNotSynced,
    /// A descriptor is replaced in two steps.
    DescriptorRemovedFirst,
    /// Names are not made durable.
    DirectoryNotSynced,
    /// A layer gets its size and does not keep it durably.
    LayerNotSynced,
    /// A layer grows after its descriptor says so.
    LayerGrownAfterDescriptor,
    /// A zeroing is acknowledged when it is submitted.
    ZeroAcknowledgedEarly,
    /// A flush syncs the log alone.
    FlushForgetsLayer,
    /// A flush syncs the layer alone.
    FlushForgetsLog,
    /// Blocks are written to their places before the log that holds them is durable.
    DestagedBeforeLogIsDurable,
    /// The log's tail passes blocks that are not durable in the layer.
    TrimmedBeforeLayerIsDurable,
    /// Blocks are overwritten in place before the log's tail has durably passed them.
    TailNotDurable,
    /// Blocks that became nothing in the log are left in the layer.
    ClearsNotDestaged,
    /// Syncs of a file run beside each other where the file system acknowledges some of them early.
    SyncsSideBySide,
    /// A block becomes nothing before it is durable that it hides the layers below.
    DiscardRecordNotDurable,
    /// That it does is never written.
    DiscardRecordForgotten,
    /// Of two records of one page the first overwrites the second.
    DiscardRecordsOverwrite,
    /// A read ends at the top layer.
    ReadStopsAtTop,
    /// A layer is put on one that is not durable.
    OldTopNotSynced,
    /// A layer is named before it is durable itself.
    NewTopNotSynced,
    /// The log of the old top goes before the descriptor that needs none is durable.
    LogRemovedEarly,
}

pub struct Broken<T> {
    below: T,
    mutation: Mutation,
}

/// A rule that is broken all along a life, and what has to be known for that.
#[derive(Clone, Debug)]
pub struct Mutation {
    pub rule: Rule,
    pub shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub struct Shared {
    /// What was put off until the next sync of the directory: a layer's new length.
    put_off: Mutex<Vec<(String, u64)>>,
    /// What the open files are called, by where the file below is.
    names: Mutex<BTreeMap<usize, String>>,
    /// The file of the layer that takes writes.
    pub top: Mutex<String>,
    /// A layer is being added.
    adding: AtomicBool,
    /// And the descriptor that says so has its name.
    named: AtomicBool,
    /// Pages of the records of discards as they should have been written last, by file and place.
    pub pages: Mutex<BTreeMap<(String, u64), Vec<u8>>>,
}

impl Mutation {
    pub fn new(rule: Rule) -> Self {
        Self { rule, shared: Arc::default() }
    }

    /// The file system that a datastore which breaks the rule has.
    pub fn storage(&self, below: SimFs) -> Box<dyn Storage> {
        Box::new(Broken { below, mutation: self.clone() })
    }
}

impl Shared {
    /// What an open file is called.
    pub fn name_of(&self, file: &Arc<dyn DataFile>) -> String {
        self.names.lock().unwrap().get(&place_of(file.as_any())).cloned().unwrap_or_default()
    }

    /// A layer is being added, or is not any more.
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
        Ok(Arc::new(Broken { below, mutation: self.mutation.clone() }))
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

impl AsFd for Broken<AnyDirectory> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.below.as_fd()
    }
}

impl Lockable for Broken<AnyDirectory> {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        self.below.try_lock(operation)
    }

    fn lock_holder(&self) -> Option<u32> {
        self.below.lock_holder()
    }
}

impl Directory for Broken<AnyDirectory> {
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
        self.mutation.shared.names.lock().unwrap().insert(place_of(file.as_any()), name.to_owned());
        let is_new = flags.contains(OFlags::CREATE);
        Ok(Box::new(BrokenFile { file, name: name.to_owned(), is_new, mutation: self.mutation.clone() }))
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

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        self.below.allocated_bytes(name)
    }

    fn sync(&self) -> Result<(), Errno> {
        let Mutation { rule, shared } = &self.mutation;
        let is_early = *rule == Rule::LogRemovedEarly && shared.named.load(Ordering::SeqCst);
        if *rule == Rule::DirectoryNotSynced || is_early {
            return Ok(());
        }
        self.below.sync()?;
        for (name, bytes) in shared.put_off.lock().unwrap().drain(..) {
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
    mutation: Mutation,
}

impl BrokenFile {
    fn is_layer(&self) -> bool {
        self.name.starts_with("layer-")
    }

    /// Whether this growth of a layer is put off.
    fn put_off(&self, bytes: u64) -> bool {
        let puts_off = self.mutation.rule == Rule::LayerGrownAfterDescriptor
            && self.is_layer()
            && self.file.length().is_ok_and(|length| length > 0);
        if puts_off {
            self.mutation.shared.put_off.lock().unwrap().push((self.name.clone(), bytes));
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
        self.file.write_at(offset, from)
    }

    fn sync(&self) -> Result<(), Errno> {
        let is_adding = self.mutation.shared.is_adding();
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
