//! What a datastore needs of the leaf below it: file operations that complete later.
//!
//! `ring` does them with io_uring. A simulated file system with power cuts does them too, which is
//! why no datastore names io_uring.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use strongroom_memory::Buffer;
use strongroom_types::Extent;

use crate::error::IoError;

/// A file that queues of several threads do I/O on. Its lock and its life are its owner's business;
/// a queue holds the `Arc` while an operation is in flight.
pub trait DataFile: Send + Sync + fmt::Debug {
    /// The kernel's file, where it is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// For a leaf that brings files of its own kind.
    fn as_any(&self) -> &dyn Any;
}

/// A file known to one [`FileQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileToken(pub u32);

/// What is asked of a file.
#[derive(Debug)]
pub enum FileOperation {
    /// Fill the buffer from this byte on. The end of the file before the buffer's is an error.
    Read {
        /// First byte.
        offset: u64,
        /// Where to; its length says how much.
        into: Buffer,
    },
    /// Write the buffer from this byte on.
    Write {
        /// First byte.
        offset: u64,
        /// Where from; its length says how much.
        from: Buffer,
        /// Durable, with the metadata needed to read it back, before it is done.
        durable: bool,
    },
    /// Make all writes that were done durable, with the metadata needed to read them back
    /// (fdatasync).
    SyncData,
    /// Free the extent's space; it reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    Punch {
        /// What to free.
        extent: Extent,
    },
    /// Take space for what of the extent has none, for writes to come. What it reads as stays
    /// (`fallocate`).
    Allocate {
        /// What to take space for.
        extent: Extent,
    },
    /// Make the extent read as zeroes and keep its space (`FALLOC_FL_ZERO_RANGE`).
    Zero {
        /// What to zero.
        extent: Extent,
    },
}

/// One file operation on its way down.
#[derive(Debug)]
pub struct FileIo {
    /// The submitter's name for it.
    pub tag: u64,
    /// Which file.
    pub file: FileToken,
    /// What is asked.
    pub operation: FileOperation,
}

/// The end of a [`FileIo`].
#[derive(Debug)]
pub struct FileDone {
    /// The tag of the [`FileIo`].
    pub tag: u64,
    /// Whether all of it was done: a short transfer was continued, and is an error where it could
    /// not be.
    pub result: Result<(), IoError>,
    /// The buffer of a transfer.
    pub buffer: Option<Buffer>,
}

/// File operations of one thread. Several queues of a thread share one ring below.
pub trait FileQueue {
    /// Makes a file known. The queue keeps it open until it is dropped.
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError>;

    /// Takes an operation. As with [`crate::Channel::submit`], it always comes back as a
    /// [`FileDone`].
    fn submit(&mut self, io: FileIo);

    /// Sends what was submitted on its way, for all queues of the thread.
    fn kick(&mut self);

    /// Appends what has ended since.
    fn poll(&mut self, done: &mut Vec<FileDone>);
}
