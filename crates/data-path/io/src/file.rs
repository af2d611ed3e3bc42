//! The interface that a datastore needs from the leaf below it: asynchronous file operations.
//!
//! `ring` implements it with io_uring, and a simulated file system with power cuts implements it
//! too. So datastores do not depend on io_uring.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use strongroom_memory::Buffer;
use strongroom_types::Extent;

use crate::error::IoError;
use crate::reactor::Reactor;

/// A file that queues of several threads do I/O on. Its owner controls its lock and lifetime; a
/// queue holds the `Arc` while an operation is in flight.
pub trait DataFile: Send + Sync + fmt::Debug {
    /// The kernel's file, if it is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// For a leaf with its own kind of files.
    fn as_any(&self) -> &dyn Any;

    /// A new queue of the thread, for this file and those that lie beside it: the reactor's own,
    /// unless the leaf of these files is another one.
    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        reactor.file_queue()
    }
}

/// A file known to one [`FileQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileToken(pub u32);

/// An operation on a file.
#[derive(Debug)]
pub enum FileOperation {
    /// Fill the buffer from this offset on. If the file ends before the buffer is full, it is an
    /// error.
    Read {
        /// First byte.
        offset: u64,
        /// The buffer, whose length is the count of bytes.
        into: Buffer,
    },
    /// Write the buffer at this offset.
    Write {
        /// First byte.
        offset: u64,
        /// The buffer, whose length is the count of bytes.
        from: Buffer,
        /// Whether it must be durable, with the metadata needed to read it back, before it is done.
        durable: bool,
    },
    /// Make all completed writes durable, with the metadata needed to read them back (fdatasync).
    SyncData,
    /// Make all completed writes durable, with all metadata of the file (fsync).
    Sync,
    /// Free the extent's space; it reads as zeroes (`FALLOC_FL_PUNCH_HOLE`).
    Punch {
        /// The extent to free.
        extent: Extent,
    },
    /// Allocate the parts of the extent that have no space, for later writes. The content does not
    /// change (`fallocate`).
    Allocate {
        /// The extent to allocate.
        extent: Extent,
    },
    /// Make the extent read as zeroes and keep its space (`FALLOC_FL_ZERO_RANGE`).
    Zero {
        /// The extent to zero.
        extent: Extent,
    },
}

/// One file operation on its way down.
#[derive(Debug)]
pub struct FileIo {
    /// The submitter's name for it.
    pub tag: u64,
    /// The file.
    pub file: FileToken,
    /// The operation.
    pub operation: FileOperation,
}

/// The end of a [`FileIo`].
#[derive(Debug)]
pub struct FileDone {
    /// The tag of the [`FileIo`].
    pub tag: u64,
    /// Success only if all of it was done: a short transfer is continued, and is an error if it
    /// cannot be.
    pub result: Result<(), IoError>,
    /// The buffer of a transfer.
    pub buffer: Option<Buffer>,
}

/// File operations of one thread. Several queues of a thread share one ring below.
pub trait FileQueue {
    /// Registers a file. The queue keeps it open until the queue is dropped.
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError>;

    /// Takes an operation. As with [`crate::Channel::submit`], it always comes back as a
    /// [`FileDone`].
    fn submit(&mut self, io: FileIo);

    /// Starts the submitted operations, for all queues of the thread.
    fn kick(&mut self);

    /// Appends the operations that have ended since.
    fn poll(&mut self, done: &mut Vec<FileDone>);
}
