//! The root under a systemd credential (systemd.exec(5), *Credentials*): systemd decrypts it with
//! the machine's TPM or its own key, and exposes it only to this service, in memory that is not
//! swapped.
//!
//! The credential is a key, not a passphrase: it has at least 32 bytes, and guesses are not slowed
//! down. A passphrase can come as a credential too; that is
//! [`SecretSource::Credential`](super::SecretSource::Credential).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_memory::secret::SecretBytes;

use super::error::RootError;
use super::secret_source::{Reader, check_length, read_file};
use super::wrapped::{WrappedRoot, unwrap, wrap};
use super::{Access, ROOT_BYTES, RootId, RootKey, hex};

const WAY: &str = "credential";
/// Minimum length of a credential that is a key.
const LEAST_BYTES: usize = 32;
const SALT_BYTES: usize = 32;
const INFO: &[u8] = b"strongroom key server root v1: credential";

/// The name of a credential: a file's name, without a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CredentialName(String);

impl CredentialName {
    /// Checks a name as systemd's `credential_name_valid` does: a file's name without a directory
    /// or a colon, of printable ASCII, up to 255 bytes.
    ///
    /// # Errors
    /// [`RootError::CredentialName`].
    pub fn new(name: impl Into<String>) -> Result<Self, RootError> {
        let name = name.into();
        let printable = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:".contains(&byte));
        if printable && (1..=255).contains(&name.len()) && name != "." && name != ".." {
            return Ok(Self(name));
        }
        Err(RootError::CredentialName { name })
    }

    /// The path of the credential.
    pub(super) fn path(&self, credentials_directory: &Path) -> PathBuf {
        credentials_directory.join(&self.0)
    }

    /// Its content.
    pub(super) fn read(&self, access: &Access<'_>) -> Result<SecretBytes, RootError> {
        let Some(directory) = &access.credentials_directory else {
            return Err(RootError::NoCredentials { name: self.clone() });
        };
        match read_file(&self.path(directory), Reader::SystemdService) {
            Err(RootError::Unreadable { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(RootError::NoCredential { name: self.clone(), directory: directory.clone() })
            }
            outcome => outcome,
        }
    }
}

impl TryFrom<String> for CredentialName {
    type Error = RootError;

    fn try_from(name: String) -> Result<Self, RootError> {
        Self::new(name)
    }
}

impl From<CredentialName> for String {
    fn from(name: CredentialName) -> Self {
        name.0
    }
}

impl fmt::Display for CredentialName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The record of a seal under a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CredentialSeal {
    pub name: CredentialName,
    #[serde(with = "hex::array")]
    salt: [u8; SALT_BYTES],
    root: WrappedRoot,
}

impl fmt::Display for CredentialSeal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "systemd credential {}", self.name)
    }
}

pub(super) fn seal(
    root: &RootKey,
    name: &CredentialName,
    access: &Access<'_>,
) -> Result<CredentialSeal, RootError> {
    let credential = name.read(access)?;
    let mut salt = [0; SALT_BYTES];
    salt.copy_from_slice(SecretBytes::random(SALT_BYTES)?.expose());
    let key = key(&credential, &salt)?;
    Ok(CredentialSeal { name: name.clone(), salt, root: wrap(root, &key, WAY)? })
}

pub(super) fn unseal(
    seal: &CredentialSeal,
    id: RootId,
    access: &Access<'_>,
) -> Result<SecretBytes, RootError> {
    let key = key(&seal.name.read(access)?, &seal.salt)?;
    unwrap(&seal.root, id, &key, WAY)?.ok_or_else(|| RootError::WrongCredential { name: seal.name.clone() })
}

fn key(credential: &SecretBytes, salt: &[u8]) -> Result<SecretBytes, RootError> {
    check_length(credential, LEAST_BYTES)?;
    Ok(hkdf_sha256(credential, salt, INFO, ROOT_BYTES)?)
}
