//! A file system, or a thread's queues, that break one rule of the datastore on purpose: the datastore that breaks it, as its
//! disk sees it. Each has to be caught.

use std::any::Any;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem};
use strongroom_io::{DataFile, FileDone, FileIo, FileOperation, FileToken, Reactor};
use strongroom_sim::{SimFs, SimReactor};

use super::interposed::{Between, Fate, Interposed};

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
}

/// Whose queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Guest,
    Destager,
}

pub struct Broken<T> {
    below: T,
    rule: Rule,
    shared: Arc<Shared>,
}

/// What was put off until the next sync of the directory: a layer's new length.
#[derive(Default)]
struct Shared {
    put_off: Mutex<Vec<(String, u64)>>,
}

impl Broken<SimFs> {
    pub fn storage(below: SimFs, rule: Rule) -> Self {
        Self { below, rule, shared: Arc::default() }
    }
}

impl Rule {
    /// The reactor of a thread that breaks it.
    pub fn over(self, below: SimReactor, whose: Whose) -> Rc<dyn Reactor> {
        let make = move || {
            let (zeroing, files) = (BTreeSet::new(), Vec::new());
            BrokenQueue { rule: self, whose, zeroing, swallows: 0, files }
        };
        Rc::new(Interposed { below, make })
    }
}

impl Storage for Broken<SimFs> {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        let below = Storage::open_directory(&self.below, path)?;
        Ok(Arc::new(Broken { below, rule: self.rule, shared: Arc::clone(&self.shared) }))
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
        let syncs_in_turn = found.syncs_in_turn && self.rule != Rule::SyncsSideBySide;
        Ok(FileSystem { syncs_in_turn, ..found })
    }

    fn sync_file_system(&self) -> Result<(), Errno> {
        self.below.sync_file_system()
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        let file = self.below.open(name, flags)?;
        Ok(Box::new(BrokenFile {
            file,
            name: name.to_owned(),
            rule: self.rule,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        self.below.names()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        if self.rule == Rule::DescriptorRemovedFirst {
            match self.below.remove(to) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        self.below.remove(name)
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        self.below.allocated_bytes(name)
    }

    fn sync(&self) -> Result<(), Errno> {
        if self.rule == Rule::DirectoryNotSynced {
            return Ok(());
        }
        self.below.sync()?;
        for (name, bytes) in self.shared.put_off.lock().unwrap().drain(..) {
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
    rule: Rule,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl BrokenFile {
    fn is_layer(&self) -> bool {
        self.name.starts_with("layer-")
    }

    /// Whether this growth of a layer is put off.
    fn put_off(&self, bytes: u64) -> bool {
        let puts_off = self.rule == Rule::LayerGrownAfterDescriptor
            && self.is_layer()
            && self.file.length().is_ok_and(|length| length > 0);
        if puts_off {
            self.shared.put_off.lock().unwrap().push((self.name.clone(), bytes));
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
        match self.rule {
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

/// What a thread's queues do with their operations.
struct BrokenQueue {
    rule: Rule,
    whose: Whose,
    /// Zeroings on their way.
    zeroing: BTreeSet<u64>,
    /// So many of the next flushes belong to zeroings.
    swallows: usize,
    /// The layer, and then its log.
    files: Vec<FileToken>,
}

impl Between for BrokenQueue {
    fn registers(&mut self, _file: &Arc<dyn DataFile>, token: FileToken) {
        self.files.push(token);
    }

    fn submits(&mut self, mut io: FileIo) -> Fate {
        let is_log = self.files.get(1) == Some(&io.file);
        match (&mut io.operation, self.rule, self.whose) {
            (FileOperation::SyncData, Rule::FlushForgetsLayer, Whose::Guest) if !is_log => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushForgetsLog, Whose::Guest) if is_log => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::DestagedBeforeLogIsDurable, Whose::Destager) if is_log => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::TrimmedBeforeLayerIsDurable, Whose::Destager) if !is_log => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { durable, .. }, Rule::TailNotDurable, Whose::Destager) if is_log => {
                *durable = false;
            }
            (FileOperation::Punch { .. }, Rule::ClearsNotDestaged, Whose::Destager) => {
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::SyncData, Rule::FlushWithoutSync, _) => return Fate::Ends(io, Ok(())),
            (FileOperation::SyncData, Rule::DurableZeroWithoutSync, _) if self.swallows > 0 => {
                self.swallows -= 1;
                return Fate::Ends(io, Ok(()));
            }
            (FileOperation::Write { durable, .. }, Rule::DurableWriteWithoutSync, _) => *durable = false,
            (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::DurableZeroWithoutSync, _) => {
                self.zeroing.insert(io.tag);
            }
            (FileOperation::Punch { .. } | FileOperation::Zero { .. }, Rule::ZeroAcknowledgedEarly, _) => {
                return Fate::DoneLater(io);
            }
            _ => {}
        }
        Fate::Done(io)
    }

    fn polls(&mut self) {
        self.swallows = 0;
    }

    fn ended(&mut self, done: &mut FileDone) {
        if self.zeroing.remove(&done.tag) {
            self.swallows += 1;
        }
        let was_sync = done.buffer.is_none();
        if self.rule == Rule::StickyFailureForgotten && was_sync && done.result.is_err() {
            // The kernel would say so to whoever asks again.
            done.result = Ok(());
        }
    }
}
