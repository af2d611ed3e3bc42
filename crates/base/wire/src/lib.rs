//! Messages and descriptors over unix sockets, between processes of one host.
//!
//! | file | holds |
//! |---|---|
//! | `files` | bytes with descriptors beside them, over any unix socket |
//! | `packets` | whole packets with descriptors, over a `SOCK_SEQPACKET` socket |
//! | `formats` | which formats of a message a program reads |
//!
//! What is received is whole or refused: a descriptor that the kernel left out for want of room, or
//! a packet longer than its buffer, is an error here and never a shorter message. What a message
//! means, its envelope and its limits belong to the two who speak: hostd and supervisors, a
//! supervisor and its workers, a launcher and its processes, a frontend and QEMU.
#![forbid(unsafe_code)]

mod files;
mod formats;
mod packets;

pub use self::files::{FILES_MAX, Received, receive, send};
pub use self::formats::{FormatError, Formats};
pub use self::packets::{PacketError, PacketSocket};
