//! What a volume asks of a file system: names, and files that are opened by them.
//!
//! The host's own is [`HOST`]; a simulated one loses power at any of these calls. What is asked for
//! here is done when the call returns, and durable when the sync that covers it returns. I/O on
//! blocks does not pass through here: it goes through the thread's queues, to which an open file is
//! a [`DataFile`].

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_io::DataFile;

use super::error::DatastoreError;
use super::filesystem::FileSystem;

pub use super::host::HOST;

/// A file system, by paths.
pub trait Storage: Send + Sync {
    /// Opens the directory of a datastore, or of a VM in one.
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno>;

    /// Opens the directory of a volume. A link is an error (`LOOP`): a datastore is not trusted to
    /// name directories outside of it. A file system without links has nothing to refuse.
    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        self.open_directory(path)
    }

    /// Makes a directory that only its owner can enter.
    fn make_directory(&self, path: &Path) -> Result<(), Errno>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> Result<(), Errno>;

    /// Renames; what has the new name already stays, and is an error (`RENAME_NOREPLACE`).
    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno>;

    /// Whether the path leads to anything, be it a link.
    fn exists(&self, path: &Path) -> bool;

    /// Whether the path leads to a directory.
    fn is_directory(&self, path: &Path) -> bool;
}

/// What can be locked with `flock(2)`: an open file or directory.
pub trait Lockable {
    /// Takes the lock, or says that it is held by another (`WOULDBLOCK`).
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno>;

    /// The process that holds it, where the kernel tells.
    fn lock_holder(&self) -> Option<u32>;
}

/// An open directory, and what its names lead to.
pub trait Directory: Lockable + AsFd + Send + Sync {
    /// The file system that it lies on, or why volumes cannot.
    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError>;

    /// Opens a file; a new one is its owner's alone. Links are not followed.
    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno>;

    /// The names in it, sorted.
    fn names(&self) -> Result<Vec<String>, Errno>;

    /// Renames one of its files, over another if there is one.
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno>;

    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), Errno>;

    /// Bytes that a file takes.
    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno>;

    /// Makes its names durable.
    fn sync(&self) -> Result<(), Errno>;

    /// Makes everything on its file system durable (`syncfs`): a way to sync a file that is no sync
    /// of that file.
    fn sync_file_system(&self) -> Result<(), Errno>;
}

/// An open file.
pub trait StoredFile: DataFile + Lockable {
    /// Its length in bytes; an error for what is no regular file (`NOTSUP`).
    fn length(&self) -> Result<u64, Errno>;

    /// Makes it longer or shorter; what is new is a hole.
    fn set_length(&self, bytes: u64) -> Result<(), Errno>;

    /// Takes space for these bytes, and makes the file as long as they reach.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Reads from `offset` on; says how many bytes there were before the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno>;

    /// Writes all of it from `offset` on.
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Has the file system begin to bring these bytes to the disk, which need not stay in its
    /// cache: so that a sync that follows a long piece of writing does not begin with the first of
    /// them. Nothing is promised.
    fn begin_sync(&self, _offset: u64, _bytes: u64) {}

    /// Makes it durable, content and length.
    fn sync(&self) -> Result<(), Errno>;

    /// The first byte of data from `at` on (`SEEK_DATA`), or `NXIO`.
    fn next_data(&self, at: u64) -> Result<u64, Errno>;

    /// The first byte from `at` on that is no data (`SEEK_HOLE`); the end of the file is none.
    fn next_hole(&self, at: u64) -> Result<u64, Errno>;
}
