//! Backup and restore of the key server's state, which take M of N custodians to open.
//!
//! - A backup is one file: a header that anybody can read, then everything the server needs
//!   ([`Record`]s, whose content nothing here understands), encrypted under a fresh random key.
//! - That key is kept nowhere. It is split (Shamir) into one share for each custodian, and each
//!   share is encrypted to that custodian's public key, in the header. The server cannot open its
//!   own backups.
//! - To restore, M custodians each open their share, by whatever holds their private key
//!   (`openssl`, a smart card), and bring it; see [`RestoreSession`]. Nothing of the server's
//!   changes until everything has been checked and staged.
//! - Tombstones win: a key that was destroyed stays destroyed, whether the backup or the present
//!   server knows of it.
//! - [`status`] says whether there is a completed backup, and how much has changed since.
//!
//! The format is in `docs/KEYS.md`. This module knows the file system and ciphers; what a record
//! means is known to those who implement [`BackupSource`] and [`RestoreTarget`].

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
pub use header::{BackupId, Header, ShareHolder, read_header};
pub use last::{BackupStatus, LastBackup, LastCustodian, status};

pub use opening::{CustodianKey, OpeningError};
pub use records::{Counts, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use restore::{RestoreMark, RestoreSession, RestoreTarget, Restored};

/// What a source or target of records says when it fails.
pub type Failure = Box<dyn Error + Send + Sync>;

/// One thing that a key server needs to be itself again.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Of which kind it is.
    pub kind: RecordKind,
    /// What it is called among its kind; an object and its tombstone have the same key. Not secret
    /// to the custodians.
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
    /// What the server has written down beside its keys: how far each VM has gone on, which
    /// destructions wait.
    Ledger,
    /// Its certificate authority: keys, clients, certificates, revocations.
    Authority,
    /// A managed object.
    Object,
    /// An object that was destroyed; its key is the object's, its value what is kept of it.
    Tombstone,
}

/// Where the records of a backup come from.
pub trait BackupSource {
    /// One consistent view of everything, whatever changes meanwhile.
    ///
    /// # Errors
    /// Whatever keeps the source from being read.
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure>;
}

/// One view of a source.
pub struct Snapshot<'a> {
    /// How many changes the server had seen by then; grows with each.
    pub generation: u64,
    /// All records, in any order.
    pub records: Box<dyn Iterator<Item = Result<Record, Failure>> + 'a>,
}

#[cfg(test)]
mod kill_tests;
#[cfg(test)]
pub(crate) mod tests;
