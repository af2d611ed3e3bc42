//! The authority's records and their keys in the store. Values are JSON, except sealed keys.
//!
//! | key in the store | value |
//! |---|---|
//! | `authority/active` | the generation of the authority that signs |
//! | `authority/trust/ca/` generation | certificate of one generation, and the end of trust in it |
//! | `authority/trust/revoked/certificate/` SHA-256 | a revoked certificate |
//! | `authority/trust/revoked/client/` id | a revoked client: all its certificates, including later ones |
//! | `authority/trust/pin/` SHA-256 | a pinned foreign certificate |
//! | `authority/sealed/ca/` generation, `authority/sealed/server` | private keys, sealed |
//! | `authority/server` | the server's certificate |
//! | `authority/client/` id | a client's name and role |
//! | `authority/certificate/` SHA-256 | each certificate that was issued, until it has long expired |
//! | `authority/of/` id `/` SHA-256 | empty: an index of a client's certificates |
//! | `authority/token/` id | an enrolment token: a digest of its secret, never the secret |
//!
//! All records that decide which clients are accepted are under `authority/trust/`, which a watch
//! follows.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_store::{Is, Snapshot};
use time::OffsetDateTime;

use super::error::AuthorityError;
use crate::access::{CertificateSerial, CertificateSha256, ClientId, ClientName, PublicKeySha256, Role};

pub(super) const ACTIVE: &str = "authority/active";
pub(super) const TRUST: &str = "authority/trust/";
pub(super) const CA: &str = "authority/trust/ca/";
pub(super) const REVOKED_CERTIFICATE: &str = "authority/trust/revoked/certificate/";
pub(super) const REVOKED_CLIENT: &str = "authority/trust/revoked/client/";
pub(super) const PIN: &str = "authority/trust/pin/";
pub(super) const SEALED_CA: &str = "authority/sealed/ca/";
pub(super) const SEALED_SERVER: &str = "authority/sealed/server";
pub(super) const SERVER: &str = "authority/server";
pub(super) const CLIENT: &str = "authority/client/";
pub(super) const CERTIFICATE: &str = "authority/certificate/";
pub(super) const CERTIFICATE_OF: &str = "authority/of/";
pub(super) const TOKEN: &str = "authority/token/";

/// A generation of the authority: its first is 1, each roll-over makes the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct CaGeneration(pub(super) u32);

impl CaGeneration {
    /// `prefix` and the generation, so that keys sort by generation.
    pub(super) fn key(self, prefix: &str) -> String {
        format!("{prefix}{:08x}", self.0)
    }
}

/// A certificate, written as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PemCertificate(pub(super) CertificateDer<'static>);

impl PemCertificate {
    pub(super) fn sha256(&self) -> CertificateSha256 {
        CertificateSha256::of(&self.0)
    }
}

impl Serialize for PemCertificate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&certificate_pem(&self.0))
    }
}

impl<'de> Deserialize<'de> for PemCertificate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        CertificateDer::from_pem_slice(text.as_bytes()).map(Self).map_err(serde::de::Error::custom)
    }
}

/// `certificate` as PEM (RFC 7468).
pub(super) fn certificate_pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", certificate.to_vec()),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ActiveRecord {
    pub(super) generation: CaGeneration,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CaRecord {
    /// Self-signed.
    pub(super) certificate: PemCertificate,
    /// The same key, certified by the generation before, for clients that trust only that one.
    pub(super) cross: Option<PemCertificate>,
    #[serde(with = "time::serde::timestamp")]
    pub(super) created: OffsetDateTime,
    /// Set by the roll-over to the next generation: from this time on, this one is not trusted.
    #[serde(with = "time::serde::timestamp::option")]
    pub(super) trusted_until: Option<OffsetDateTime>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServerRecord {
    pub(super) certificate: PemCertificate,
    pub(super) names: Vec<String>,
    pub(super) generation: CaGeneration,
    #[serde(with = "time::serde::timestamp")]
    pub(super) not_before: OffsetDateTime,
    #[serde(with = "time::serde::timestamp")]
    pub(super) not_after: OffsetDateTime,
}

/// A client that the authority knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    /// Its name for people.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// When it was enrolled or its first certificate pinned.
    #[serde(with = "time::serde::timestamp")]
    pub created: OffsetDateTime,
}

/// A certificate that the authority issued to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRecord {
    /// The client.
    pub client: ClientId,
    /// The client's name in it.
    pub name: ClientName,
    /// The role in it.
    pub role: Role,
    /// Its serial number.
    pub serial: CertificateSerial,
    /// Its public key.
    pub public_key: PublicKeySha256,
    /// Its first moment.
    #[serde(with = "time::serde::timestamp")]
    pub not_before: OffsetDateTime,
    /// Its last moment.
    #[serde(with = "time::serde::timestamp")]
    pub not_after: OffsetDateTime,
    /// The certificate itself.
    pub(super) certificate: PemCertificate,
}

impl CertificateRecord {
    /// The certificate, DER.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate.0
    }

    /// The certificate, PEM.
    pub fn pem(&self) -> String {
        certificate_pem(&self.certificate.0)
    }

    /// The certificate's digest.
    pub fn sha256(&self) -> CertificateSha256 {
        self.certificate.sha256()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RevokedCertificate {
    pub(super) client: ClientId,
    pub(super) serial: CertificateSerial,
    /// When it takes effect; for a renewed certificate, the end of its grace period.
    #[serde(with = "time::serde::timestamp")]
    pub(super) from: OffsetDateTime,
    pub(super) reason: String,
    /// When the certificate expires and need not be listed any more.
    #[serde(with = "time::serde::timestamp")]
    pub(super) not_after: OffsetDateTime,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RevokedClient {
    #[serde(with = "time::serde::timestamp")]
    pub(super) from: OffsetDateTime,
    pub(super) reason: String,
}

/// A pinned foreign certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinRecord {
    /// The client that presents it.
    pub client: ClientId,
    /// Its name for people.
    pub name: ClientName,
    /// When it was pinned.
    #[serde(with = "time::serde::timestamp")]
    pub created: OffsetDateTime,
    /// The certificate itself.
    pub(super) certificate: PemCertificate,
}

pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>, AuthorityError> {
    // Fails only for maps with keys that are not strings; no record has a map.
    serde_json::to_vec(record).map_err(|_| AuthorityError::Library("the encoding of a record"))
}

/// The record under a key, and the condition that it is unchanged.
pub(super) struct Found<R> {
    pub(super) record: R,
    pub(super) is: Is,
}

pub(super) fn find<R: DeserializeOwned>(
    snapshot: &dyn Snapshot,
    key: &str,
) -> Result<Option<Found<R>>, AuthorityError> {
    snapshot
        .get(key.as_bytes())?
        .map(|entry| {
            Ok(Found { record: decode(&entry.key, &entry.value)?, is: Is::ModifiedAt(entry.mod_revision) })
        })
        .transpose()
}

pub(super) fn decode<R: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<R, AuthorityError> {
    serde_json::from_slice(value).map_err(|_| damaged(key))
}

pub(super) fn damaged(key: &[u8]) -> AuthorityError {
    AuthorityError::Damaged { key: key.escape_ascii().to_string() }
}

/// The part of a key after `prefix`.
pub(super) fn rest_of<T: std::str::FromStr>(key: &[u8], prefix: &str) -> Result<T, AuthorityError> {
    key.strip_prefix(prefix.as_bytes())
        .and_then(|rest| std::str::from_utf8(rest).ok())
        .and_then(|rest| rest.parse().ok())
        .ok_or_else(|| damaged(key))
}
