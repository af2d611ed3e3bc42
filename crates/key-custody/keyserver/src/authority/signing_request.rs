//! PKCS#10 signing requests (RFC 2986): the key to certify, and the proof that the client has its
//! private half.
//!
//! Only the key is taken from a request. The authority decides subject, names and extensions
//! itself, so a request cannot widen a certificate's contents.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P256_SHA512_ASN1, ECDSA_P384_SHA256_ASN1,
    ECDSA_P384_SHA384_ASN1, ECDSA_P384_SHA512_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey, VerificationAlgorithm,
};
use rcgen::{
    CertificateParams, DistinguishedName, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519,
    PKCS_RSA_SHA256, PublicKeyData, SignatureAlgorithm, SubjectPublicKeyInfo,
};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::oid_registry::{
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512, OID_SIG_ED25519, Oid,
};
use x509_parser::prelude::FromDer;

use super::error::{AuthorityError, SigningRequestError};
use super::limits::SIGNING_REQUEST_MAX_BYTES;
use super::private_key::PrivateKey;
use crate::access::PublicKeySha256;

/// The types of keys that the authority certifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyTypes {
    /// P-256, P-384, RSA with 2048 to 8192 bits, Ed25519.
    All,
    /// The same without Ed25519, for the FIPS profile.
    WithoutEd25519,
}

/// A public key with a proof that the client has its private half.
#[derive(Debug)]
pub struct RequestedKey {
    key: SubjectPublicKeyInfo,
    sha256: PublicKeySha256,
}

impl RequestedKey {
    /// Reads a request in PEM or DER and checks the proof of possession.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(request: &[u8], key_types: KeyTypes) -> Result<Self, SigningRequestError> {
        if request.len() > SIGNING_REQUEST_MAX_BYTES {
            return Err(SigningRequestError::TooLong);
        }
        if request.starts_with(b"-----BEGIN") {
            let request = CertificateSigningRequestDer::from_pem_slice(request)
                .map_err(|_| SigningRequestError::Malformed)?;
            Self::read_der(&request, key_types)
        } else {
            Self::read_der(request, key_types)
        }
    }

    fn read_der(der: &[u8], key_types: KeyTypes) -> Result<Self, SigningRequestError> {
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| SigningRequestError::Malformed)?;
        // A signature consists of whole bytes.
        if !rest.is_empty() || request.signature_value.unused_bits != 0 {
            return Err(SigningRequestError::Malformed);
        }
        let info = &request.certification_request_info;
        let key =
            SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| SigningRequestError::KeyType)?;
        if key_types == KeyTypes::WithoutEd25519 && key.algorithm() == &PKCS_ED25519 {
            return Err(SigningRequestError::Ed25519Off);
        }
        let algorithm = proof_algorithm(key.algorithm(), &request.signature_algorithm.algorithm)?;
        // The library refuses RSA keys outside the size range of the algorithm, and points off
        // their curve.
        UnparsedPublicKey::new(algorithm, key.der_bytes())
            .verify(info.raw, &request.signature_value.data)
            .map_err(|_| SigningRequestError::Possession)?;
        let sha256 = PublicKeySha256::of(&key.subject_public_key_info());
        Ok(Self { key, sha256 })
    }

    /// The key's digest.
    pub fn sha256(&self) -> PublicKeySha256 {
        self.sha256
    }

    pub(super) fn key(&self) -> &SubjectPublicKeyInfo {
        &self.key
    }
}

/// The signature algorithm of a request for a key of this kind. The client chooses the digest:
/// `openssl req` uses SHA-256 for P-384, too.
fn proof_algorithm(
    key: &SignatureAlgorithm,
    signature: &Oid<'_>,
) -> Result<&'static dyn VerificationAlgorithm, SigningRequestError> {
    type Algorithms = [&'static dyn VerificationAlgorithm; 3];
    const P256: Algorithms = [&ECDSA_P256_SHA256_ASN1, &ECDSA_P256_SHA384_ASN1, &ECDSA_P256_SHA512_ASN1];
    const P384: Algorithms = [&ECDSA_P384_SHA256_ASN1, &ECDSA_P384_SHA384_ASN1, &ECDSA_P384_SHA512_ASN1];
    const RSA: Algorithms =
        [&RSA_PKCS1_2048_8192_SHA256, &RSA_PKCS1_2048_8192_SHA384, &RSA_PKCS1_2048_8192_SHA512];

    // In the same order as the digests above.
    let ecdsa = [OID_SIG_ECDSA_WITH_SHA256, OID_SIG_ECDSA_WITH_SHA384, OID_SIG_ECDSA_WITH_SHA512];
    let rsa = [OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA];
    let among = |digests: &[Oid<'_>; 3], algorithms: Algorithms| {
        digests.iter().position(|digest| digest == signature).map(|digest| algorithms[digest])
    };
    let found: Option<&'static dyn VerificationAlgorithm> = if key == &PKCS_ECDSA_P256_SHA256 {
        among(&ecdsa, P256)
    } else if key == &PKCS_ECDSA_P384_SHA384 {
        among(&ecdsa, P384)
    } else if key == &PKCS_RSA_SHA256 {
        among(&rsa, RSA)
    } else if key == &PKCS_ED25519 {
        (*signature == OID_SIG_ED25519).then_some(&ED25519)
    } else {
        return Err(SigningRequestError::KeyType);
    };
    found.ok_or(SigningRequestError::SignatureAlgorithm)
}

/// A signing request (PEM) for `key`, for clients without a tool of their own.
///
/// # Errors
/// [`AuthorityError::Certificate`] if the library fails.
pub fn signing_request(key: &PrivateKey) -> Result<String, AuthorityError> {
    let mut wishes = CertificateParams::default();
    wishes.distinguished_name = DistinguishedName::new();
    Ok(wishes.serialize_request(key)?.pem()?)
}
