//! A P-256 private key, and its sealed form in the store.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm, SigningKey};
use strongroom_crypto::CryptoError;
use strongroom_crypto::aead::{self, NONCE_BYTES, Sealed};
use strongroom_memory::secret::SecretBytes;

use super::error::AuthorityError;

/// A P-256 key that signs certificates or authenticates a server or client. The library holds it in
/// its own memory and wipes it on drop.
pub struct PrivateKey(EcdsaKeyPair);

impl PrivateKey {
    /// A new key, and its PKCS#8 (DER) to store.
    ///
    /// # Errors
    /// [`AuthorityError::Library`], [`AuthorityError::Secret`].
    pub fn generate() -> Result<(Self, SecretBytes), AuthorityError> {
        // The document wipes itself on drop.
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| AuthorityError::Library("the generation of a P-256 key"))?;
        let mut pkcs8 = SecretBytes::zeroed(document.as_ref().len())?;
        pkcs8.expose_mut().copy_from_slice(document.as_ref());
        Ok((Self::from_pkcs8(&pkcs8)?, pkcs8))
    }

    /// The key in this PKCS#8 (DER).
    ///
    /// # Errors
    /// [`AuthorityError::Library`] if it is not a P-256 key.
    pub fn from_pkcs8(pkcs8: &SecretBytes) -> Result<Self, AuthorityError> {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.expose())
            .map(Self)
            .map_err(|_| AuthorityError::Library("the reading of a P-256 key"))
    }
}

impl PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.0
            .sign(&SystemRandom::new(), message)
            .map(|signature| signature.as_ref().to_vec())
            .map_err(|_| rcgen::Error::RingUnspecified)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PrivateKey(P-256, redacted)")
    }
}

/// Seals `pkcs8` for the store: nonce, then ciphertext and tag. It is bound to `purpose`, so that
/// no key can replace another.
pub(crate) fn seal(
    sealing_key: &SecretBytes,
    purpose: &str,
    pkcs8: &SecretBytes,
) -> Result<Vec<u8>, CryptoError> {
    let sealed = aead::seal(sealing_key, purpose.as_bytes(), pkcs8)?;
    Ok([sealed.nonce.as_slice(), &sealed.ciphertext_and_tag].concat())
}

/// Opens the output of [`seal`].
pub(crate) fn open(
    sealing_key: &SecretBytes,
    purpose: &str,
    bytes: &[u8],
) -> Result<SecretBytes, AuthorityError> {
    let damaged = || AuthorityError::Damaged { key: purpose.to_owned() };
    let (nonce, ciphertext_and_tag) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or_else(damaged)?;
    let sealed = Sealed { nonce: *nonce, ciphertext_and_tag: ciphertext_and_tag.to_vec() };
    aead::open(sealing_key, purpose.as_bytes(), &sealed).map_err(AuthorityError::Sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_key_opens_for_its_purpose_alone() {
        let sealing_key = SecretBytes::random(32).unwrap();
        let (key, pkcs8) = PrivateKey::generate().unwrap();
        let sealed = seal(&sealing_key, "authority/ca/1", &pkcs8).unwrap();
        let opened = open(&sealing_key, "authority/ca/1", &sealed).unwrap();
        assert_eq!(PrivateKey::from_pkcs8(&opened).unwrap().der_bytes(), key.der_bytes());
        let other_root = SecretBytes::random(32).unwrap();
        assert!(matches!(open(&sealing_key, "authority/ca/2", &sealed), Err(AuthorityError::Sealed(_))));
        assert!(matches!(open(&other_root, "authority/ca/1", &sealed), Err(AuthorityError::Sealed(_))));
        assert!(matches!(open(&sealing_key, "x", &sealed[..5]), Err(AuthorityError::Damaged { .. })));
        assert!(!sealed.windows(32).any(|window| pkcs8.expose().windows(32).any(|part| part == window)));
        assert_eq!(format!("{key:?}"), "PrivateKey(P-256, redacted)");
    }
}
