//! The memory of the data path, and the memory of secrets.
//!
//! - [`BufferPool`] and [`Buffer`]: our own memory for I/O. It is aligned for O_DIRECT, on huge
//!   pages where available, excluded from core dumps, and owned by one thread. Each 4096-byte block
//!   of a buffer has a *seal*: the key epoch that sealed it, or none.
//! - [`GuestMemory`] and [`GuestSlice`]: memory that a guest shares with us. It can change at any
//!   time, so it never becomes a `&[u8]`; it is copied or passed to a cipher as raw segments, and
//!   our writes into it are marked dirty.
//! - [`policy`]: the NUMA nodes that memory comes from. [`Padded`]: values that share no cache line
//!   with others.
//! - [`WordsWriter`] and [`WordsReader`]: words that one process writes and another reads, such as
//!   counters. [`BufferPool::of_shared`]: buffers that two processes have.
//! - [`secret`]: the only type for plaintext keys. [`WipingAllocator`]: for secrets that pass
//!   through other memory.
//!
//! This crate contains no I/O, ciphers or files. It is one of the few that may use `unsafe`; each
//! use explains why it is sound.
#![deny(unsafe_op_in_unsafe_fn)]

mod guest;
mod padded;
pub mod policy;
mod pool;
mod reserve;
mod sealed_file;
pub mod secret;
mod shared_words;
mod wiping_allocator;
mod words;

pub use guest::{DirtyLog, GuestAddress, GuestError, GuestMemory, GuestRegion, GuestSlice, Segment};
pub use padded::Padded;
pub use pool::{
    Buffer, BufferPool, CHUNK_BYTES, ChunkId, ChunkMemory, MAX_BUFFER_BYTES, PoolError, make_shared_chunks,
};
pub use reserve::ReservedPool;
pub use sealed_file::SealedFileError;
pub use shared_words::{WordsReader, WordsWriter, make_shared_words};
pub use wiping_allocator::WipingAllocator;
