//! Where volumes live.
//!
//! - [`file`](mod@file): a directory on a tested file system; the datastore for most.
//! - [`memory`]: for tests and for measuring.
//!
//! A datastore is a [`Disk`](strongroom_io::Disk) of [`Sealed`](strongroom_io::Sealed) blocks:
//! ciphertext, or what a person chose to keep clear. It never sees which, never decrypts, and names
//! no io_uring: the leaf below comes from the thread's reactor.
#![forbid(unsafe_code)]

pub mod file;
pub mod memory;
