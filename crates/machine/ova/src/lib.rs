//! VMs of other hypervisors as one file (OVA): a tar archive of a description (OVF, DSP0243 of
//! DMTF), a manifest of checksums, and disks.
//!
//! - [`archive`]: the files in it, found and never unpacked by name; [`manifest`]: their checksums.
//! - [`envelope`]: the VM that is described, as far as it can be taken over, and notes of the rest.
//! - [`writing`]: the same in the other direction.
//!
//! Everything in such a file is somebody else's: names lead nowhere, sizes are compared with the
//! file, and counts and lengths have limits that are checked before memory is taken.
#![forbid(unsafe_code)]

pub mod archive;
pub mod envelope;
pub mod manifest;
pub mod writing;

use std::io;

use thiserror::Error;

/// Why a file is not taken.
#[derive(Debug, Error)]
pub enum OvaError {
    /// It cannot be read or written.
    #[error("it cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// It is no archive, or one that is not supported.
    #[error("it is no OVA that is understood: {0}")]
    Archive(String),
    /// A file in it has another checksum than the manifest states.
    #[error("{0} in it has another checksum than its manifest says: it was changed, or is damaged")]
    Checksum(String),
    /// The description is not understood.
    #[error("its description is not understood: {0}")]
    Envelope(String),
    /// The description asks for something that no VM here has.
    #[error("it cannot be taken over: {0}")]
    Unsupported(String),
}
