//! Numbers of the protocol, and the limits of this server.
//!
//! The source is "The NBD protocol", `doc/proto.md` of the NetworkBlockDevice project. The names
//! are the same without the `NBD_` prefix. All numbers are in network byte order. They are public
//! for our own client, in `devices`.

#![allow(missing_docs, reason = "numbers have the names of the specification")]

use std::time::Duration;

/// The server's first eight bytes, "NBDMAGIC".
pub const INIT_PASSWORD: u64 = 0x4e42_444d_4147_4943;
/// Starts an option, and follows [`INIT_PASSWORD`]: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, from the server (16 bits) and in the same places from the client (32 bits).
pub mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options that a client sends before transmission.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const START_TLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of the replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = ERROR | 1;
    pub const ERR_POLICY: u32 = ERROR | 2;
    pub const ERR_INVALID: u32 = ERROR | 3;
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    const ERROR: u32 = 1 << 31;
}

/// Pieces of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Capabilities of an export.
pub mod transmission_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
}

/// Types of requests.
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of requests.
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Types of chunks of structured replies.
pub mod chunk {
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) | 1;
    /// The flag of a reply's last chunk.
    pub const DONE: u16 = 1 << 0;
}

/// States of blocks in the context `base:allocation`.
pub mod allocation_state {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// The only metadata context that is supported.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// Its id, which is always the same in this server.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// The longest string of the protocol, in bytes ("Values", "String").
pub const STRING_BYTES_MAX: usize = 4096;

/// The most bytes of an option's data that are parsed; a longer option is answered with
/// `ERR_TOO_BIG` and skipped. There is room for the two longest strings and a long list of numbers,
/// which is more than any known client sends.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// The most options of one negotiation. Clients send about six; the rest is for `nbdinfo --list` on
/// many exports.
pub const OPTIONS_MAX: u32 = 128;

/// The most bytes of one read or write. The protocol calls smaller limits bad manners ("Size
/// constraints"), and libnbd, nbdcopy and QEMU stay within it.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The most requests of one connection that are not answered completely. Clients keep 16 (QEMU) to
/// 128 (the Linux kernel) in flight; more stay in the socket.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 128;

/// The most pieces, of all requests of one connection, that are in flight in the disk. There is
/// room for the pieces of the largest request and one for every other request.
pub const IOS_IN_FLIGHT_MAX: usize = 256;

/// Depth of the rings of the lanes that a server runs on.
pub const LANE_DEPTH: usize = IOS_IN_FLIGHT_MAX;

/// The most descriptors of one answer to BLOCK_STATUS (the protocol allows 2^20): a client asks
/// again from where the answer ended.
pub const DESCRIPTORS_MAX: usize = 4096;

/// The most runs that the disk may report for one BLOCK_STATUS before it is answered with what is
/// known: neighbours that are merged into one descriptor do not count as descriptors, yet each
/// costs time.
pub const RUNS_MAX: usize = 64 << 10;

/// How long a client may take from connecting to the end of negotiation, TLS included: long for a
/// person with a debugger, short for a server whose places are limited.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// How many connections one export serves at once. nbdcopy opens 4, the Linux kernel one per CPU at
/// most, QEMU one.
pub const CONNECTIONS_MAX: usize = 16;

/// How long stopping waits for requests in flight before the connections are cut.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Memory of one connection for the content of reads and writes, allocated as needed: for the
/// largest request and a queue of ordinary ones.
pub const PAYLOAD_MEMORY_BYTES: usize = 48 << 20;

/// Memory of one connection for the stages below, allocated as needed. It is separate from the
/// memory above, so that requests which fill that one cannot starve the stages that must finish
/// them.
pub const STAGE_MEMORY_BYTES: usize = 32 << 20;
