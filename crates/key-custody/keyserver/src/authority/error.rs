//! Errors of this room.

use strongroom_crypto::CryptoError;
use strongroom_memory::secret::SecretError;
use strongroom_store::StoreError;

use super::refusal::Refusal;
use crate::access::{CertificateSha256, ClientId};

/// Why the authority refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A setting or an argument is outside its limits.
    #[error("{what} must be {allowed}")]
    Limit {
        /// The setting.
        what: &'static str,
        /// The allowed range.
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
    /// A certificate cannot be pinned.
    #[error("the certificate cannot be pinned: {0}")]
    Pin(&'static str),
    /// There is no such client, certificate or token.
    #[error("there is no {what}; {next}")]
    Unknown {
        /// The kind and id of the missing item.
        what: String,
        /// The advice to the user.
        next: &'static str,
    },
    /// The client's certificate does not permit it.
    #[error("the asker's certificate is refused: {0}")]
    Refused(#[from] Refusal),
    /// Every attempt conflicted with a concurrent change.
    #[error("others change the same thing at the same time; try again")]
    Contended,
    /// A record of the authority in the store cannot be read.
    #[error("the authority's record {key} is damaged; restore the store from a backup")]
    Damaged {
        /// The key in the store, escaped.
        key: String,
    },
    /// The authority's key cannot be opened: the root key is another, or the record was changed.
    #[error(
        "the authority's key cannot be opened; the store belongs to another root key, or was changed: {0}"
    )]
    Sealed(#[source] CryptoError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No memory for a secret.
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
    /// The error for an unknown client; `of` states a further requirement.
    pub(super) fn unknown_client(client: ClientId, of: &str) -> Self {
        let next = "`strongroom keyserver client list` shows those there are";
        Self::Unknown { what: format!("client {client}{of}"), next }
    }

    /// The error for a digest that no certificate issued or pinned here has.
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
    /// An unsupported type of key.
    #[error("its key is none of P-256, P-384, RSA with 2048 to 8192 bits, Ed25519")]
    KeyType,
    /// Ed25519 under the FIPS profile, which accepts only keys that all FIPS 140-3 modules support.
    #[error("Ed25519 keys are switched off here; take P-256, P-384 or RSA")]
    Ed25519Off,
    /// An unsupported signature algorithm, such as one with SHA-1.
    #[error("it is signed with an algorithm that is not taken; use SHA-256, SHA-384 or SHA-512")]
    SignatureAlgorithm,
    /// The signature does not match its key: the client does not have the private key.
    #[error("its signature does not prove that the asker has the private key")]
    Possession,
}
