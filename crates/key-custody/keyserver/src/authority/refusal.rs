//! Refusals of certificates: this room's reasons, and their form in a TLS handshake.

use rustls::CertificateError;

/// Why a peer is not, or no longer, accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer presented no certificate.
    #[error("no certificate was shown")]
    NoCertificate,
    /// Not a certificate, or one whose contents cannot be verified.
    #[error("the certificate cannot be read")]
    Malformed,
    /// Neither signed by a trusted authority nor pinned.
    #[error("the certificate comes from an unknown authority and is not pinned")]
    UnknownAuthority,
    /// It has expired.
    #[error("the certificate has expired")]
    Expired,
    /// It is not yet valid.
    #[error("the certificate is not valid yet")]
    NotYetValid,
    /// It, or its client, was revoked, or its grace period after a renewal is over.
    #[error("the certificate is revoked")]
    Revoked,
    /// It is not a client certificate, but a server's own, for example.
    #[error("the certificate is not for clients")]
    NotForClients,
    /// It is from this authority but names no client and role.
    #[error("the certificate names no client and role")]
    NoIdentity,
}

impl Refusal {
    /// Its code in records; never changes.
    pub const fn code(self) -> &'static str {
        match self {
            Refusal::NoCertificate => "certificate-missing",
            Refusal::Malformed => "certificate-malformed",
            Refusal::UnknownAuthority => "certificate-unknown-authority",
            Refusal::Expired => "certificate-expired",
            Refusal::NotYetValid => "certificate-not-yet-valid",
            Refusal::Revoked => "certificate-revoked",
            Refusal::NotForClients => "certificate-not-for-clients",
            Refusal::NoIdentity => "certificate-no-identity",
        }
    }

    /// The refusal behind a failed handshake, if the peer's certificate caused it.
    pub fn of_handshake(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::NoCertificatesPresented => Some(Refusal::NoCertificate),
            rustls::Error::InvalidCertificate(error) => Some(match error {
                CertificateError::UnknownIssuer => Refusal::UnknownAuthority,
                CertificateError::Expired => Refusal::Expired,
                CertificateError::NotValidYet => Refusal::NotYetValid,
                CertificateError::Revoked => Refusal::Revoked,
                CertificateError::InvalidPurpose => Refusal::NotForClients,
                CertificateError::ApplicationVerificationFailure => Refusal::NoIdentity,
                _ => Refusal::Malformed,
            }),
            _ => None,
        }
    }
}

/// The TLS error for a refusal, with the most specific alert that TLS has.
impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        rustls::Error::InvalidCertificate(match refusal {
            Refusal::NoCertificate => return rustls::Error::NoCertificatesPresented,
            Refusal::Malformed => CertificateError::BadEncoding,
            Refusal::UnknownAuthority => CertificateError::UnknownIssuer,
            Refusal::Expired => CertificateError::Expired,
            Refusal::NotYetValid => CertificateError::NotValidYet,
            Refusal::Revoked => CertificateError::Revoked,
            Refusal::NotForClients => CertificateError::InvalidPurpose,
            Refusal::NoIdentity => CertificateError::ApplicationVerificationFailure,
        })
    }
}

/// The refusals that follow from webpki's verification of a chain.
impl From<webpki::Error> for Refusal {
    fn from(error: webpki::Error) -> Self {
        match error {
            webpki::Error::CertExpired { .. } => Refusal::Expired,
            webpki::Error::CertNotValidYet { .. } => Refusal::NotYetValid,
            // An unknown self-signed certificate often claims to be an authority's; our client
            // certificates never do.
            webpki::Error::UnknownIssuer
            | webpki::Error::CaUsedAsEndEntity
            | webpki::Error::InvalidSignatureForPublicKey
            | webpki::Error::UnsupportedSignatureAlgorithmContext(_)
            | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => Refusal::UnknownAuthority,
            webpki::Error::RequiredEkuNotFoundContext(_) => Refusal::NotForClients,
            _ => Refusal::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_refusal_survives_a_handshake_and_has_a_word_of_its_own() {
        let all = [
            Refusal::NoCertificate,
            Refusal::Malformed,
            Refusal::UnknownAuthority,
            Refusal::Expired,
            Refusal::NotYetValid,
            Refusal::Revoked,
            Refusal::NotForClients,
            Refusal::NoIdentity,
        ];
        for refusal in all {
            assert_eq!(Refusal::of_handshake(&refusal.into()), Some(refusal));
        }
        assert_eq!(all.map(Refusal::code).into_iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(Refusal::of_handshake(&rustls::Error::HandshakeNotComplete), None);
    }
}
