//! Heads: signed statements of how far the log reached. An auditor who keeps one can tell later
//! whether the log was cut short or rewritten.

use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;

use strongroom_types::hex;

/// Signs heads: ECDSA over P-256 with SHA-256 (FIPS 186-5), the signature in DER.
pub trait HeadSigner: Send {
    /// Signs a message.
    ///
    /// # Errors
    /// [`SignError`] when the key cannot be used now.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError>;

    /// The key that verifies what it signs.
    fn public_key(&self) -> PublicKey;
}

/// A key that others use, too: documents are signed beside heads.
impl<S: HeadSigner + Sync> HeadSigner for Arc<S> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        (**self).sign(message)
    }

    fn public_key(&self) -> PublicKey {
        (**self).public_key()
    }
}

/// A key could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SignError(pub String);

/// A signing key in memory.
pub struct HeadKey {
    pair: EcdsaKeyPair,
    public: PublicKey,
}

impl HeadKey {
    /// The key in a PKCS#8 document (RFC 5958). The bytes are the caller's to wipe.
    ///
    /// # Errors
    /// [`SignError`] if it holds no key of P-256.
    pub fn from_pkcs8(document: &[u8]) -> Result<Self, SignError> {
        let refused = |_| SignError("the document holds no P-256 key".into());
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document).map_err(refused)?;
        let der: PublicKeyX509Der<'_> =
            pair.public_key().as_der().map_err(|_| SignError("the key has no public half".into()))?;
        let public = PublicKey::from_der(der.as_ref())?;
        Ok(Self { pair, public })
    }
}

impl std::fmt::Debug for HeadKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("HeadKey").field("public", &self.public.id()).finish_non_exhaustive()
    }
}

impl HeadSigner for HeadKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let signature = self.pair.sign(&SystemRandom::new(), message);
        let signature = signature.map_err(|_| SignError("the library refused to sign".into()))?;
        Ok(signature.as_ref().to_vec())
    }

    fn public_key(&self) -> PublicKey {
        self.public.clone()
    }
}

/// A key that verifies heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    der: Vec<u8>,
    id: String,
}

impl PublicKey {
    /// The key of a SubjectPublicKeyInfo (RFC 5280) in DER.
    ///
    /// # Errors
    /// [`SignError`] if it is not a P-256 key.
    pub fn from_der(der: &[u8]) -> Result<Self, SignError> {
        let parsed = aws_lc_rs::signature::ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, der);
        parsed.map_err(|_| SignError("this is no P-256 public key".into()))?;
        Ok(Self { der: der.to_vec(), id: hex::encode(&mac::sha256(der)) })
    }

    /// Its SubjectPublicKeyInfo in DER.
    pub fn as_der(&self) -> &[u8] {
        &self.der
    }

    /// SHA-256 of the DER in hexadecimal; lines name the key by it.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.der).verify(message, signature).is_ok()
    }
}

/// A signed statement of how far a log reached. A copy kept elsewhere shows later whether the log
/// still has every line up to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignedHead {
    /// Which log.
    pub log: String,
    /// Up to which line.
    pub sequence: u64,
    /// The hash of that line, in hexadecimal.
    pub hash: String,
    /// The time.
    pub time: String,
    /// The id of the key.
    pub key: String,
    /// The signature in DER, in hexadecimal.
    pub signature: String,
}

impl SignedHead {
    /// Signs.
    pub(crate) fn sign(
        log: &str,
        sequence: u64,
        hash: &[u8],
        time: &str,
        signer: &dyn HeadSigner,
    ) -> Result<Self, SignError> {
        let mut head = Self {
            log: log.to_owned(),
            sequence,
            hash: hex::encode(hash),
            time: time.to_owned(),
            key: signer.public_key().id().to_owned(),
            signature: String::new(),
        };
        head.signature = hex::encode(&signer.sign(head.message().as_bytes())?);
        Ok(head)
    }

    /// The text that is signed.
    pub fn message(&self) -> String {
        let Self { log, sequence, hash, time, .. } = self;
        format!("strongroom audit head 1\nlog {log}\nsequence {sequence}\nhash {hash}\ntime {time}\n")
    }

    /// Whether one of these keys signed it.
    pub fn is_signed_by(&self, keys: &[PublicKey]) -> bool {
        let Some(signature) = hex::decode(&self.signature) else { return false };
        let message = self.message();
        let mut named = keys.iter().filter(|key| key.id() == self.key);
        named.any(|key| key.verifies(message.as_bytes(), &signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> HeadKey {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
        HeadKey::from_pkcs8(document.as_ref()).unwrap()
    }

    #[test]
    fn a_head_is_signed_by_its_key_and_by_no_other() {
        let (ours, other) = (key(), key());
        let head = SignedHead::sign("log", 7, &[1; 32], "now", &ours).unwrap();
        let public = ours.public_key();
        assert!(head.is_signed_by(&[other.public_key(), public.clone()]));
        assert!(!head.is_signed_by(&[other.public_key()]));
        for changed in [
            SignedHead { sequence: 8, ..head.clone() },
            SignedHead { hash: hex::encode(&[2; 32]), ..head.clone() },
            SignedHead { log: "gol".into(), ..head.clone() },
            SignedHead { time: "then".into(), ..head.clone() },
            SignedHead { signature: "00".into(), ..head.clone() },
        ] {
            assert!(!changed.is_signed_by(std::slice::from_ref(&public)));
        }
        assert_eq!(PublicKey::from_der(public.as_der()), Ok(public));
        assert!(PublicKey::from_der(b"no key").is_err());
        assert!(HeadKey::from_pkcs8(b"no key").is_err());
    }
}
