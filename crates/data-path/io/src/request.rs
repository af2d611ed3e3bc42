//! The requests that pass through the stages.

use std::fmt;

use strongroom_memory::{Buffer, GuestSlice};
use strongroom_types::Extent;

use crate::error::IoError;

mod private {
    pub trait Private {}
}

/// The kind of data in a transfer: plaintext that only the guest may read, or data that anyone may
/// read.
///
/// A private trait seals it: there are two payloads, and other crates cannot add a third.
pub trait Payload: private::Private + fmt::Debug + 'static {
    /// The memory of a transfer.
    type Memory: fmt::Debug + 'static;

    /// Count of bytes of a transfer's memory.
    fn len(memory: &Self::Memory) -> usize;
}

/// A guest's plaintext, in the guest's memory.
#[derive(Debug)]
pub enum Plain {}

/// Ciphertext, or data that a person chose not to encrypt, in our own memory. Each 4096-byte block
/// has a seal that names the key epoch that sealed it, or no seal if the block is absent (it reads
/// as zeroes).
#[derive(Debug)]
pub enum Sealed {}

impl private::Private for Plain {}
impl private::Private for Sealed {}

impl Payload for Plain {
    type Memory = GuestSlice;

    fn len(memory: &GuestSlice) -> usize {
        memory.len()
    }
}

impl Payload for Sealed {
    type Memory = Buffer;

    fn len(memory: &Buffer) -> usize {
        memory.len()
    }
}

/// A request to a disk. A transfer owns its memory, which has the extent's length.
#[derive(Debug)]
pub enum Request<P: Payload> {
    /// Fill the memory with the extent's content. A sealed read sets every seal.
    Read {
        /// The extent to read.
        extent: Extent,
        /// The memory to fill.
        into: P::Memory,
    },
    /// Write the memory to the extent. Every block of a sealed write has a seal.
    Write {
        /// The extent to write.
        extent: Extent,
        /// The memory with the content.
        from: P::Memory,
        /// Whether it must be durable before it is done (force unit access).
        durable: bool,
    },
    /// Make every write durable that had completed, on any channel, before this was submitted.
    Flush,
    /// The content is not needed any more: the extent may read as zeroes or as before, and its
    /// space may be freed.
    Discard {
        /// The extent that is not needed.
        extent: Extent,
    },
    /// Make the extent read as zeroes.
    WriteZeroes {
        /// The extent to zero.
        extent: Extent,
        /// Whether its space may be freed.
        may_unmap: bool,
        /// Whether it must be durable before it is done.
        durable: bool,
    },
}

/// The kinds of request, without their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// [`Request::Read`]
    Read,
    /// [`Request::Write`]
    Write,
    /// [`Request::Flush`]
    Flush,
    /// [`Request::Discard`]
    Discard,
    /// [`Request::WriteZeroes`]
    WriteZeroes,
}

impl<P: Payload> Request<P> {
    /// Its kind.
    pub fn kind(&self) -> RequestKind {
        match self {
            Request::Read { .. } => RequestKind::Read,
            Request::Write { .. } => RequestKind::Write,
            Request::Flush => RequestKind::Flush,
            Request::Discard { .. } => RequestKind::Discard,
            Request::WriteZeroes { .. } => RequestKind::WriteZeroes,
        }
    }

    /// The extent that it applies to; empty for a flush.
    pub fn extent(&self) -> Extent {
        match self {
            Request::Read { extent, .. }
            | Request::Write { extent, .. }
            | Request::Discard { extent }
            | Request::WriteZeroes { extent, .. } => *extent,
            Request::Flush => Extent::default(),
        }
    }

    /// Takes out its memory.
    pub fn into_memory(self) -> Option<P::Memory> {
        match self {
            Request::Read { into, .. } => Some(into),
            Request::Write { from, .. } => Some(from),
            Request::Flush | Request::Discard { .. } | Request::WriteZeroes { .. } => None,
        }
    }
}

/// One request on its way down. The tag is the submitter's own and comes back unchanged.
#[derive(Debug)]
pub struct Io<P: Payload> {
    /// The submitter's name for it, unique among its requests in flight on this channel.
    pub tag: u64,
    /// The request.
    pub request: Request<P>,
}

/// One request on its way up: the end of an [`Io`].
#[derive(Debug)]
#[must_use = "a Done carries the memory and the error of a guest's request"]
pub struct Done<P: Payload> {
    /// The tag of the [`Io`].
    pub tag: u64,
    /// Success only if all of it was done. There are no short transfers.
    pub result: Result<(), IoError>,
    /// The memory of the [`Io`]. After a failed read its content is undefined; after a failed write
    /// the extent's blocks hold old or new content.
    pub memory: Option<P::Memory>,
}

impl<P: Payload> Io<P> {
    /// The completion of this request without any work below.
    pub fn end(self, result: Result<(), IoError>) -> Done<P> {
        Done { tag: self.tag, result, memory: self.request.into_memory() }
    }
}
