//! The last completed backup, and the number of changes since: `backup.json` in the state
//! directory.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_types::hex;

use super::custodian::CustodianName;
use super::error::BackupError;
use super::header::{BackupId, Header, ShareHolder};
use super::records::Counts;

const FILE: &str = "backup.json";
const FORMAT: u32 = 1;
/// The longest record accepted: the most custodians with the longest names need a tenth of it.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A completed backup, as the server records it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastBackup {
    format: u32,
    /// The backup's id.
    pub id: BackupId,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The number of the server's changes at that time.
    pub generation: u64,
    /// How many shares open it.
    pub threshold: u8,
    /// The holders of shares.
    pub custodians: Vec<LastCustodian>,
    /// Its content, in numbers of records.
    pub counts: Counts,
}

/// A custodian of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastCustodian {
    /// The custodian's name.
    pub name: CustodianName,
    /// SHA-256 of the public key's SubjectPublicKeyInfo.
    #[serde(with = "hex::array")]
    pub key_sha256: [u8; 32],
}

/// Whether the server's state is backed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "backup", rename_all = "kebab-case")]
pub enum BackupStatus {
    /// There is no completed backup: if this machine is lost, every key is lost.
    Unbacked,
    /// There is one.
    Backed {
        /// The last one.
        last: LastBackup,
        /// The number of changes since.
        changes_since: u64,
    },
}

impl BackupStatus {
    /// The last backup, if there is one.
    pub fn last(&self) -> Option<&LastBackup> {
        match self {
            Self::Unbacked => None,
            Self::Backed { last, .. } => Some(last),
        }
    }
}

impl LastBackup {
    pub(super) fn new(header: &Header, counts: Counts) -> Self {
        let custodian =
            |holder: &ShareHolder| LastCustodian { name: holder.name.clone(), key_sha256: holder.key_sha256 };
        Self {
            format: FORMAT,
            id: header.id,
            created_unix_seconds: header.created_unix_seconds,
            generation: header.generation,
            threshold: header.threshold,
            custodians: header.custodians.iter().map(custodian).collect(),
            counts,
        }
    }

    /// The same for a server that was restored from it and is at `generation`.
    #[must_use]
    pub(crate) fn at_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Records it in `state_directory`, durably and atomically.
    ///
    /// # Errors
    /// [`BackupError::System`].
    pub fn remember(&self, state_directory: &Path) -> Result<(), BackupError> {
        let path = state_directory.join(FILE);
        let write = || {
            let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
            strongroom_files::replace(&path, &text)
        };
        write().map_err(|error| BackupError::System { what: "write", path: path.clone(), error })
    }
}

/// The backup on record in `state_directory`, for a server at `generation`.
///
/// A record with a later generation than the server's is from another history of the server, and
/// counts as none.
///
/// # Errors
/// [`BackupError::System`] if the record cannot be read or is invalid.
pub fn status(state_directory: &Path, generation: u64) -> Result<BackupStatus, BackupError> {
    let path = state_directory.join(FILE);
    let system = |error| BackupError::System { what: "read", path: path.clone(), error };
    let text = match strongroom_files::read(&path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BackupStatus::Unbacked),
        Err(error) => return Err(system(error)),
    };
    let last: LastBackup = serde_json::from_slice(&text).map_err(|error| system(error.into()))?;
    Ok(match generation.checked_sub(last.generation) {
        Some(changes_since) => BackupStatus::Backed { last, changes_since },
        None => BackupStatus::Unbacked,
    })
}
