//! What can go wrong in this room.

use strongroom_crypto::CryptoError;
use strongroom_memory::secret::SecretError;
use strongroom_store::StoreError;

use super::refusal::Refusal;
use crate::access::{CertificateSha256, ClientId};

/// Why the authority did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A setting or an argument is outside its limits.
    #[error("{what} must be {allowed}")]
    Limit {
        /// What it is about.
        what: &'static str,
        /// What it may be.
        allowed: String,
    },
    /// A server's name is neither a DNS name nor an address.
    #[error("'{name}' is neither a DNS name nor an IP address")]
    ServerName {
        /// The name.
        name: String,
    },
    /// A signing request was refused.
    #[error("the signing request is refused: {0}")]
    SigningRequest(#[from] SigningRequestError),
    /// A certificate that should be pinned cannot be.
    #[error("the certificate cannot be pinned: {0}")]
    Pin(&'static str),
    /// There is no such client, certificate or token.
    #[error("there is no {what}; {next}")]
    Unknown {
        /// What was looked for, with its id.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// The asker's certificate does not let it.
    #[error("the asker's certificate is refused: {0}")]
    Refused(#[from] Refusal),
    /// Somebody else changed the same thing every time.
    #[error("others change the same thing at the same time; try again")]
    Contended,
    /// What the store holds of the authority cannot be read.
    #[error("the authority's record {key} is damaged; restore the store from a backup")]
    Damaged {
        /// The key in the store, escaped.
        key: String,
    },
    /// The authority's key does not open: another root key, or it was changed.
    #[error(
        "the authority's key cannot be opened; the store belongs to another root key, or was changed: {0}"
    )]
    Sealed(#[source] CryptoError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Secret memory could not be had.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Certificates could not be made.
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS could not be set up.
    #[error("TLS could not be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The cryptographic library failed.
    #[error("{0} failed in the cryptographic library")]
    Library(&'static str),
}

impl AuthorityError {
    /// No client of this id; `of` says what it has to be besides.
    pub(super) fn unknown_client(client: ClientId, of: &str) -> Self {
        let next = "`strongroom keyserver client list` shows those there are";
        Self::Unknown { what: format!("client {client}{of}"), next }
    }

    /// No certificate with this digest that was issued or pinned here.
    pub(super) fn unknown_certificate(certificate: &CertificateSha256) -> Self {
        let next = "`strongroom keyserver client list` shows the clients that have one";
        Self::Unknown { what: format!("certificate {certificate} of this authority"), next }
    }
}

/// Why a signing request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SigningRequestError {
    /// Longer than a request may be.
    #[error("it is longer than {} bytes", super::limits::SIGNING_REQUEST_MAX_BYTES)]
    TooLong,
    /// Neither PEM nor DER of a PKCS#10 request.
    #[error("it is no PKCS#10 request in PEM or DER")]
    Malformed,
    /// A key that is not taken.
    #[error("its key is none of P-256, P-384, RSA with 2048 to 8192 bits, Ed25519")]
    KeyType,
    /// Ed25519, where only what FIPS 140-3 modules offer everywhere is taken.
    #[error("Ed25519 keys are switched off here; take P-256, P-384 or RSA")]
    Ed25519Off,
    /// Signed in a way that is not taken, such as with SHA-1.
    #[error("it is signed with an algorithm that is not taken; use SHA-256, SHA-384 or SHA-512")]
    SignatureAlgorithm,
    /// The signature is not that of the key in it: the asker does not have the private key.
    #[error("its signature does not prove that the asker has the private key")]
    Possession,
}
