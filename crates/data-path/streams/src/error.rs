//! Why a stream is not what it should be.

use std::io;

use strongroom_crypto::CryptoError;
use thiserror::Error;

use crate::header::StreamKind;

/// Why a stream cannot be written, or is not given out.
#[derive(Debug, Error)]
pub enum StreamError {
    /// Nothing was written here, or what was is gone.
    #[error("there is no stream in it")]
    NotThere,
    /// Somebody else's, or damaged where it says what it is.
    #[error("it is no stream of this program, or its first block is damaged")]
    NoStream,
    /// A later program's.
    #[error("its stream is of format {found}, and this program reads {known}: a newer program wrote it")]
    Newer {
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// What the first block says is not what was written.
    #[error("the first block of its stream is damaged, or is from another stream")]
    HeaderDamaged,
    /// Not what is wanted.
    #[error("its stream is {found}, and should be {wanted}")]
    AnotherKind {
        /// What it is.
        found: StreamKind,
        /// What it should be.
        wanted: StreamKind,
    },
    /// It was made in another volume.
    #[error("its stream was written in another volume, and copied here")]
    AnotherVolume,
    /// A record does not verify.
    #[error("record {number} of its stream is damaged, or is from another stream")]
    Damaged {
        /// Which, from 0.
        number: u64,
    },
    /// A record lies where another one belongs.
    #[error("record {found} of its stream lies where record {number} belongs: it was moved, or put back")]
    Misplaced {
        /// Which should be there, from 0.
        number: u64,
        /// Which is.
        found: u64,
    },
    /// It has no end: its writer was interrupted, or its end was cut off.
    #[error("its stream breaks off at record {records}: it was never finished, or its end was cut off")]
    Unfinished {
        /// Records before that.
        records: u64,
    },
    /// More than the volume, or a format's field, has room for.
    #[error("its stream is larger than its volume, which has {size_bytes} bytes")]
    NoRoom {
        /// The volume's size.
        size_bytes: u64,
    },
    /// A size that the format does not have.
    #[error("{what} of {actual} is not possible: {least} to {most}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// What it is.
        actual: u64,
        /// The least that it may be.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The volume, or who gives or takes the content.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The cipher.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}
