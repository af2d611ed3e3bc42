//! Where volumes live.
//!
//! - [`file`](mod@file): a directory on a tested file system; the datastore for most.
//! - [`memory`]: for tests and benchmarks.
//!
//! A datastore is a [`Disk`](strongroom_io::Disk) of [`Sealed`](strongroom_io::Sealed) blocks:
//! ciphertext, or the blocks of a volume that a person chose not to encrypt. It never learns which,
//! never decrypts, and does not depend on io_uring: the leaf below comes from the thread's reactor.
#![forbid(unsafe_code)]

pub mod file;
pub mod memory;
