//! Why a request failed.

use std::fmt;

use strongroom_types::{Extent, KeyEpoch};
use thiserror::Error;

/// An error number of the kernel, named.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

/// Why a request failed. Small and `Copy`, so that the data path never allocates for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IoError {
    /// Beyond the disk's end.
    #[error("{extent} reach beyond the end of the disk at {size_bytes} bytes")]
    OutOfRange {
        /// What was asked for.
        extent: Extent,
        /// The disk's size.
        size_bytes: u64,
    },
    /// Not aligned as the stage's limits require, or the memory's length differs from the extent's.
    #[error("{extent} are not aligned to {block_bytes} bytes, or their memory has another length")]
    Misaligned {
        /// What was asked for.
        extent: Extent,
        /// The stage's unit.
        block_bytes: u32,
    },
    /// More bytes in one transfer than the stage's limits allow.
    #[error("{extent} are more than one transfer of {transfer_bytes_max} bytes")]
    TooLong {
        /// What was asked for.
        extent: Extent,
        /// The stage's largest transfer.
        transfer_bytes_max: u32,
    },
    /// The disk takes no writes.
    #[error("the disk is read-only")]
    ReadOnly,
    /// The datastore is full.
    #[error("the datastore is full")]
    NoSpace,
    /// The device or file system failed.
    #[error("the device failed: {0}")]
    Device(Errno),
    /// A thread's event loop already has the most files and sockets that it supports.
    #[error("the thread's event loop holds {files_max} files and sockets already, the most that it takes")]
    FilesFull {
        /// The most of them.
        files_max: u32,
    },
    /// The file ended, or the device stopped, before the whole transfer.
    #[error("{done_bytes} of {wanted_bytes} bytes were transferred")]
    Short {
        /// Bytes done.
        done_bytes: u64,
        /// Bytes asked for.
        wanted_bytes: u64,
    },
    /// A block is sealed under a key that this volume's descriptor does not hold.
    #[error("block {block} is sealed under unknown key epoch {epoch}")]
    UnknownEpoch {
        /// The block's number.
        block: u64,
        /// The epoch that its seal names.
        epoch: KeyEpoch,
    },
    /// A block's content is not what was last written: its tag does not match.
    #[error("block {block} is damaged, or was put back to an earlier content: its tag does not match")]
    Integrity {
        /// The block's number.
        block: u64,
    },
    /// An earlier fsync failed, and the kernel may have dropped the data that it could not write:
    /// no flush succeeds until the volume has been reopened.
    #[error("an earlier flush failed; the volume must be opened anew")]
    FlushFailed,
    /// A cipher refused to work.
    #[error("the cipher failed")]
    Cipher,
    /// A test asked for this failure.
    #[error("injected failure")]
    Injected,
    /// The stage is being closed.
    #[error("the disk is being closed")]
    Closed,
}

impl IoError {
    /// The error of a failed system call.
    pub fn from_errno(errno: i32) -> Self {
        // ENOSPC and EDQUOT on every architecture of Linux; two numbers do not justify a crate of
        // constants.
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EDQUOT: i32 = 122;
        match errno {
            ENOSPC | EDQUOT => IoError::NoSpace,
            EROFS => IoError::ReadOnly,
            other => IoError::Device(Errno(other)),
        }
    }
}

impl From<rustix::io::Errno> for IoError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::from_errno(errno.raw_os_error())
    }
}
