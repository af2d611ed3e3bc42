//! The root under a 32-byte key, for the ways that end in one: AES-256-GCM with a random nonce.

use serde::{Deserialize, Serialize};
use strongroom_crypto::CryptoError;
use strongroom_crypto::aead::{self, NONCE_BYTES, Sealed};
use strongroom_memory::secret::SecretBytes;

use super::error::RootError;
use super::{RootId, RootKey, hex};

/// A sealed root; not secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrappedRoot {
    #[serde(with = "hex::array")]
    nonce: [u8; NONCE_BYTES],
    /// The root and the tag of 16 bytes.
    #[serde(with = "hex")]
    sealed: Vec<u8>,
}

/// Seals `root` under `key`. `way` and the root's id are authenticated with it, so that one seal
/// cannot pass for another.
pub(super) fn wrap(root: &RootKey, key: &SecretBytes, way: &str) -> Result<WrappedRoot, RootError> {
    let sealed = aead::seal(key, associated_data(root.id, way).as_bytes(), &root.secret)?;
    Ok(WrappedRoot { nonce: sealed.nonce, sealed: sealed.ciphertext_and_tag })
}

/// Opens `wrapped`; `None` if it was sealed under another key.
pub(super) fn unwrap(
    wrapped: &WrappedRoot,
    id: RootId,
    key: &SecretBytes,
    way: &str,
) -> Result<Option<SecretBytes>, RootError> {
    let sealed = Sealed { nonce: wrapped.nonce, ciphertext_and_tag: wrapped.sealed.clone() };
    match aead::open(key, associated_data(id, way).as_bytes(), &sealed) {
        Ok(root) => Ok(Some(root)),
        Err(CryptoError::Authentication { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The associated data of every seal of the root.
pub(super) fn associated_data(id: RootId, way: &str) -> String {
    format!("strongroom key server root v1, {id}, {way}")
}
