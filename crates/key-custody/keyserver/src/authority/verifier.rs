//! The client verifier of TLS handshakes.

use std::fmt;
use std::sync::{Arc, Weak};

use rustls::DistinguishedName;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use time::OffsetDateTime;

use super::Authority;
use super::refusal::Refusal;
use super::signatures::verifies_signatures;
use crate::access::CertificateSha256;

/// Accepts the clients that the authority's present trust accepts.
pub(super) struct ClientVerifier {
    /// Weak, because the authority hands out configurations that hold this.
    authority: Weak<Authority>,
    /// Whether a client without certificate is refused at once.
    mandatory: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    pub(super) fn new(authority: &Arc<Authority>, mandatory: bool) -> Self {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        Self { authority: Arc::downgrade(authority), mandatory, algorithms }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    /// Empty: a client with a pinned certificate would not find its issuer in a list, and might
    /// then present none.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let authority = self.authority.upgrade().ok_or(Refusal::UnknownAuthority)?;
        let now = i64::try_from(now.as_secs())
            .ok()
            .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
            .ok_or(Refusal::Malformed)?;
        match authority.trust().identify(end_entity, intermediates, now) {
            Ok(_) => Ok(ClientCertVerified::assertion()),
            Err(refusal) => {
                authority.tell_refused(CertificateSha256::of(end_entity), refusal);
                Err(refusal.into())
            }
        }
    }

    verifies_signatures!();
}

impl fmt::Debug for ClientVerifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ClientVerifier").field("mandatory", &self.mandatory).finish_non_exhaustive()
    }
}
