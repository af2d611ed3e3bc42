//! What travels through the stages.

use std::fmt;

use strongroom_memory::{Buffer, GuestSlice};
use strongroom_types::Extent;

use crate::error::IoError;

mod private {
    pub trait Private {}
}

/// What a transfer carries: text that a guest may read, or text that anybody may.
///
/// Sealed by a private trait: there are two, and no third can be made outside this room.
pub trait Payload: private::Private + fmt::Debug + 'static {
    /// The memory of a transfer.
    type Memory: fmt::Debug + 'static;

    /// Count of bytes of a transfer's memory.
    fn len(memory: &Self::Memory) -> usize;
}

/// A guest's text, in the guest's memory.
#[derive(Debug)]
pub enum Plain {}

/// Ciphertext, or what a person chose to keep clear, in our own memory; each 4096-byte block
/// carries a seal that says which key epoch sealed it, or that nothing is there (it reads as
/// zeroes).
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

/// What is asked of a disk. A transfer owns its memory, whose length is the extent's.
#[derive(Debug)]
pub enum Request<P: Payload> {
    /// Fill the memory with the extent's content. A sealed read sets every seal.
    Read {
        /// What to read.
        extent: Extent,
        /// Where to.
        into: P::Memory,
    },
    /// Make the memory the extent's content. Every block of a sealed write bears a seal.
    Write {
        /// What to write.
        extent: Extent,
        /// Where from.
        from: P::Memory,
        /// Durable before it is done (force unit access).
        durable: bool,
    },
    /// Make durable every write that was done, on any channel, before this was submitted.
    Flush,
    /// The content is not needed any more: the extent may read as zeroes or as before, and its
    /// space may be freed.
    Discard {
        /// What is not needed.
        extent: Extent,
    },
    /// Make the extent read as zeroes.
    WriteZeroes {
        /// What to zero.
        extent: Extent,
        /// Whether its space may be freed.
        may_unmap: bool,
        /// Durable before it is done.
        durable: bool,
    },
}

/// The kinds of request, without what they carry.
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

    /// The bytes it is about; a flush is about none.
    pub fn extent(&self) -> Extent {
        match self {
            Request::Read { extent, .. }
            | Request::Write { extent, .. }
            | Request::Discard { extent }
            | Request::WriteZeroes { extent, .. } => *extent,
            Request::Flush => Extent::default(),
        }
    }

    /// The memory that it carries, taken out.
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
    /// What is asked.
    pub request: Request<P>,
}

/// One request on its way up: the end of an [`Io`].
#[derive(Debug)]
#[must_use = "a Done carries the memory and the error of a guest's request"]
pub struct Done<P: Payload> {
    /// The tag of the [`Io`].
    pub tag: u64,
    /// Whether everything asked was done. There are no short transfers.
    pub result: Result<(), IoError>,
    /// The memory of the [`Io`]. After a failed read its content is undefined; after a failed write
    /// the extent's blocks hold old or new content.
    pub memory: Option<P::Memory>,
}

impl<P: Payload> Io<P> {
    /// The end of this request, with nothing done below.
    pub fn end(self, result: Result<(), IoError>) -> Done<P> {
        Done { tag: self.tag, result, memory: self.request.into_memory() }
    }
}
