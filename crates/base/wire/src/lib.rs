//! Messages and descriptors over unix sockets, between processes of one host.
//!
//! | file | holds |
//! |---|---|
//! | `files` | bytes with descriptors beside them, over any unix socket |
//! | `packets` | whole packets with descriptors, over a `SOCK_SEQPACKET` socket |
//! | `formats` | which formats of a message a program reads; an envelope of messages in JSON |
//!
//! A message is received completely or refused: if the kernel drops a descriptor for lack of space,
//! or a packet is longer than its buffer, this is an error and never a shorter message. The
//! meaning and the limits of messages belong to the communicating programs: hostd and supervisors,
//! a supervisor and its workers, a launcher and its processes, a frontend and QEMU. So does the
//! envelope of those that need another one.
#![forbid(unsafe_code)]

mod files;
mod formats;
mod packets;

pub use self::files::{FILES_MAX, Received, receive, send};
pub use self::formats::{FormatError, Formats, encode};
pub use self::packets::{PacketError, PacketSocket};
