//! A stage, and a queue's way into it.

use std::sync::Arc;

use strongroom_types::Extent;

use crate::error::IoError;
use crate::reactor::Thread;
use crate::request::{Done, Io, Payload, Request};

/// The largest transfer that a frontend submits, in bytes. Guests and NBD clients ask for at most
/// this where they are told, and frontends split what is longer. Stages accept two blocks more, so
/// that an unaligned one can be widened to whole blocks in one piece.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// What a stage takes and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The disk's size in bytes.
    pub size_bytes: u64,
    /// Offset and length of every transfer and zeroing are multiples of this, a power of two from 1
    /// to 4096; a discard of less is no error, but does nothing.
    pub block_bytes: u32,
    /// The unit that costs no extra work, for clients to align to: a power of two, at least
    /// `block_bytes`.
    pub preferred_bytes: u32,
    /// The most bytes of one transfer. Discards and zeroings have no such limit.
    pub transfer_bytes_max: u32,
    /// Takes no write, discard or zeroing.
    pub read_only: bool,
    /// A discard may free space.
    pub discards: bool,
}

impl Limits {
    /// Whether the request keeps to these limits.
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

/// What is known of a run of blocks without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Holds data.
    Data,
    /// Takes space and reads as zeroes.
    Zero,
    /// Takes no space and reads as zeroes.
    Hole,
}

/// A stage: a disk to whatever is above it.
pub trait Disk<P: Payload>: Send + Sync {
    /// What it takes and offers now; the size can grow while channels are open.
    fn limits(&self) -> Limits;

    /// Opens a way in for the queue that runs on the calling thread, with at most `depth` requests
    /// in flight.
    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<P>>, IoError>;

    /// Reports runs that cover `extent` (cut to the disk), in order, until the report returns
    /// `false`. It may wait for the file system's metadata, so it is not for the path of a
    /// transfer; what it says may be old by the time it is heard, and errs towards
    /// [`Allocation::Data`].
    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError>;
}

/// A stage that several own is a stage.
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

/// A queue's way into a stage. It stays on the thread that opened it.
pub trait Channel<P: Payload> {
    /// Takes a request. It never refuses: what cannot be done comes back as a failed [`Done`], and
    /// what cannot be done yet (no buffer, a locked range) waits inside.
    fn submit(&mut self, io: Io<P>);

    /// Sends what was submitted on its way: at most one system call at the bottom.
    fn kick(&mut self);

    /// Appends what has ended since. Once it returns, everything still in flight will wake the
    /// thread's [`crate::Reactor`].
    fn poll(&mut self, done: &mut Vec<Done<P>>);
}
