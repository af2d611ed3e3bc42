//! The root key: 32 random bytes that seal the rest of the key server's state.
//!
//! It is made once, is in memory while the server runs, and on disk only in sealed form:
//! `root.json` in the state directory records how, and holds no secret. There is one file for each
//! way of sealing:
//!
//! | way | opened by | status shows |
//! |---|---|---|
//! | [`tpm`] | this machine's TPM 2.0, perhaps only in a given boot state | `tpm` |
//! | [`token`] | an AES key that never leaves a PKCS#11 token, and its PIN | `token` |
//! | [`credential`] | a credential that systemd hands to the service | `credential` |
//! | [`passphrase`] | a passphrase, through Argon2id | `passphrase` |
//! | [`plain_file`] | a file beside the data: anyone with the disk has the keys | `unprotected` |
//!
//! Every way seals the same root, so that the way can be changed ([`reseal`]) without resealing the
//! data. The drawback: an attacker who once had the root (from a disk copy of the time when it was
//! `unprotected`, for example) still has it. Against that, make a new server and restore a backup
//! into it.
//!
//! This module does not prompt, print or log; secrets come in and go out as [`SecretBytes`]. It may
//! use the crypto room and devices, and does not know objects, clients or KMIP.

pub mod credential;
mod error;
pub mod passphrase;
mod place;
pub mod plain_file;
mod record;
mod secret_source;
pub mod token;
pub mod tpm;
mod warning;
mod wrapped;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_memory::secret::SecretBytes;

pub use error::RootError;
pub use secret_source::{SECRET_BYTES_MAX, SecretSource, read_descriptor};
pub use warning::{Warning, sealing_command};

use strongroom_types::{hex, unix_seconds_now};

use place::Place;
use record::{Root, Seal};

/// Bytes of the root key: an input of HKDF-SHA256 as strong as AES-256.
pub const ROOT_BYTES: usize = 32;

/// Bytes of a key from [`RootKey::derive`].
pub const DERIVED_BYTES: usize = 32;

const DERIVE_INFO: &str = "strongroom key server root v1: ";
const ID_INFO: &[u8] = b"strongroom key server root id v1";
const ID_BYTES: usize = 16;

/// The root key, in memory. Wiped on drop; `Debug` shows its id.
pub struct RootKey {
    id: RootId,
    secret: SecretBytes,
}

impl RootKey {
    /// A new one, from the kernel's random source.
    fn generate() -> Result<Self, RootError> {
        Self::new(SecretBytes::random(ROOT_BYTES)?)
    }

    fn new(secret: SecretBytes) -> Result<Self, RootError> {
        if secret.len() != ROOT_BYTES {
            return Err(RootError::RootLength { actual_bytes: secret.len() });
        }
        let id = hkdf_sha256(&secret, b"", ID_INFO, ID_BYTES)?;
        let mut bytes = [0; ID_BYTES];
        bytes.copy_from_slice(id.expose());
        Ok(Self { id: RootId(bytes), secret })
    }

    /// A key for one purpose: HKDF-SHA256 of the root, [`DERIVED_BYTES`] long. Two labels never
    /// share a key; a label names purpose and version, as in `objects v1`.
    ///
    /// # Errors
    /// If the kernel provides no secret memory.
    pub fn derive(&self, label: &str) -> Result<SecretBytes, RootError> {
        let info = format!("{DERIVE_INFO}{label}");
        Ok(hkdf_sha256(&self.secret, b"", info.as_bytes(), DERIVED_BYTES)?)
    }

    /// The root's id, derived one-way from the key, so it is not secret.
    pub fn id(&self) -> RootId {
        self.id
    }

    /// Whether the kernel keeps it from being swapped out. If not, `RLIMIT_MEMLOCK` is exhausted,
    /// and the server warns.
    pub fn is_locked(&self) -> bool {
        self.secret.is_locked()
    }

    /// Refuses another root than `expected`.
    fn expect(self, expected: RootId) -> Result<Self, RootError> {
        if self.id == expected {
            return Ok(self);
        }
        Err(RootError::OtherRoot { unsealed: self.id, expected })
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RootKey({}, redacted)", self.id)
    }
}

/// The id of a root key, which reveals nothing about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RootId(#[serde(with = "hex::array")] [u8; ID_BYTES]);

impl fmt::Display for RootId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for RootId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RootId({self})")
    }
}

/// The root's protection, as `status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Sealed by this machine's TPM 2.0.
    Tpm,
    /// Sealed by a key in a PKCS#11 token.
    Token,
    /// Sealed under a systemd credential.
    Credential,
    /// Sealed under a passphrase.
    Passphrase,
    /// Not sealed: the root is on the same disk as the data it protects.
    Unprotected,
}

impl fmt::Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tpm => "tpm",
            Self::Token => "token",
            Self::Credential => "credential",
            Self::Passphrase => "passphrase",
            Self::Unprotected => "unprotected",
        })
    }
}

/// How a root is to be sealed.
#[derive(Clone, Debug)]
pub enum Way {
    /// By a TPM 2.0.
    Tpm(tpm::TpmWay),
    /// By a PKCS#11 token.
    Token(token::TokenWay),
    /// Under a systemd credential.
    Credential(credential::CredentialName),
    /// Under a passphrase.
    Passphrase(passphrase::PassphraseWay),
    /// Not protected: the key is in a file of the state directory.
    PlainFile,
}

impl Way {
    /// The part of `access` that this way seals with, which must equal the next start's: a
    /// passphrase typed to open the former seal must not replace the one in the file that the new
    /// seal names.
    fn access<'a>(&self, access: &Access<'a>) -> Access<'a> {
        let is_given = match self {
            Self::Passphrase(way) => matches!(way.source, SecretSource::Given {}),
            Self::Token(way) => matches!(way.pin, SecretSource::Given {}),
            Self::Tpm(_) | Self::Credential(_) | Self::PlainFile => false,
        };
        Access {
            given: access.given.filter(|_| is_given),
            credentials_directory: access.credentials_directory.clone(),
            attempt: access.attempt,
        }
    }
}

/// A process's means of opening a root.
#[derive(Debug, Default)]
pub struct Access<'a> {
    /// The passphrase or PIN from a person or a descriptor. For opening, it takes precedence over
    /// the recorded source; for sealing, it counts only if the way uses [`SecretSource::Given`].
    pub given: Option<&'a SecretBytes>,
    /// The service's credentials directory: `$CREDENTIALS_DIRECTORY`.
    pub credentials_directory: Option<PathBuf>,
    /// How freely to use a token's tries.
    pub attempt: Attempt,
}

impl Access<'_> {
    /// The access of an unattended service, with or without systemd.
    pub fn of_this_service() -> Self {
        Self {
            credentials_directory: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            ..Self::default()
        }
    }
}

/// How freely a token's tries may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attempt {
    /// Unattended: a service that is restarted repeatedly must not use up a token's tries, so it
    /// does not try once the token reports an earlier wrong PIN.
    #[default]
    Unattended,
    /// A person has just entered the PIN. The token's last try is still not used.
    Attended,
    /// A person has entered it and knows that it is the last try.
    LastTry,
}

/// The recorded facts of a root, without opening it.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// The root's id.
    pub id: RootId,
    /// Its protection.
    pub protection: Protection,
    /// The protection in detail, for people: the device, the token, the credential.
    pub by: String,
    /// The number of this root's seals so far, from 1.
    pub generation: u64,
    /// When it was sealed this way, in seconds since 1970.
    pub sealed_unix_seconds: u64,
    /// Warnings for people.
    pub warnings: Vec<Warning>,
}

/// Makes the root of a new key server and seals it.
///
/// `state_directory` must exist. A crash leaves a whole root or none.
///
/// # Errors
/// [`RootError::Exists`] if it has a root; otherwise why sealing failed. Nothing has changed then.
pub fn create(state_directory: &Path, way: &Way, access: &Access<'_>) -> Result<RootKey, RootError> {
    let place = Place::lock(state_directory)?;
    if place.has_record()? {
        return Err(RootError::Exists { path: place.record_path() });
    }
    let root = RootKey::generate()?;
    seal_and_publish(&place, &root, 1, way, access)?;
    Ok(root)
}

/// Opens the root of `state_directory`.
///
/// # Errors
/// [`RootError::Missing`], or the exact obstacle and the next step.
pub fn open(state_directory: &Path, access: &Access<'_>) -> Result<RootKey, RootError> {
    let place = Place::lock(state_directory)?;
    let record = place.read_record()?;
    place.remove_leftovers(&record);
    unseal(&place, &record, access)
}

/// Seals the root of `state_directory` in another way, or again in the same way (another
/// passphrase, other PCRs).
///
/// `root`, from [`open`], proves the caller's permission. The new seal is opened once before it
/// atomically replaces the old one; a crash leaves one or the other.
///
/// # Errors
/// Why the new way failed; the old seal is kept.
pub fn reseal(
    state_directory: &Path,
    root: &RootKey,
    way: &Way,
    access: &Access<'_>,
) -> Result<(), RootError> {
    let place = Place::lock(state_directory)?;
    let record = place.read_record()?;
    if record.id != root.id {
        return Err(RootError::OtherRoot { unsealed: root.id, expected: record.id });
    }
    seal_and_publish(&place, root, record.generation.saturating_add(1), way, access)
}

/// The recorded facts of the root of `state_directory`. Uses no TPM or token.
///
/// # Errors
/// [`RootError::Missing`], or why the record cannot be read.
pub fn describe(
    state_directory: &Path,
    credentials_directory: Option<&Path>,
) -> Result<Description, RootError> {
    let place = Place::unlocked(state_directory);
    let record = place.read_record()?;
    Ok(Description {
        id: record.id,
        protection: record.seal.protection(),
        by: record.seal.to_string(),
        generation: record.generation,
        sealed_unix_seconds: record.sealed_unix_seconds,
        warnings: warning::of(state_directory, &record.seal, credentials_directory),
    })
}

fn seal_and_publish(
    place: &Place,
    root: &RootKey,
    generation: u64,
    way: &Way,
    access: &Access<'_>,
) -> Result<(), RootError> {
    let access = &way.access(access);
    let mut key_file = None;
    let seal = match way {
        Way::Tpm(way) => Seal::Tpm(tpm::seal(root, way)?),
        Way::Token(way) => Seal::Token(token::seal(root, way, access)?),
        Way::Credential(name) => Seal::Credential(credential::seal(root, name, access)?),
        Way::Passphrase(way) => Seal::Passphrase(passphrase::seal(root, way, access)?),
        Way::PlainFile => {
            let (seal, key) = plain_file::seal(root, generation)?;
            key_file = Some(key);
            Seal::PlainFile(seal)
        }
    };
    let record = Root { id: root.id, generation, sealed_unix_seconds: unix_seconds_now(), seal };
    place.publish(&record, key_file.as_ref(), &|place| {
        // A seal that does not open must not replace one that does.
        unseal(place, &record, access).map(drop)
    })
}

fn unseal(place: &Place, record: &Root, access: &Access<'_>) -> Result<RootKey, RootError> {
    match &record.seal {
        Seal::Tpm(seal) => tpm::unseal(seal),
        Seal::Token(seal) => token::unseal(seal, record.id, access),
        Seal::Credential(seal) => credential::unseal(seal, record.id, access),
        Seal::Passphrase(seal) => passphrase::unseal(seal, record.id, access),
        Seal::PlainFile(seal) => plain_file::unseal(seal, record.id, place.directory()),
    }
    .and_then(|secret| RootKey::new(secret)?.expect(record.id))
}

#[cfg(test)]
mod tests;
