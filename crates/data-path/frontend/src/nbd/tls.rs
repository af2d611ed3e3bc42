//! Who may connect over TCP: certificates, and the identities that a volume admits.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use thiserror::Error;
use webpki::EndEntityCert;

/// A client, as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// A DNS name among the subject's alternative names (RFC 5280, 4.2.1.6), written `dns:NAME`.
    /// Compared without regard to case. A certificate's wildcard is an ordinary name and matches no
    /// other.
    Dns(String),
    /// A URI among the subject's alternative names, written `uri:URI`.
    Uri(String),
    /// The SHA-256 of the whole certificate, written `sha256:` and 64 hexadecimal digits, with or
    /// without colons.
    Fingerprint([u8; 32]),
}

/// A text that names no identity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "'{0}' names no client; write dns:NAME, uri:URI, or sha256: and the certificate's fingerprint in 64 digits"
)]
pub struct IdentityError(String);

impl Identity {
    /// The identities of a certificate, its fingerprint first.
    fn all_of(certificate: &CertificateDer<'_>) -> Vec<Self> {
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, certificate).as_ref());
        let mut all = vec![Identity::Fingerprint(fingerprint)];
        if let Ok(certificate) = EndEntityCert::try_from(certificate) {
            all.extend(certificate.valid_dns_names().map(|name| Identity::Dns(name.to_ascii_lowercase())));
            all.extend(certificate.valid_uri_names().map(|uri| Identity::Uri(uri.to_owned())));
        }
        all
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A stranger's certificate is logged, so nothing in it may look like another line.
            Identity::Dns(name) => write!(f, "dns:{}", name.escape_debug()),
            Identity::Uri(uri) => write!(f, "uri:{}", uri.escape_debug()),
            Identity::Fingerprint(bytes) => {
                f.write_str("sha256:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let error = || IdentityError(text.to_owned());
        match text.split_once(':').ok_or_else(error)? {
            ("dns", name) if !name.is_empty() => Ok(Identity::Dns(name.to_ascii_lowercase())),
            ("uri", uri) if !uri.is_empty() => Ok(Identity::Uri(uri.to_owned())),
            ("sha256", digits) => {
                let digits: Vec<u8> = digits
                    .chars()
                    .filter(|letter| *letter != ':')
                    .map(|digit| digit.to_digit(16).map(|digit| digit as u8).ok_or_else(error))
                    .collect::<Result<_, _>>()?;
                let (pairs, []) = digits.as_chunks::<2>() else {
                    return Err(error());
                };
                let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
                bytes.try_into().map(Identity::Fingerprint).map_err(|_| error())
            }
            _ => Err(error()),
        }
    }
}

/// The reasons why TLS cannot be offered.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The data is not PEM, or PEM of another kind.
    #[error("the {what} cannot be used: {source}")]
    Pem {
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// No client is admitted.
    #[error("no client is admitted to the export; name at least one identity")]
    NobodyAdmitted,
    /// The authorities that sign clients' certificates are unusable.
    #[error("the authority for clients cannot be used: {0}")]
    Authority(String),
    /// Certificate and key are unusable or do not belong together.
    #[error("the server's certificate cannot be used: {0}")]
    Certificate(#[source] rustls::Error),
}

/// A server's certificate, and the clients that it admits.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub(super) server: Arc<ServerConfig>,
}

impl TlsConfig {
    /// A server with this certificate (and its chain up to the root) and key. It admits clients
    /// whose certificate is signed by one of the `authorities` and has one of the `admitted`
    /// identities. TLS 1.2 and 1.3.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        admitted: Vec<Identity>,
    ) -> Result<Self, TlsError> {
        if admitted.is_empty() {
            return Err(TlsError::NobodyAdmitted);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| TlsError::Authority(error.to_string()))?;
        }
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| TlsError::Authority(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Certificate)?
            .with_client_cert_verifier(Arc::new(Admission { chain, admitted }))
            .with_single_cert(certificates, key)
            .map_err(TlsError::Certificate)?;
        // Every connection must present its certificate: a resumed session would outlive a change
        // of the admitted identities.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { server: Arc::new(server) })
    }

    /// As [`TlsConfig::new`], from the contents of PEM files: the server opens no files.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        authorities: &[u8],
        admitted: Vec<Identity>,
    ) -> Result<Self, TlsError> {
        let certificates_in = |pem, what| {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            all.map_err(|source| TlsError::Pem { what, source })
        };
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|source| TlsError::Pem { what: "server's private key", source })?;
        Self::new(
            certificates_in(certificates, "server's certificate")?,
            key,
            certificates_in(authorities, "certificates of the authorities")?,
            admitted,
        )
    }
}

/// Admits a client whose certificate is valid and has an admitted identity. It decides within the
/// TLS handshake, so that a client that is not admitted receives no byte of NBD.
#[derive(Debug)]
struct Admission {
    chain: Arc<dyn ClientCertVerifier>,
    admitted: Vec<Identity>,
}

impl ClientCertVerifier for Admission {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let identities = Identity::all_of(end_entity);
        let named = || {
            let names: Vec<String> = identities.iter().map(Identity::to_string).collect();
            names.join(" ")
        };
        let verified = self
            .chain
            .verify_client_cert(end_entity, intermediates, now)
            .inspect_err(|error| tracing::warn!(client = named(), %error, "certificate refused"))?;
        if identities.iter().any(|identity| self.admitted.contains(identity)) {
            tracing::info!(client = named(), "client admitted");
            return Ok(verified);
        }
        tracing::warn!(client = named(), "client is not on the export's list: refused");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive_their_text() {
        for text in [
            "dns:backup.example",
            "uri:spiffe://example/host/7",
            "sha256:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        ] {
            assert_eq!(text.parse::<Identity>().unwrap().to_string(), text);
        }
        let with_colons = ["00"; 32].join(":");
        assert_eq!(format!("sha256:{with_colons}").parse(), Ok(Identity::Fingerprint([0; 32])));
        assert_eq!("dns:Host.Example".parse(), Ok(Identity::Dns("host.example".into())));
        for text in ["", "host", "dns:", "sha256:00", "sha256:zz", "ip:::1"] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_certificate_says_cannot_break_a_line() {
        let odd = Identity::Uri("uri\n2026 admitted".into());
        assert_eq!(odd.to_string(), "uri:uri\\n2026 admitted");
    }

    #[test]
    fn a_server_that_admits_nobody_is_a_mistake() {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["server.example".into()]).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let made = TlsConfig::new(vec![certificate.der().clone()], key, Vec::new(), Vec::new());
        assert!(matches!(made, Err(TlsError::NobodyAdmitted)));
    }

    #[test]
    fn a_certificate_names_all_its_identities() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["Host.Example".into()]).unwrap();
        let uri = "spiffe://example/host/7";
        params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
        let certificate = params.self_signed(&key).unwrap();
        let all = Identity::all_of(certificate.der());
        assert!(matches!(all[0], Identity::Fingerprint(_)));
        assert_eq!(all[1..], [Identity::Dns("host.example".into()), Identity::Uri(uri.into())]);
    }
}
