//! The errors of streams.

use std::io;

use strongroom_crypto::CryptoError;
use thiserror::Error;

use crate::header::StreamKind;

/// The reasons why a stream cannot be written, or is not read out.
#[derive(Debug, Error)]
pub enum StreamError {
    /// There is no stream: nothing was written here, or it was erased.
    #[error("there is no stream in it")]
    NotThere,
    /// The first block does not identify a stream: another program wrote it, or it is damaged.
    #[error("it is no stream of this program, or its first block is damaged")]
    NoStream,
    /// A newer program wrote it.
    #[error("its stream is of format {found}, and this program reads {known}: a newer program wrote it")]
    Newer {
        /// The stream's format.
        found: u32,
        /// The newest format that this program reads.
        known: u32,
    },
    /// The first block does not verify.
    #[error("the first block of its stream is damaged, or is from another stream")]
    HeaderDamaged,
    /// The stream is of another kind than requested.
    #[error("its stream is {found}, and should be {wanted}")]
    AnotherKind {
        /// The kind that was found.
        found: StreamKind,
        /// The kind that was requested.
        wanted: StreamKind,
    },
    /// It was written in another volume.
    #[error("its stream was written in another volume, and copied here")]
    AnotherVolume,
    /// A record does not verify.
    #[error("record {number} of its stream is damaged, or is from another stream")]
    Damaged {
        /// The record's number, from 0.
        number: u64,
    },
    /// A record lies where another one belongs.
    #[error("record {found} of its stream lies where record {number} belongs: it was moved, or put back")]
    Misplaced {
        /// The number of the record that belongs there, from 0.
        number: u64,
        /// The number of the record that was found.
        found: u64,
    },
    /// It has no end: its writer was interrupted, or its end was cut off.
    #[error("its stream breaks off at record {records}: it was never finished, or its end was cut off")]
    Unfinished {
        /// The count of complete records.
        records: u64,
    },
    /// The content is larger than the volume, or than a field of the format can express.
    #[error("its stream is larger than its volume, which has {size_bytes} bytes")]
    NoRoom {
        /// The volume's size.
        size_bytes: u64,
    },
    /// A size is outside the limits of the format.
    #[error("{what} of {actual} is not possible: {least} to {most}")]
    Limit {
        /// The name of the size.
        what: &'static str,
        /// The kind that was found.
        actual: u64,
        /// The lower limit.
        least: u64,
        /// The upper limit.
        most: u64,
    },
    /// The volume, the source or the sink failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The cipher failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}
