//! The protocol of the enrolment port: HTTP/1.1 over TLS, one request on a connection, JSON both
//! ways.
//!
//! | request | by | body | answer |
//! |---|---|---|---|
//! | `POST /v1/enrol` | anybody | [`EnrolRequest`] | 200, [`CertificateResponse`] |
//! | `POST /v1/renew` | a client that shows its certificate | [`RenewRequest`] | 200, [`CertificateResponse`] |
//! | `POST /v1/clock` | anybody | ignored | 200, [`ClockResponse`] |
//! | `POST /v1/revocations` | a client that shows its certificate | ignored | 200, [`RevocationsResponse`] |
//! | `POST /v1/manage` | a client that shows its certificate | a [question](crate::management::questions::Question) | 200, its answer |
//!
//! A refusal is answered with 400, 401, 403, 404, 405, 409, 413, 422, 429 or 503 and an
//! [`ErrorResponse`]. Only after 503 is it worth repeating the same request.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::super::ClientCertificate;
use crate::access::{CertificateSha256, ClientId, ClientName, Role};

/// Where tokens are redeemed.
pub const ENROL_PATH: &str = "/v1/enrol";
/// Where certificates are renewed.
pub const RENEW_PATH: &str = "/v1/renew";
/// Where the server states its time.
pub const CLOCK_PATH: &str = "/v1/clock";
/// Where the server states what is revoked.
pub const REVOCATIONS_PATH: &str = "/v1/revocations";
/// Where administrators' questions are answered.
pub const MANAGE_PATH: &str = "/v1/manage";
/// Longest body of a request, in bytes: the longest signing request in PEM, a token, and the JSON
/// around them.
pub const REQUEST_MAX_BYTES: usize = 16 * 1024;
/// Longest question of an administrator, in bytes: sixteen custodians' keys of RSA-8192 in PEM,
/// twice over.
pub const QUESTION_MAX_BYTES: usize = 64 * 1024;
/// Longest body of an answer, in bytes: three certificates and the JSON around them, many times
/// over.
pub const RESPONSE_MAX_BYTES: usize = 64 * 1024;
/// Longest answer to a question, and of what is revoked, in bytes: lists of some ten thousand
/// clients.
pub const ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;

/// A request for a first certificate.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolRequest {
    /// The token's text.
    pub token: Zeroizing<String>,
    /// PKCS#10, PEM.
    pub signing_request: String,
}

/// A request for another certificate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// PKCS#10, PEM.
    pub signing_request: String,
}

/// A certificate was issued. Fields may be added later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateResponse {
    /// The client's id from now on.
    pub client: ClientId,
    /// Its name.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// Its certificate, PEM.
    pub certificate: String,
    /// The authority's certificates that the client must trust, PEM, one after the other, the
    /// active one first.
    pub authorities: String,
    /// The certificate's last moment (RFC 3339).
    #[serde(with = "time::serde::rfc3339")]
    pub not_after: OffsetDateTime,
}

impl From<ClientCertificate> for CertificateResponse {
    fn from(issued: ClientCertificate) -> Self {
        Self {
            client: issued.record.client,
            name: issued.record.name.clone(),
            role: issued.record.role,
            certificate: issued.record.pem(),
            authorities: issued.roots_pem(),
            not_after: issued.record.not_after,
        }
    }
}

/// The server's time. Grants and certificates are valid by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockResponse {
    /// Milliseconds since 1970.
    pub unix_milliseconds: u64,
}

/// What is revoked at this time. Fields may be added later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationsResponse {
    /// Certificates that have not expired.
    pub certificates: BTreeSet<CertificateSha256>,
    /// Clients, with all their certificates.
    pub clients: BTreeSet<ClientId>,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorResponse {
    /// For programs; never changes.
    pub code: String,
    /// For people.
    pub message: String,
}
