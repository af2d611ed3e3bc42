//! Streams of guest data inside volumes: a suspended VM's memory, a guest's dump, a console's log.
//!
//! XTS encrypts a volume but does not authenticate it: anyone who can write to its files can damage
//! blocks, truncate them and restore old ones. A disk's guest has to tolerate that, or its volume
//! has tags. Data that is fed to QEMU, or shown to a person as the guest's output, needs more. So a
//! stream consists of numbered records, each sealed by AES-256-GCM under a key of this stream
//! alone. The record's number, and whether it is the last one, are bound into the seal.
//!
//! - [`StreamWriter`] and [`StreamReader`]: a stream that is written once and has an end.
//! - [`StreamWriter::pack_from`] and [`Unpacker`]: the content of such a stream without its zeroes.
//! - [`Log`]: a ring with the latest output, which never ends.
//! - [`FrameWriter`] and [`FrameReader`]: a disk's content on its way between two machines. TLS
//!   seals it there, and the frames say that it is whole.
//! - [`ImageGiver`] and [`ImageTaker`]: an image that a host reads from the client that has it.
//! - [`VolumeGiver`] and [`VolumeTaker`]: a VM's volumes on their way to another host, as they are
//!   stored.
//!
//! Promises:
//! - Only verified content is passed on; [`StreamReader::verify`] verifies a whole stream before
//!   any of it is used.
//! - Truncated, reordered, mixed, replayed and damaged records inside a stream are detected, and
//!   the error names the record. If a whole volume is replaced by an older copy, only its
//!   descriptor's generation and id show it, to a person who has recorded them.
//! - Lengths that are read are checked against limits before memory is allocated.
//!
//! Out of scope: volume formats and the key hierarchy (the key of a stream is in its first block,
//! so that the volume's own encryption covers it; `docs/decisions/0014-sealed-records.md`), files,
//! and QEMU. The bytes are described in `docs/ON_DISK.md`.
#![forbid(unsafe_code)]

mod error;
mod frames;
mod header;
mod image;
mod log;
mod medium;
mod reader;
mod record;
mod sparse;
#[cfg(test)]
mod tests;
mod volumes;
mod writer;

pub use error::StreamError;
pub use frames::{FRAME_DATA_BYTES_MAX, Frame, FrameError, FrameReader, FrameWriter, Pace};
pub use header::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, Shape, StreamKind};
pub use image::{IMAGE_DATA_BYTES_MAX, ImageGiver, ImageStreamError, ImageTaker};
pub use log::{Log, LogPiece, RING_SLOTS_MAX};
pub use medium::Medium;
pub use reader::StreamReader;
pub use sparse::{Unpacked, Unpacker};
pub use volumes::{
    Asked, GivenVolume, LayerTaken, Rest, RestPart, TakeData, VOLUME_DATA_BYTES_MAX, VOLUME_FILE_BYTES_MAX,
    VolumeGiver, VolumeTaker, VolumesError,
};
pub use writer::StreamWriter;

/// The most bytes of the volume that a stream with this much content takes. Its description has its
/// own record.
pub fn stream_bytes(content_bytes: u64, slot_bytes: u32) -> u64 {
    let records = content_bytes.div_ceil(record::content_bytes_max(slot_bytes) as u64).saturating_add(2);
    records.saturating_mul(u64::from(slot_bytes)).saturating_add(header::HEADER_BYTES as u64)
}
