//! Keys that take the place of bearer tokens: a client proves in TLS to have one.
//!
//! A certificate only carries its key here. No authority says who somebody is: a token names the
//! key itself, by SHA-256 of its SubjectPublicKeyInfo, and ends or is revoked like any other token.
//! So there are no chains to verify and no revocation lists, and another certificate of the same
//! key serves as well. One that is not valid now is refused all the same: its owner asked for that.

use std::fmt;
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{self, SHA256};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use strongroom_api::{Name, Problem};
use strongroom_types::hex;
use x509_parser::certificate::X509Certificate;

use crate::problems;

/// What the hash of a credential begins with. A bearer token is the text of a header, which has no
/// such byte: no token has the hash of a key.
const OF_A_KEY: &[u8] = &[0];

/// A client's public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientKey {
    sha256: String,
    credential: String,
}

impl ClientKey {
    fn of(certificate: &X509Certificate<'_>) -> Self {
        let key = certificate.tbs_certificate.subject_pki.raw;
        let hash = |content: &[u8]| hex::encode(digest::digest(&SHA256, content).as_ref());
        Self { sha256: hash(key), credential: hash(&[OF_A_KEY, key].concat()) }
    }

    /// The key of a certificate that a client has shown, and proved to have.
    pub fn of_shown(certificate: &CertificateDer<'_>) -> Option<Self> {
        x509_parser::parse_x509_certificate(certificate).ok().map(|(_, parsed)| Self::of(&parsed))
    }

    /// SHA-256 of the key, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The form in which it is stored as a credential.
    pub fn credential(&self) -> &str {
        &self.credential
    }
}

/// The key of a certificate for the token `name`.
///
/// # Errors
/// If it is not one certificate as PEM, or it is not valid now.
pub fn of_pem(pem: &str, name: &Name) -> Result<ClientKey, Problem> {
    let refused = |reason: String| {
        problems::invalid(format!("token {name}: its certificate {reason}"))
            .next("send one certificate as PEM, which begins with -----BEGIN CERTIFICATE-----")
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|error| refused(format!("is no PEM: {error}")))?;
    let [certificate] = all.as_slice() else {
        return Err(refused(format!("is to be one, and there are {}", all.len())));
    };
    let parsed = x509_parser::parse_x509_certificate(certificate);
    let (_, parsed) = parsed.map_err(|error| refused(format!("cannot be read: {error}")))?;
    if !parsed.validity().is_valid() {
        return Err(refused("is not valid now".to_owned()));
    }
    Ok(ClientKey::of(&parsed))
}

/// Asks clients for certificates, and lets them prove to have the keys. Whose they are, each
/// request finds out.
pub struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
    /// Whether there are keys to ask for. A browser that is asked would ask its user in turn.
    asks: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl AnyKey {
    /// One that does not ask until it is told when.
    pub fn new() -> Arc<Self> {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        Arc::new(Self { algorithms, asks: OnceLock::new() })
    }

    /// Asks from now on whenever `asks` says so. Only the first call counts.
    pub fn ask_when(&self, asks: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.asks.set(Box::new(asks));
    }
}

impl fmt::Debug for AnyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyKey")
    }
}

impl ClientCertVerifier for AnyKey {
    fn offer_client_auth(&self) -> bool {
        self.asks.get().is_some_and(|asks| asks())
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        if now < validity.not_before.timestamp() {
            return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
        }
        if now > validity.not_after.timestamp() {
            return Err(Error::InvalidCertificate(CertificateError::Expired));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
