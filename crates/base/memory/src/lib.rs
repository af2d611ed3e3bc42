//! The memory of the data path, and the memory of secrets.
//!
//! - [`BufferPool`] and [`Buffer`]: our own memory for I/O. Aligned for O_DIRECT, on huge pages
//!   where the system gives them, excluded from core dumps, owned by one thread. Each 4096-byte
//!   block of a buffer carries a *seal*: the key epoch that sealed it, or nothing.
//! - [`GuestMemory`] and [`GuestSlice`]: memory that a guest shares with us. It changes while we
//!   look, so it never becomes a `&[u8]`; it is copied or handed to a cipher as raw segments, and
//!   what we write into it is marked dirty.
//! - [`policy`]: from which NUMA nodes memory comes. [`Padded`]: what shares no cache line with
//!   others.
//! - [`WordsWriter`] and [`WordsReader`]: words that one process counts in and another reads.
//! - [`secret`]: the one type that plain keys live in. [`WipingAllocator`]: for what passes through
//!   other memory.
//!
//! This room knows nothing of I/O, ciphers or files. It is one of the few that may use `unsafe`;
//! each use says why it is sound.
#![deny(unsafe_op_in_unsafe_fn)]

mod guest;
mod padded;
pub mod policy;
mod pool;
mod reserve;
pub mod secret;
mod shared_words;
mod wiping_allocator;
mod words;

pub use guest::{DirtyLog, GuestAddress, GuestError, GuestMemory, GuestRegion, GuestSlice, Segment};
pub use padded::Padded;
pub use pool::{Buffer, BufferPool, CHUNK_BYTES, ChunkId, ChunkMemory, MAX_BUFFER_BYTES, PoolError};
pub use reserve::ReservedPool;
pub use shared_words::{SharedWordsError, WordsReader, WordsWriter, make_shared_words};
pub use wiping_allocator::WipingAllocator;
