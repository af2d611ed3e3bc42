//! The io_uring leaf and event loop of a data-path thread.
//!
//! A [`Ring`] is a thread's only contact with the kernel while it works: file operations of all its
//! volumes, readiness of all its sockets, wake-ups from other threads and deadlines go through one
//! io_uring, and the thread sleeps in one place, [`Ring::wait`]. A turn of the loop is
//!
//! ```text
//! wait -> take_ready, read sockets -> submit -> kick -> poll, answer -> wait
//! ```
//!
//! The threads of a process that serves a guest are [`Lanes`]: all of them, and their rings, are
//! made before a sandbox closes, and a frontend runs its queues and connections on them.
//!
//! What this room promises:
//! - A ring does eight operations, on files that were put into its table, and the kernel refuses
//!   everything else for as long as the ring lives, whatever a thread that was taken over asks of
//!   it.
//! - Memory that the kernel may read or write belongs to the ring until the kernel is done with it,
//!   whatever is dropped meanwhile; so does the file.
//! - What is reported as done was done in full: short transfers are continued, interrupted ones
//!   repeated.
//! - No system call but the one that submits and reaps for the whole thread, and no allocation per
//!   I/O once the tables have grown to the depth in use.
//!
//! Layout: `setup` makes a ring and restricts it; `uring` owns the kernel's queues, and
//! `registered` tells it of memory, the only files with `unsafe`; `operation` says how a file
//! operation goes on after each answer; `queue` and `watch` are what stages and frontends see;
//! `ring` is the loop, and `lanes` are the threads that run it. No format, no cipher and no request
//! of a guest enters here.
#![deny(unsafe_op_in_unsafe_fn)]

mod error;
mod file;
mod lanes;
mod operation;
pub mod points;
mod queue;
mod registered;
mod ring;
mod setup;
mod uring;
mod watch;

pub use error::RingError;
pub use file::RingFile;
pub use lanes::{Busy, Job, Lanes};
pub use queue::RingFileQueue;
pub use ring::{ENDS_POLLED_BYTES_MAX, ENDS_POLLED_MAX, Ring};
pub use watch::{Interest, Ready, WatchToken};
