//! The io_uring leaf and event loop of a data-path thread.
//!
//! While a thread works, its [`Ring`] is its only contact with the kernel. File operations of all
//! its volumes, readiness of all its sockets, wake-ups from other threads and deadlines go through
//! one io_uring, and the thread sleeps in one place, [`Ring::wait`]. A turn of the loop is
//!
//! ```text
//! wait -> take_ready, read sockets -> submit -> kick -> poll, answer -> wait
//! ```
//!
//! The threads of a process that serves a guest are [`Lanes`]. All of them, and their rings, are
//! made before a sandbox closes; frontends run their queues and connections on them.
//!
//! Promises:
//! - A ring performs eight operations, on files in its table. The kernel refuses everything else
//!   for the ring's lifetime, even if an attacker controls the thread.
//! - Memory that the kernel may read or write, and the file, belong to the ring until the kernel is
//!   done with them, whatever is dropped meanwhile.
//! - An operation that is reported as done was done in full: short transfers are continued,
//!   interrupted ones repeated.
//! - One system call submits and reaps for the whole thread, and there is no other; I/O allocates
//!   nothing once the tables have grown to the depth in use.
//!
//! Layout: `setup` makes a ring and restricts it; `uring` owns the kernel's queues, and
//! `registered` registers memory with it, and these are the only files with `unsafe`; `operation`
//! decides how a file operation continues after each answer; `queue` and `watch` are the interfaces
//! of stages and frontends; `ring` is the loop, and `lanes` are the threads that run it. No
//! formats, ciphers or guest requests enter this crate.
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
