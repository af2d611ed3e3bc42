//! The `file` datastore on simulated files.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem, FileSystemKind};
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::file::{SimDirectory, SimFile};
use crate::fs::{OpenHow, SimFs};

/// Small enough that the histories of tiny volumes have writes below and above it.
const FILL_BYTES_MIN: u64 = 2 * BLOCK_BYTES;
/// The reported size of a file system without a limit: enough for any test.
const UNLIMITED_BYTES: u64 = 1 << 50;

impl Storage for SimFs {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        Ok(Arc::new(SimFs::open_directory(self, path)?))
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        SimFs::make_directory(self, path)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        SimFs::remove_directory(self, path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        self.rename_no_replace(from, to)
    }

    fn exists(&self, path: &Path) -> bool {
        SimFs::exists(self, path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        SimFs::is_directory(self, path)
    }
}

impl Directory for SimDirectory {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn file_system(&self, _: &Path) -> Result<FileSystem, DatastoreError> {
        let state = self.fs.state();
        Ok(FileSystem {
            kind: FileSystemKind::Ext4,
            writes_whole_blocks: false,
            reserves_space: true,
            fill_bytes_min: state.habits.fills_whole.then_some(FILL_BYTES_MIN),
            syncs_in_turn: state.habits.skips_overlapping_syncs,
            total_bytes: state.capacity_bytes.unwrap_or(UNLIMITED_BYTES),
            available_bytes: state.free_bytes().unwrap_or(UNLIMITED_BYTES),
            redundancy: None,
        })
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        let how = OpenHow {
            write: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
            create: flags.contains(OFlags::CREATE),
            exclusive: flags.contains(OFlags::EXCL),
            truncate: flags.contains(OFlags::TRUNC),
        };
        Ok(Box::new(SimDirectory::open(self, name, how)?))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        SimDirectory::names(self)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        SimDirectory::rename(self, from, to)
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        self.unlink(name)
    }

    fn link(&self, _from: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno> {
        SimDirectory::link(self, name, file.as_any().downcast_ref::<SimFile>().ok_or(Errno::XDEV)?)
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        SimDirectory::allocated_bytes(self, name)
    }

    fn link_count(&self, name: &str) -> Result<u64, Errno> {
        SimDirectory::link_count(self, name)
    }

    fn sync(&self) -> Result<(), Errno> {
        SimDirectory::sync(self)
    }

    fn sync_file_system(&self) -> Result<(), Errno> {
        SimDirectory::sync_file_system(self)
    }
}

impl Lockable for SimDirectory {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        SimDirectory::try_lock(self, is_exclusive(operation)?)
    }

    fn lock_holder(&self) -> Option<u32> {
        None
    }
}

impl Lockable for SimFile {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        SimFile::try_lock(self, is_exclusive(operation)?)
    }

    fn lock_holder(&self) -> Option<u32> {
        None
    }
}

fn is_exclusive(operation: FlockOperation) -> Result<bool, Errno> {
    match operation {
        FlockOperation::NonBlockingLockExclusive => Ok(true),
        FlockOperation::NonBlockingLockShared => Ok(false),
        // There is only one thread, so no other could release the lock.
        _ => Err(Errno::DEADLK),
    }
}

impl StoredFile for SimFile {
    fn length(&self) -> Result<u64, Errno> {
        SimFile::length(self)
    }

    fn link_count(&self) -> Result<u64, Errno> {
        SimFile::link_count(self)
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        SimFile::set_length(self, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        SimFile::allocate(self, Extent::new(offset, bytes).map_err(|_| Errno::INVAL)?)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        SimFile::read_at(self, offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        SimFile::write_at(self, offset, from)
    }

    fn sync(&self) -> Result<(), Errno> {
        SimFile::sync(self)
    }

    fn next_data(&self, at: u64) -> Result<u64, Errno> {
        SimFile::next_data(self, at)
    }

    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        SimFile::next_hole(self, at)
    }
}
