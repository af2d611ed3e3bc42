//! Why a backup cannot be made or opened, and what to do next.

use std::io;
use std::path::PathBuf;

use strongroom_crypto::CryptoError;
use strongroom_memory::secret::SecretError;
use thiserror::Error;

use super::Failure;
use super::custodian::{CUSTODIANS_MAX, RSA_BITS_MAX, RSA_BITS_MIN};
use super::header::{BackupId, Content};
use super::records::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Why a backup cannot be made or opened, and what to do next.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The number of custodians or the threshold is out of range.
    #[error(
        "a backup that {threshold} of {custodians} custodians open cannot be made: give --threshold at least 2 and at most the number of custodians, of \
         whom there are up to {CUSTODIANS_MAX}"
    )]
    Threshold {
        /// The number of custodians needed to open the backup.
        threshold: usize,
        /// The number of custodians.
        custodians: usize,
    },
    /// Two custodians have the same name, or the same key.
    #[error("custodians {first} and {second} have the same {what}; each must be a person of their own")]
    SameCustodian {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// `name` or `key`.
        what: &'static str,
    },
    /// An invalid name of a custodian.
    #[error("'{name}' is no name for a custodian: 1 to 64 letters, digits or . _ @ + -")]
    CustodianName {
        /// The name as given.
        name: String,
    },
    /// A public key to which no share can be encrypted.
    #[error(
        "the key of custodian {name} does not do ({why}); give a public key or certificate as PEM, RSA of {RSA_BITS_MIN} to {RSA_BITS_MAX} bits or on P-256 or P-384"
    )]
    CustodianKey {
        /// The custodian.
        name: String,
        /// Why it is unfit.
        why: &'static str,
    },
    /// The backup's file already exists.
    #[error("{path} exists already; give the backup a name of its own")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {what} {path}: {error}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The state could not be read.
    #[error("the state cannot be backed up: {0}")]
    Source(#[source] Failure),
    /// A record is longer than a backup can hold.
    #[error(
        "a record has a key of {key_bytes} and a value of {value_bytes} bytes; a backup holds {KEY_BYTES_MAX} and {VALUE_BYTES_MAX} at most"
    )]
    RecordLength {
        /// Its key's length.
        key_bytes: usize,
        /// Its value's length.
        value_bytes: usize,
    },
    /// The written file does not read back correctly.
    #[error(
        "the backup was written and does not read back as it was ({why}); it was removed. The disk or the memory fails"
    )]
    ReadBack {
        /// The difference.
        why: String,
    },
    /// The received file differs from the one that the server made.
    #[error("what arrived is not the backup that the server made; there is no {path}. Try again")]
    NotArrived {
        /// The intended path.
        path: PathBuf,
    },
    /// The file is not a backup.
    #[error("{path} is no backup: {why}")]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The backup is one of something else.
    #[error("{path} is a backup of a {found}, and not of a {wanted}")]
    OfOther {
        /// The file.
        path: PathBuf,
        /// What it is a backup of.
        found: Content,
        /// What was asked for.
        wanted: Content,
    },
    /// The backup was made by a newer program.
    #[error(
        "{path} has version {version} of the backup format, which this program does not know; use the newer one"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The content is damaged.
    #[error("{path} is damaged at byte {offset} ({why}); nothing was restored. Use another copy of it")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset of the damaged part.
        offset: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// Too few shares yet.
    #[error("{given} of {threshold} shares are there; {} more are needed", threshold - given)]
    TooFewShares {
        /// How many there are.
        given: usize,
        /// How many are needed.
        threshold: usize,
    },
    /// The shares are intact, but do not open this file.
    #[error(
        "the shares are of backup {id} and whole, but do not open this file: its header was changed. Use another copy of it"
    )]
    WrongKey {
        /// The backup's id.
        id: BackupId,
    },
    /// The server is not empty.
    #[error(
        "this key server has {objects} keys; a restore replaces them by the backup's, and those that it lacks are lost. If that is wanted, say so (--replace)"
    )]
    NotEmpty {
        /// How many.
        objects: u64,
    },
    /// The restored state could not be written.
    #[error(
        "the backup cannot be restored: {0}. Everything is as it was; the same restore can be started again"
    )]
    Target(#[source] Failure),
    /// A share was refused.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The library of ciphers refused.
    #[error("{call} failed in the cryptographic library")]
    Library {
        /// The call.
        call: &'static str,
    },
    /// A cipher refused.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl BackupError {
    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Threshold { .. }
            | Self::SameCustodian { .. }
            | Self::CustodianName { .. }
            | Self::CustodianKey { .. } => "custodians",
            Self::Exists { .. } => "exists",
            Self::NotABackup { .. } | Self::OfOther { .. } | Self::Newer { .. } => "not_a_backup",
            Self::Damaged { .. }
            | Self::WrongKey { .. }
            | Self::NotArrived { .. }
            | Self::ReadBack { .. } => "backup_damaged",
            Self::TooFewShares { .. } => "too_few_shares",
            Self::NotEmpty { .. } => "not_empty",
            Self::Share(_) => "share",
            Self::System { .. }
            | Self::Source(_)
            | Self::RecordLength { .. }
            | Self::Target(_)
            | Self::Library { .. }
            | Self::Crypto(_)
            | Self::Secret(_) => "backup",
        }
    }
}

/// What is wrong with a share.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// It is not a share.
    #[error(
        "this is no share of a backup; give the line that starts with strongroom-share-1, which `strongroom keyserver custodian open-share` makes of \
         what is encrypted to its custodian"
    )]
    NotAShare,
    /// It is damaged or mistyped.
    #[error("this share is damaged or mistyped: {why}. Open it again")]
    Damaged {
        /// What is wrong.
        why: &'static str,
    },
    /// It belongs to another backup.
    #[error(
        "share {index} is of backup {share_of}, not of {wanted}; open the share that lies in this backup's file"
    )]
    OtherBackup {
        /// The share's number.
        index: u8,
        /// Its backup.
        share_of: BackupId,
        /// The backup at hand.
        wanted: BackupId,
    },
    /// The share and the backup's header disagree.
    #[error(
        "share {index} says {share_threshold} of {share_total}, and the backup's header says {threshold} of {total}: the header was changed. Use another copy of the file"
    )]
    OtherThreshold {
        /// The share's number.
        index: u8,
        /// The threshold, according to the share.
        share_threshold: u8,
        /// The number of custodians, according to the share.
        share_total: u8,
        /// The threshold, according to the header.
        threshold: u8,
        /// The number of custodians, according to the header.
        total: u8,
    },
    /// It was given before.
    #[error("share {index} was given already; shares of other custodians are needed")]
    Twice {
        /// The share's number.
        index: u8,
    },
    /// No memory for a secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
}
