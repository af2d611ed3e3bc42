//! A secret with which two processes of one host authenticate each other.
//!
//! It is random, is stored in a file that only its owner can read, and makes and verifies tags over
//! messages. It encrypts nothing and wraps no key. Only the two functions here make a
//! [`PeerSecret`], and its bytes are never exposed. So a crate that holds one depends neither on
//! `crypto` nor on `memory`, and the secret cannot be used to hold a volume's key.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use strongroom_crypto::CryptoError;
use strongroom_crypto::mac::{hmac_sha256, verify_hmac_sha256};
use strongroom_memory::secret::{SecretBytes, SecretError};
use strongroom_types::hex;
use thiserror::Error;

/// The length of a secret, and of a challenge, in bytes.
const SECRET_BYTES: usize = 32;
/// The length of a challenge, in hexadecimal digits.
pub const CHALLENGE_DIGITS: usize = 2 * SECRET_BYTES;

/// The reasons why a secret cannot be made, read or used.
#[derive(Debug, Error)]
pub enum PeerSecretError {
    /// The secret's file failed.
    #[error("the secret that two processes share cannot be used: {0}")]
    File(#[from] io::Error),
    /// There is no memory for the secret, or there are no random numbers.
    #[error(transparent)]
    Memory(#[from] SecretError),
    /// The cipher library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// The tag was not made with this secret over this message.
    #[error("the tag is not authentic")]
    Wrong,
}

/// A secret that two processes share.
#[derive(Debug)]
pub struct PeerSecret(SecretBytes);

impl PeerSecret {
    /// Makes a secret, and writes it to a file that only its owner can read. An existing file is
    /// replaced.
    ///
    /// # Errors
    /// If there is no memory, or the file cannot be written.
    pub fn make(path: &Path) -> Result<Self, PeerSecretError> {
        let secret = SecretBytes::random(SECRET_BYTES)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(secret.expose())?;
        Ok(Self(secret))
    }

    /// Reads the secret of a file.
    ///
    /// # Errors
    /// If the file is missing, belongs to another user, or is readable by others.
    pub fn read(path: &Path) -> Result<Self, PeerSecretError> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("others can read it").into());
        }
        let mut secret = SecretBytes::zeroed(SECRET_BYTES)?;
        file.read_exact(secret.expose_mut())?;
        Ok(Self(secret))
    }

    /// The HMAC-SHA256 tag of a message, in hexadecimal.
    ///
    /// # Errors
    /// Those of the cipher library.
    pub fn tag(&self, message: &str) -> Result<String, PeerSecretError> {
        Ok(hex::encode(&hmac_sha256(&self.0, message.as_bytes())?))
    }

    /// Verifies a tag of [`tag`](Self::tag) in constant time.
    ///
    /// # Errors
    /// [`PeerSecretError::Wrong`] if the tag does not belong to this message.
    pub fn verify(&self, message: &str, tag: &str) -> Result<(), PeerSecretError> {
        let tag = hex::decode(tag).ok_or(PeerSecretError::Wrong)?;
        verify_hmac_sha256(&self.0, message.as_bytes(), &tag).map_err(|_| PeerSecretError::Wrong)
    }
}

/// A random challenge of [`CHALLENGE_DIGITS`] hexadecimal digits.
///
/// # Errors
/// If there are no random numbers.
pub fn challenge() -> Result<String, PeerSecretError> {
    Ok(hex::encode(SecretBytes::random(SECRET_BYTES)?.expose()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        PeerSecret::make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(PeerSecret::read(&path).is_err());
    }

    #[test]
    fn a_tag_is_of_one_message_and_one_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let made = PeerSecret::make(&path).unwrap();
        let tag = made.tag("a").unwrap();
        PeerSecret::read(&path).unwrap().verify("a", &tag).unwrap();
        assert!(made.verify("b", &tag).is_err());
        let other = PeerSecret::make(&path).unwrap();
        assert!(other.verify("a", &tag).is_err());
        assert!(made.verify("a", "no hexadecimal").is_err());
        assert_eq!(challenge().unwrap().len(), CHALLENGE_DIGITS);
    }
}
