//! The header of a backup: the file's first line, readable JSON. It lists the custodians and holds
//! their shares, each encrypted to its custodian. Every chunk after it is bound to its exact bytes.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_memory::secret::SecretBytes;
use uuid::Uuid;

use super::Snapshot;
use super::custodian::{CUSTODIANS_MAX, CustodianName, ShareEncryption};
use super::error::BackupError;
use strongroom_types::{hex, unix_seconds_now};

const VERSION: u32 = 1;
/// Longest header: sixteen shares of RSA-8192 in hexadecimal have 32 KiB.
pub(super) const HEADER_BYTES_MAX: usize = 64 << 10;
const KEY_CHECK_BYTES: usize = 16;
const KEY_CHECK_INFO: &[u8] = b"strongroom backup v1 key check";

/// What a backup is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Content {
    /// A key server's state.
    #[serde(rename = "strongroom key server backup")]
    KeyServer,
    /// A control plane's inventory.
    #[serde(rename = "strongroom inventory backup")]
    Inventory,
}

impl Content {
    fn of_format(format: &str) -> Option<Self> {
        serde_json::from_value(format.into()).ok()
    }
}

impl fmt::Display for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::KeyServer => "key server",
            Self::Inventory => "control plane's inventory",
        })
    }
}

/// A backup's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackupId(Uuid);

impl BackupId {
    pub(super) fn new() -> Self {
        Self(Uuid::new_v4())
    }

    pub(super) fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl From<BackupId> for Uuid {
    fn from(id: BackupId) -> Self {
        id.0
    }
}

impl From<Uuid> for BackupId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A backup's header. It is not authenticated until M shares have opened the backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// What it is a backup of.
    #[serde(rename = "format")]
    pub content: Content,
    pub(super) version: u32,
    /// The backup's id.
    pub id: BackupId,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The number of the source's changes at that time.
    pub generation: u64,
    /// How many shares open it.
    pub threshold: u8,
    #[serde(with = "hex::array")]
    pub(super) key_check: [u8; KEY_CHECK_BYTES],
    /// The holders of shares.
    pub custodians: Vec<ShareHolder>,
}

/// A custodian, and their share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareHolder {
    /// The share's number, from 1.
    pub index: u8,
    /// The custodian's name.
    pub name: CustodianName,
    /// SHA-256 of the SubjectPublicKeyInfo that it is encrypted to.
    #[serde(with = "hex::array")]
    pub key_sha256: [u8; 32],
    /// How it is encrypted.
    pub encryption: ShareEncryption,
    /// The encrypted share; the custodian's tool takes a file of these bytes.
    #[serde(with = "hex")]
    pub share: Vec<u8>,
}

impl Header {
    /// A header of this version, for a backup that is made now.
    pub(super) fn new(
        id: BackupId,
        snapshot: &Snapshot<'_>,
        threshold: u8,
        key: &SecretBytes,
        custodians: Vec<ShareHolder>,
    ) -> Result<Self, BackupError> {
        Ok(Self {
            content: snapshot.content,
            version: VERSION,
            id,
            created_unix_seconds: unix_seconds_now(),
            generation: snapshot.generation,
            threshold,
            key_check: key_check(key, id)?,
            custodians,
        })
    }

    /// Whether `key` is this backup's.
    pub(super) fn is_opened_by(&self, key: &SecretBytes) -> Result<bool, BackupError> {
        Ok(key_check(key, self.id)? == self.key_check)
    }

    fn is_possible(&self) -> bool {
        let total = self.custodians.len();
        let in_order =
            self.custodians.iter().enumerate().all(|(at, holder)| usize::from(holder.index) == at + 1);
        total <= CUSTODIANS_MAX && (2..=total).contains(&usize::from(self.threshold)) && in_order
    }
}

/// Derived one-way from the key, so it may be public; detects wrong shares before anything is
/// decrypted.
fn key_check(key: &SecretBytes, id: BackupId) -> Result<[u8; KEY_CHECK_BYTES], BackupError> {
    let derived = hkdf_sha256(key, id.as_uuid().as_bytes(), KEY_CHECK_INFO, KEY_CHECK_BYTES)?;
    let mut check = [0; KEY_CHECK_BYTES];
    check.copy_from_slice(derived.expose());
    Ok(check)
}

/// Reads the header of the backup at `path`.
///
/// # Errors
/// [`BackupError::NotABackup`], [`BackupError::Newer`], [`BackupError::System`].
pub fn read_header(path: &Path) -> Result<Header, BackupError> {
    open(path).map(|(header, _, _)| header)
}

/// Opens a backup: its header, the header's exact line, and the file after it.
pub(super) fn open(path: &Path) -> Result<(Header, Vec<u8>, BufReader<File>), BackupError> {
    let system = |error| BackupError::System { what: "read", path: path.to_owned(), error };
    let not_a_backup = |why: &str| BackupError::NotABackup { path: path.to_owned(), why: why.to_owned() };
    let mut file = BufReader::new(File::open(path).map_err(system)?);
    let mut line = Vec::new();
    file.by_ref().take(HEADER_BYTES_MAX as u64).read_until(b'\n', &mut line).map_err(system)?;
    if line.last() != Some(&b'\n') {
        return Err(not_a_backup("it does not start with a header"));
    }
    /// The fields that every version has.
    #[derive(Deserialize)]
    struct Version {
        format: String,
        version: u32,
    }
    let said: Version = serde_json::from_slice(&line).map_err(|error| not_a_backup(&error.to_string()))?;
    if Content::of_format(&said.format).is_none() {
        return Err(not_a_backup("its header says that it is something else"));
    }
    if said.version != VERSION {
        return Err(BackupError::Newer { path: path.to_owned(), version: said.version });
    }
    let header: Header = serde_json::from_slice(&line).map_err(|error| not_a_backup(&error.to_string()))?;
    if !header.is_possible() {
        return Err(not_a_backup("its custodians and threshold cannot be"));
    }
    Ok((header, line, file))
}
