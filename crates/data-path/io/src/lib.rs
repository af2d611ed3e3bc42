//! The central interface of the data path, which joins all stages between guest and disk.
//!
//! A stage is a [`Disk`]. Each queue (a thread) opens one [`Channel`] on it, submits [`Io`]s, kicks
//! once per batch, and polls [`Done`]s. A stage does not know its neighbours; it knows only whether
//! data is [`Plain`] or [`Sealed`]. Only the crypt filter, or an explicitly named adapter for clear
//! volumes, turns one into the other.
//!
//! Every stage promises (the conformance suite checks it):
//! - An `Io` comes back exactly once, as a `Done` that carries its tag, its memory, and success or
//!   a typed error.
//! - `submit`, `kick` and `poll` never block and do not allocate per I/O.
//! - After `poll` has returned, any further event wakes the thread's [`Reactor`]: a stage that
//!   submits while it polls kicks and polls the channel below again, until there is no more
//!   progress.
//! - Between flushes there is no order. A flush covers every write whose `Done` was polled, on any
//!   channel, before the flush was submitted.
//! - There is no default pass-through: a filter matches every [`Request`], so that a new one breaks
//!   its build instead of its data.
//!
//! This crate has no files, sockets or ciphers. [`FileQueue`] is the interface of the leaf below a
//! datastore, and `ring` implements it.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod disk;
mod error;
mod file;
mod inflight;
mod locks;
mod reactor;
mod request;

pub use disk::{Allocation, Channel, Disk, Limits, TRANSFER_BYTES_MAX};
pub use error::{Errno, IoError};
pub use file::{DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken};
pub use inflight::{InFlight, Slot};
pub use locks::{Lock, LockMode, LockQueue, LockTicket, RangeLocks};
pub use reactor::{EventLoop, IdleReactor, Reactor, Thread, Waker};
pub use request::{Done, Io, Payload, Plain, Request, RequestKind, Sealed};
