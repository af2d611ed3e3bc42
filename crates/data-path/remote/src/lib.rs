//! Files of another process.
//!
//! A worker may make no sockets and no threads, so it cannot be the client of a storage cluster.
//! Another process is, the *server* here: it has the cluster's key, and no key of a volume. A
//! client asks it for directories and files over unix sockets, and does I/O on open files over
//! rings in shared memory:
//!
//! ```text
//!  supervisor                             server
//!  RemoteStorage --- storage's socket ---> Storage        any: the host's, a cluster's
//!  RemoteDirectory - directory's socket -> Directory
//!  RemoteFile ------ file's socket ------> StoredFile     requests and answers, one at a time
//!       | the socket is shared with the worker
//!  worker                                     |
//!  RemoteFile --- a lane of each thread ------+
//!                 ring: entries, completions  the words of a sealed file
//!                 pool: the bytes             the chunks of another one
//!                 two eventfds                each written at most once per sleep of its reader
//! ```
//!
//! - A socket is a right: who has a file's socket can use that file, and no other. It can only be
//!   read through the socket of a file that was opened to be read. [`StoredFile::share`] makes
//!   another socket of the same open file, and its lock ends with the last of them and the last
//!   operation, as that of a kernel's file does.
//! - The server trusts no entry. It takes each word once, and checks file, range, length and buffer
//!   against what the client has. A client that breaks the ring's rules loses the lane.
//! - The client trusts no answer: a completion names an operation that it waits for, once.
//! - The pool's memory belongs to both processes at all times. So no cipher, tag or check ever
//!   works on it: what is read is copied out before anybody looks at it, and only what is written
//!   to a file is copied in ([`copied_bytes`](RemoteFile::copied_bytes) counts both). The server
//!   copies nothing.
//!
//! When the server ends, a file's [`lifeline`](StoredFile::lifeline) becomes readable.
//!
//! [`StoredFile::share`]: strongroom_datastore::file::storage::StoredFile::share
//! [`StoredFile::lifeline`]: strongroom_datastore::file::storage::StoredFile::lifeline
#![forbid(unsafe_code)]

#[cfg(test)]
mod attacks;
mod client;
mod message;
mod packet;
mod ring;
mod server;

pub use client::{OnEnd, RemoteFile, RemoteStorage, adopt, adopt_with};
pub use server::{OBJECTS_MAX, Server};
