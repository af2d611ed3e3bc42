//! The operations that a volume needs from a file system: names, and the files that they open.
//!
//! [`BY_PATH`] is the host's own, and clusters that are mounted; a simulated one can lose power at
//! any of these calls. An operation is done when its call returns, and durable when the sync that
//! covers it returns. I/O on blocks does not pass through here: it goes through the thread's
//! queues, to which an open file is a [`DataFile`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_io::DataFile;

use super::error::DatastoreError;
use super::filesystem::FileSystem;

pub use super::host::adopt_host_file;
pub use super::mounts::{BY_PATH, CLUSTERS, cluster_of, cluster_path, mount, storage_of, unmount};
pub use super::small_files::{file_system_of, is_gone, read_file, remove_file, replace_file};

/// A file system, by paths.
pub trait Storage: Send + Sync {
    /// Opens the directory of a datastore, or of a VM in one.
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno>;

    /// Opens the directory of a volume. A link is an error (`LOOP`): a datastore must not be able
    /// to name directories outside it. A file system without links has nothing to refuse.
    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        self.open_directory(path)
    }

    /// Makes a directory that only its owner can enter.
    fn make_directory(&self, path: &Path) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> Result<(), Errno>;

    /// Renames without replacing (`RENAME_NOREPLACE`): an existing file of the new name is an
    /// error.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno>;

    /// Whether the path exists, even as a link.
    fn exists(&self, path: &Path) -> bool;

    /// Whether the path leads to a directory.
    fn is_directory(&self, path: &Path) -> bool;
}

impl Storage for &dyn Storage {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        (**self).open_directory(path)
    }

    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        (**self).open_volume(path)
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        (**self).make_directory(path)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        (**self).remove_directory(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        (**self).rename(from, to)
    }

    fn exists(&self, path: &Path) -> bool {
        (**self).exists(path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        (**self).is_directory(path)
    }
}

/// What an entry of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Something else, such as a link or a socket.
    Other,
}

/// An open file or directory that can be locked with `flock(2)`.
pub trait Lockable {
    /// Takes the lock, or fails with `WOULDBLOCK` if another process holds it.
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno>;

    /// The process that holds the lock, if the kernel reports it.
    fn lock_holder(&self) -> Option<u32>;
}

/// An open directory.
pub trait Directory: Lockable + Send + Sync {
    /// The kernel's directory, if it is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The file system that it lies on, or why that cannot hold volumes.
    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError>;

    /// Opens a file. A new file is accessible only to its owner. Links are not followed.
    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno>;

    /// The names in it, sorted.
    fn names(&self) -> Result<Vec<String>, Errno>;

    /// What an entry is. Links are not followed.
    fn kind(&self, name: &str) -> Result<EntryKind, Errno> {
        match self.open(name, OFlags::RDONLY) {
            Ok(_) => Ok(EntryKind::File),
            Err(Errno::ISDIR) => Ok(EntryKind::Directory),
            Err(errno) => Err(errno),
        }
    }

    /// Renames one of its files, over another if there is one.
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno>;

    /// Removes a file's name. Its content stays as long as it has another one.
    fn remove(&self, name: &str) -> Result<(), Errno>;

    /// Gives a file of the directory `from` the same name here too (a hard link). `file` is that
    /// file, open: if another one has the name there by now, it is an error (`STALE`).
    fn link(&self, from: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno>;

    /// Bytes that a file occupies.
    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno>;

    /// The number of names that a file has on its file system.
    fn link_count(&self, name: &str) -> Result<u64, Errno>;

    /// Makes its names durable.
    fn sync(&self) -> Result<(), Errno>;

    /// Makes everything on its file system durable (`syncfs`): this syncs a file without a sync
    /// call on that file.
    fn sync_file_system(&self) -> Result<(), Errno>;
}

/// Makes a file of a descriptor that another process [shared](StoredFile::share).
pub type Adopt = fn(OwnedFd) -> Arc<dyn StoredFile>;

/// An open file.
pub trait StoredFile: DataFile + Lockable {
    /// Its length in bytes; `NOTSUP` if it is no regular file.
    fn length(&self) -> Result<u64, Errno>;

    /// The number of names that it has on its file system.
    fn link_count(&self) -> Result<u64, Errno>;

    /// Makes it longer or shorter; the new part is a hole.
    fn set_length(&self, bytes: u64) -> Result<(), Errno>;

    /// Allocates space for these bytes, and extends the file to their end if it is shorter.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Reads from `offset` on. Returns how many bytes there were before the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of `from` at `offset`.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Asks the file system to begin writing these bytes to the disk, and to drop them from its
    /// cache, so that a later sync has less to do. It guarantees nothing.
    fn begin_sync(&self, _offset: u64, _bytes: u64) {}

    /// Makes its content and length durable.
    fn sync(&self) -> Result<(), Errno>;

    /// A descriptor with which another process has the same open file, and shares its lock.
    fn share(&self) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Becomes readable when the process that does this file's I/O has ended; `None` if that is the
    /// kernel.
    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether a sync of its data may miss changes of where its blocks lie, which a whole sync
    /// covers.
    fn data_syncs_may_miss_its_map(&self) -> bool {
        false
    }

    /// The first byte of data from `at` on (`SEEK_DATA`), or `NXIO`.
    fn next_data(&self, at: u64) -> Result<u64, Errno>;

    /// The first byte from `at` on that is not data (`SEEK_HOLE`); the end of the file counts as
    /// one.
    fn next_hole(&self, at: u64) -> Result<u64, Errno>;
}
