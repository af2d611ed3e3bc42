//! Streams of guest data inside volumes: a suspended VM's memory, a guest's dump, a console's log.
//!
//! A volume is sealed by XTS, which hides and does not authenticate: who can write to its files can
//! damage blocks, cut them off and put old ones back. A disk's guest lives with that, or has tags.
//! What is fed to QEMU, or is given to a person as what the guest was, must not: so a stream is
//! numbered records, each sealed by AES-256-GCM under a key of this stream alone, with its number
//! and whether it is the last one bound in.
//!
//! - [`StreamWriter`] and [`StreamReader`]: a stream that is written once and has an end.
//! - [`StreamWriter::pack_from`] and [`Unpacker`]: content of such a stream without its zeroes.
//! - [`Log`]: a ring of the last of what was said, which never ends.
//!
//! What it promises:
//! - Nothing is given out that was not verified; [`StreamReader::verify`] verifies all of a stream
//!   before any of it is used.
//! - Whatever is cut off, reordered, mixed, put back or damaged inside a stream is noticed, and the
//!   record is named. A whole volume that is put back is another matter: its descriptor's
//!   generation and id tell, to who remembers them.
//! - Lengths that are read are held against limits before memory is taken.
//!
//! What may not enter: volumes' formats and keys' hierarchy (the key of a stream lies in its first
//! block, so that the volume's own encryption covers it; `docs/decisions/0014-sealed-records.md`),
//! files, QEMU. Bytes: `docs/ON_DISK.md`.
#![forbid(unsafe_code)]

mod error;
mod header;
mod log;
mod medium;
mod reader;
mod record;
mod sparse;
#[cfg(test)]
mod tests;
mod writer;

pub use error::StreamError;
pub use header::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, Shape, StreamKind};
pub use log::{Log, LogPiece, RING_SLOTS_MAX};
pub use medium::Medium;
pub use reader::StreamReader;
pub use sparse::{Unpacked, Unpacker};
pub use writer::StreamWriter;

/// Bytes of the volume that a stream of so much content takes at most, its description in a record
/// of its own.
pub fn stream_bytes(content_bytes: u64, slot_bytes: u32) -> u64 {
    let records = content_bytes.div_ceil(record::content_bytes_max(slot_bytes) as u64).saturating_add(2);
    records.saturating_mul(u64::from(slot_bytes)).saturating_add(header::HEADER_BYTES as u64)
}
