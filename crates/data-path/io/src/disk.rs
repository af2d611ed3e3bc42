//! A stage, and a queue's channel to it.

use std::sync::Arc;

use strongroom_types::Extent;

use crate::error::IoError;
use crate::reactor::Thread;
use crate::request::{Done, Io, Payload, Request};

/// The largest transfer that a frontend submits, in bytes. Guests and NBD clients are told this
/// limit if the protocol allows it, and frontends split longer requests. Stages accept two blocks
/// more, so that an unaligned transfer can be widened to whole blocks in one piece.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The limits and capabilities of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The disk's size in bytes.
    pub size_bytes: u64,
    /// Offset and length of every transfer and zeroing are multiples of this, a power of two from 1
    /// to 4096; a discard of less is no error, but does nothing.
    pub block_bytes: u32,
    /// The alignment that costs no extra work, for clients: a power of two, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// The most bytes of one transfer. Discards and zeroings have no such limit.
    pub transfer_bytes_max: u32,
    /// Whether writes, discards and zeroings are refused.
    pub read_only: bool,
    /// Whether a discard may free space.
    pub discards: bool,
}

impl Limits {
    /// Checks that the request is within these limits.
    pub fn check<P: Payload>(&self, request: &Request<P>) -> Result<(), IoError> {
        let extent = request.extent();
        if extent.end() > self.size_bytes {
            return Err(IoError::OutOfRange { extent, size_bytes: self.size_bytes });
        }
        let aligned = extent.is_aligned_to(u64::from(self.block_bytes));
        let misaligned = IoError::Misaligned { extent, block_bytes: self.block_bytes };
        match request {
            Request::Read { into: memory, .. } | Request::Write { from: memory, .. } => {
                if extent.length() > u64::from(self.transfer_bytes_max) {
                    return Err(IoError::TooLong { extent, transfer_bytes_max: self.transfer_bytes_max });
                }
                if !aligned || extent.is_empty() || P::len(memory) as u64 != extent.length() {
                    return Err(misaligned);
                }
            }
            Request::WriteZeroes { .. } if !aligned => return Err(misaligned),
            Request::WriteZeroes { .. } | Request::Discard { .. } | Request::Flush => {}
        }
        match request {
            Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. }
                if self.read_only =>
            {
                Err(IoError::ReadOnly)
            }
            _ => Ok(()),
        }
    }
}

/// The allocation of a run of blocks, known without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Holds data.
    Data,
    /// Takes space and reads as zeroes.
    Zero,
    /// Takes no space and reads as zeroes.
    Hole,
}

/// A stage: a disk, as the stage above sees it.
pub trait Disk<P: Payload>: Send + Sync {
    /// Its present limits; the size can grow while channels are open.
    fn limits(&self) -> Limits;

    /// Opens a channel for the queue that runs on the calling thread, with at most `depth` requests
    /// in flight.
    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError>;

    /// Reports runs that cover `extent` (cut to the disk), in order, until the report returns
    /// `false`. It may wait for the file system's metadata, so it must not be used in the path of a
    /// transfer. The report may be out of date when it is read, and errs towards
    /// [`Allocation::Data`].
    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError>;
}

/// A shared stage is a stage.
impl<P: Payload, D: Disk<P> + ?Sized> Disk<P> for Arc<D> {
    fn limits(&self) -> Limits {
        (**self).limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        (**self).open(thread, depth)
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        (**self).allocation(extent, report)
    }
}

/// A queue's channel to a stage. It stays on the thread that opened it.
pub trait Channel<P: Payload> {
    /// Takes a request. It never refuses: a request that cannot be done comes back as a failed
    /// [`Done`], and one that cannot be done yet (no buffer, a locked range) waits inside.
    fn submit(&mut self, io: Io<P>);

    /// Starts the submitted requests, with at most one system call at the bottom.
    fn kick(&mut self);

    /// Appends the requests that have ended since. After it returns, every request still in flight
    /// will wake the thread's [`crate::Reactor`].
    fn poll(&mut self, done: &mut Vec<Done<P>>);
}

/// A boxed channel is a channel.
impl<P: Payload, C: Channel<P> + ?Sized> Channel<P> for Box<C> {
    fn submit(&mut self, io: Io<P>) {
        (**self).submit(io);
    }

    fn kick(&mut self) {
        (**self).kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        (**self).poll(done);
    }
}
