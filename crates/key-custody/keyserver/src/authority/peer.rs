//! Mutual TLS between two clients of the authority: a control plane and a host, or two hosts. Each
//! shows its own client certificate, and admits one certain client. And what a host makes of a
//! grant's signer, whose certificate is shown to it.
//!
//! A certificate for clients serves both sides here. A host therefore needs none for servers, with
//! which it could pose as the key server.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rustls::client::Resumption;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WantsServerCert};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DistinguishedName, OtherError, ServerConfig,
    WantsVerifier, version,
};
use strongroom_memory::secret::SecretBytes;
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage};

use super::enrol::protocol::RevocationsResponse;
use super::refusal::Refusal;
use super::signatures::verifies_signatures;
use super::signers::p256_point;
use super::trust::claimed_identity;
use crate::access::{CertificateSha256, ClientId, Role};
use crate::grant::{Signer, SignerRefusal, Signers};

/// The one client that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedPeer {
    /// Its role.
    pub role: Role,
    /// Its id, which all its certificates have.
    pub client: ClientId,
}

impl fmt::Display for ExpectedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} (role {})", self.client, self.role)
    }
}

/// A certificate is from the authority, but of another client.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is of {found}, and {expected} was expected")]
struct OtherPeer {
    found: ExpectedPeer,
    expected: ExpectedPeer,
}

/// How long a side that hears what is revoked goes on without hearing of it: a day.
pub const UNHEARD_MAX: Duration = Duration::from_secs(86_400);

/// What one side of connections knows to be revoked. A handshake does not ask; somebody keeps it up
/// to date.
#[derive(Debug, Default)]
pub struct Revocations(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    revoked: RevocationsResponse,
    /// When it was heard, or begun to be asked for; absent if nobody asks.
    heard: Option<Instant>,
}

impl Revocations {
    /// For a side that asks from now on. `known` is what it knew before it was started.
    pub fn asked_for(known: RevocationsResponse) -> Self {
        Self(RwLock::new(Known { revoked: known, heard: Some(Instant::now()) }))
    }

    /// Takes what the key server says. Returns whether it is news.
    pub fn hear(&self, revoked: RevocationsResponse) -> bool {
        let mut known = self.0.write();
        let is_new = known.revoked != revoked;
        *known = Known { revoked, heard: Some(Instant::now()) };
        is_new
    }

    /// Refuses what is revoked; and everybody, if the key server was not heard for too long.
    fn check(&self, certificate: &CertificateDer<'_>, client: ClientId) -> Result<(), Refusal> {
        let known = self.0.read();
        let is_stale = known.heard.is_some_and(|heard| heard.elapsed() > UNHEARD_MAX);
        let revoked = &known.revoked;
        let is_revoked = revoked.clients.contains(&client)
            || revoked.certificates.contains(&CertificateSha256::of(certificate));
        if is_stale || is_revoked { Err(Refusal::Revoked) } else { Ok(()) }
    }
}

/// One side of a connection between two clients.
#[derive(Clone, Debug)]
pub struct OwnSide<'a> {
    /// The authorities that its peer's certificate may come from.
    pub authorities: &'a [CertificateDer<'static>],
    /// Its own certificate.
    pub certificate: CertificateDer<'static>,
    /// Its private key, PKCS#8.
    pub key: &'a SecretBytes,
    /// What it knows to be revoked.
    pub revocations: Arc<Revocations>,
}

impl OwnSide<'_> {
    /// The TLS of the side that connects.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn connecting(self, expected: ExpectedPeer) -> Result<ClientConfig, rustls::Error> {
        self.connecting_with(provider(), expected)
    }

    /// The same for guest data, which is passed on in `protocol` and worth recording for years:
    /// the key agreement is X25519 together with ML-KEM-768.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn connecting_for_guest_data(
        self,
        expected: ExpectedPeer,
        protocol: &[u8],
    ) -> Result<ClientConfig, rustls::Error> {
        let mut config = self.connecting_with(hybrid_provider(), expected)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn connecting_with(
        self,
        provider: CryptoProvider,
        expected: ExpectedPeer,
    ) -> Result<ClientConfig, rustls::Error> {
        let verifier = Arc::new(PeerVerifier::new(&self, expected)?);
        let key = PrivatePkcs8KeyDer::from(self.key.expose().to_vec());
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(vec![self.certificate], key.into())?;
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// The TLS of the side that listens.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn listening(self, expected: ExpectedPeer) -> Result<ServerConfig, rustls::Error> {
        self.listening_with(provider(), expected)
    }

    /// The other end of [`connecting_for_guest_data`](Self::connecting_for_guest_data).
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn listening_for_guest_data(
        self,
        expected: ExpectedPeer,
        protocol: &[u8],
    ) -> Result<ServerConfig, rustls::Error> {
        let mut config = self.listening_with(hybrid_provider(), expected)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn listening_with(
        self,
        provider: CryptoProvider,
        expected: ExpectedPeer,
    ) -> Result<ServerConfig, rustls::Error> {
        let verifier = Arc::new(PeerVerifier::new(&self, expected)?);
        self.serving(provider, |builder| builder.with_client_cert_verifier(verifier))
    }

    /// The control plane `control` as the signer of a grant that came with its `certificate`.
    ///
    /// # Errors
    /// If an authority's certificate cannot be read.
    pub fn signer_shown(
        &self,
        certificate: CertificateDer<'static>,
        control: ClientId,
    ) -> Result<ShownSigner, rustls::Error> {
        let expected = ExpectedPeer { role: Role::Control, client: control };
        Ok(ShownSigner { verifier: PeerVerifier::new(self, expected)?, certificate })
    }

    /// The TLS of the side that listens, for strangers: they show no certificate, and know this
    /// side by its own.
    ///
    /// # Errors
    /// If certificate or key cannot be used.
    pub fn listening_to_strangers(self, protocol: &[u8]) -> Result<ServerConfig, rustls::Error> {
        let mut config =
            self.serving(provider(), ConfigBuilder::<ServerConfig, WantsVerifier>::with_no_client_auth)?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn serving(
        self,
        provider: CryptoProvider,
        clients: impl FnOnce(
            ConfigBuilder<ServerConfig, WantsVerifier>,
        ) -> ConfigBuilder<ServerConfig, WantsServerCert>,
    ) -> Result<ServerConfig, rustls::Error> {
        let key = PrivatePkcs8KeyDer::from(self.key.expose().to_vec());
        let builder = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&version::TLS13])?;
        let mut config = clients(builder).with_single_cert(vec![self.certificate], key.into())?;
        // Every connection shows its certificate to the verifier.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// The TLS of a client without a certificate, which speaks `protocol` with a peer that has exactly
/// this certificate.
///
/// # Errors
/// If there is no TLS 1.3.
pub fn connecting_as_stranger(
    certificate: CertificateSha256,
    protocol: &[u8],
) -> Result<ClientConfig, rustls::Error> {
    let algorithms = provider().signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ExactVerifier { certificate, algorithms }))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Admits the owner of one certificate, of any authority.
#[derive(Debug)]
struct ExactVerifier {
    certificate: CertificateSha256,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ExactVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match CertificateSha256::of(end_entity) == self.certificate {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    verifies_signatures!();
}

fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

fn hybrid_provider() -> CryptoProvider {
    CryptoProvider { kx_groups: vec![X25519MLKEM768], ..provider() }
}

/// A control plane as the signer of grants, for a host. The host has no list of certificates, so
/// the signer's is shown to it with the grant, and verified as a peer's is.
#[derive(Debug)]
pub struct ShownSigner {
    verifier: PeerVerifier,
    certificate: CertificateDer<'static>,
}

impl Signers for ShownSigner {
    fn signer(&self, certificate: &CertificateSha256, now: OffsetDateTime) -> Result<Signer, SignerRefusal> {
        if CertificateSha256::of(&self.certificate) != *certificate {
            return Err(SignerRefusal::Unknown);
        }
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let found = self.verifier.identify(&self.certificate, &[], now).map_err(|refusal| match refusal {
            Refusal::Revoked => SignerRefusal::Revoked,
            Refusal::Expired | Refusal::NotYetValid => SignerRefusal::Expired,
            _ => SignerRefusal::Unknown,
        })?;
        if found.role != Role::Control {
            return Err(SignerRefusal::NotControl);
        }
        if found != self.verifier.expected {
            return Err(SignerRefusal::Unknown);
        }
        let public_key = p256_point(&self.certificate).ok_or(SignerRefusal::OtherKeyType)?;
        Ok(Signer { client: found.client, public_key })
    }
}

/// Admits one client of the authorities.
struct PeerVerifier {
    anchors: Vec<TrustAnchor<'static>>,
    expected: ExpectedPeer,
    revocations: Arc<Revocations>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PeerVerifier {
    fn new(side: &OwnSide<'_>, expected: ExpectedPeer) -> Result<Self, rustls::Error> {
        let anchor = |authority: &CertificateDer<'static>| {
            webpki::anchor_from_trusted_cert(authority).map(|anchor| anchor.to_owned())
        };
        let anchors = side.authorities.iter().map(anchor).collect::<Result<_, _>>();
        let anchors = anchors.map_err(|_| CertificateError::BadEncoding)?;
        let (revocations, algorithms) =
            (Arc::clone(&side.revocations), provider().signature_verification_algorithms);
        Ok(Self { anchors, expected, revocations, algorithms })
    }

    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let (found, expected) = (self.identify(leaf, intermediates, now)?, self.expected);
        if found == expected {
            return Ok(());
        }
        Err(CertificateError::Other(OtherError(Arc::new(OtherPeer { found, expected }))).into())
    }

    /// Whose certificate it is, if it is of the authorities and not revoked.
    fn identify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ExpectedPeer, Refusal> {
        let end_entity = EndEntityCert::try_from(leaf).map_err(|_| Refusal::Malformed)?;
        let verified = end_entity.verify_for_usage(
            self.algorithms.all,
            &self.anchors,
            intermediates,
            now,
            KeyUsage::client_auth(),
            None,
            None,
        );
        verified.map_err(Refusal::from)?;
        let identity = claimed_identity(leaf).ok_or(Refusal::NoIdentity)?;
        self.revocations.check(leaf, identity.client)?;
        Ok(ExpectedPeer { role: identity.role, client: identity.client })
    }
}

impl ServerCertVerifier for PeerVerifier {
    /// The name is not compared: the peer is known by its id.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    verifies_signatures!();
}

impl ClientCertVerifier for PeerVerifier {
    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, now).map(|()| ClientCertVerified::assertion())
    }

    verifies_signatures!();
}

impl fmt::Debug for PeerVerifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PeerVerifier").field("expected", &self.expected).finish_non_exhaustive()
    }
}
