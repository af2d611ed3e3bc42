//! Backup and restore of the key server's state and of the control plane's inventory. Opening a
//! backup takes M of N custodians.
//!
//! - A backup is one file: a readable header, which names its [`Content`], then the whole state
//!   ([`Record`]s, whose content this module does not interpret), encrypted under a fresh random
//!   key.
//! - That key is not stored. It is split (Shamir) into one share for each custodian, and each share
//!   is in the header, encrypted to its custodian's public key. The server cannot open its own
//!   backups.
//! - To restore, M custodians each open their share with their private key (`openssl`, a smart
//!   card) and supply it; see [`RestoreSession`]. The server's state does not change until
//!   everything has been checked and staged.
//! - Tombstones win: a destroyed key stays destroyed, whether the backup or the present server has
//!   its tombstone.
//! - [`status`] returns the last completed backup, and the number of changes since.
//!
//! The format is in `docs/KEYS.md`. This module handles the file system and ciphers; the
//! implementations of [`BackupSource`] and [`RestoreTarget`] interpret records.

mod archive;
mod arrival;
mod cms;
mod create;
mod custodian;
mod error;
mod header;
mod last;
mod opening;

mod records;
mod restore;
mod share;

use std::error::Error;
use std::fmt;

use zeroize::Zeroizing;

use strongroom_types::hex;

pub use arrival::Arrival;
pub(crate) use arrival::digest_of;
pub use create::{back_up, write};
pub use custodian::{
    CUSTODIANS_MAX, Custodian, CustodianName, Custody, RSA_BITS_MAX, RSA_BITS_MIN, ShareEncryption,
};
pub use error::{BackupError, ShareError};
pub use header::{BackupId, Content, Header, ShareHolder, read_header};
pub use last::{BackupStatus, LastBackup, LastCustodian, status};

pub use opening::{CustodianKey, OpeningError};
pub use records::{Counts, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use restore::{RestoreMark, RestoreSession, RestoreTarget, Restored};

/// An error of a source or target of records.
pub type Failure = Box<dyn Error + Send + Sync>;

/// One item of the state that is backed up.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Its kind.
    pub kind: RecordKind,
    /// Its key, unique among its kind; an object and its tombstone have the same key. Not secret
    /// from the custodians.
    pub key: Vec<u8>,
    /// Its content, which may be secret: objects are *not* sealed by the server's root here, so
    /// that they can be restored under another.
    pub value: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = hex::encode(&self.key);
        write!(formatter, "Record({:?} {key}, {} bytes, redacted)", self.kind, self.value.len())
    }
}

/// Kinds of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// The server's records beside its keys: the generations of VMs, pending destructions.
    Ledger,
    /// Its certificate authority: keys, clients, certificates, revocations.
    Authority,
    /// A managed object.
    Object,
    /// A destroyed object; its key is the object's, its value the rest that is kept.
    Tombstone,
    /// An entry of the control plane's store.
    Entry,
    /// A file of the control plane's directory; its key is the file's name.
    File,
}

impl RecordKind {
    /// What a backup with such a record is one of.
    pub fn content(self) -> Content {
        match self {
            Self::Ledger | Self::Authority | Self::Object | Self::Tombstone => Content::KeyServer,
            Self::Entry | Self::File => Content::Inventory,
        }
    }
}

/// The source of a backup's records.
pub trait BackupSource {
    /// A consistent snapshot of the whole state.
    ///
    /// # Errors
    /// The source's read error.
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure>;
}

/// A snapshot of a source.
pub struct Snapshot<'a> {
    /// What it is a snapshot of.
    pub content: Content,
    /// The number of the source's changes at that time; grows with each.
    pub generation: u64,
    /// All records, in any order.
    pub records: Box<dyn Iterator<Item = Result<Record, Failure>> + 'a>,
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
pub(crate) mod tests;
