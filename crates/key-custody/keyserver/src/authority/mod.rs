//! The key server's own certificate authority: the server's identity, its clients, and their
//! revocation.
//!
//! | file | what |
//! |---|---|
//! | [`limits`] | validity periods and limits |
//! | `ca` | the authority's keys, sealed in the store; roll-over |
//! | `certificate` | the contents of each kind of certificate |
//! | [`signing_request`] | PKCS#10, proof of possession |
//! | `server_certificate` | the server's own certificate, renewed while it runs |
//! | `clients`, `revocation`, `pins` | issue, renew; revoke; trust a foreign certificate by itself |
//! | `trust`, `verifier`, [`refusal`] | which clients are accepted, in the TLS handshake and at each request |
//! | [`peer`] | mutual TLS between two clients, a control plane and a host |
//! | `signatures` | what all verifiers have in common |
//! | `signers` | who may sign grants |
//! | `watch` | applies revocations by other processes |
//! | `records` | the records in the store |
//! | `transfer` | moves the authority between servers' stores, for backups |
//! | [`enrol`] | how a new client gets its first certificate with a token |
//!
//! What it promises:
//! - The authority's and the server's private keys are in the store, sealed under the key given at
//!   [`Authority::open`] and bound to their places; in plaintext they are only in this process's
//!   memory.
//! - A certificate leaves only after its record is durable. A revocation is in force for handshakes
//!   and for requests on open connections when the call returns, and on other servers of the same
//!   store when their watch has seen it.
//! - No session is resumed, so that every connection shows its certificate to the verifier.
//!
//! What may not enter: permissions of roles (room `access`), KMIP, the audit log (an observer).

mod ca;
mod certificate;
mod clients;
pub mod enrol;
mod error;
pub mod limits;
pub mod peer;
mod pins;
pub(crate) mod private_key;
mod records;
pub mod refusal;
mod revocation;
mod server_certificate;
mod signatures;
mod signers;
pub mod signing_request;
pub(crate) mod transfer;
mod trust;
mod verifier;
mod watch;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::pki_types::CertificateDer;
use rustls::server::NoServerSessionStorage;
use rustls::{ServerConfig, version};
use strongroom_memory::secret::SecretBytes;
use strongroom_store::Store;
use time::{Duration, OffsetDateTime};

pub use clients::ClientCertificate;
pub use error::{AuthorityError, SigningRequestError};
pub use pins::PinFor;
pub use private_key::PrivateKey;
pub use records::{CertificateRecord, ClientRecord, PinRecord};
pub use refusal::Refusal;
pub use signing_request::KeyTypes;
pub use trust::claimed_identity;

use crate::access::{CertificateSha256, ClientId, Identity};
use ca::Active;
use server_certificate::{ServerIdentity, Shown};
use signers::SignerCache;
use trust::Trust;
use verifier::ClientVerifier;

/// Settings of the authority. [`Settings::new`] has the defaults.
#[derive(Debug, Clone)]
pub struct Settings {
    /// DNS names and addresses under which clients reach the server, the one to be shown first.
    pub server_names: Vec<String>,
    /// Validity of the server's certificate.
    pub server_validity: Duration,
    /// Validity of clients' certificates.
    pub client_validity: Duration,
    /// How long a certificate stays valid after its client has renewed it, unless it expires
    /// earlier. `None`: until it expires.
    pub renewal_grace: Option<Duration>,
    /// The types of keys that are certified.
    pub key_types: KeyTypes,
}

impl Settings {
    /// The defaults of [`limits`], for a server of these names.
    pub fn new(server_names: Vec<String>) -> Self {
        Self {
            server_names,
            server_validity: limits::SERVER_VALIDITY,
            client_validity: limits::CLIENT_VALIDITY,
            renewal_grace: Some(limits::RENEWAL_GRACE),
            key_types: KeyTypes::All,
        }
    }

    fn check(&self) -> Result<(), AuthorityError> {
        let within = |what, value: Duration, most: Duration| {
            let allowed = limits::VALIDITY_MIN..=most;
            if allowed.contains(&value) {
                return Ok(());
            }
            let allowed =
                format!("from {} hours to {} days", limits::VALIDITY_MIN.whole_hours(), most.whole_days());
            Err(AuthorityError::Limit { what, allowed })
        };
        within("the life of the server's certificate", self.server_validity, limits::SERVER_VALIDITY_MAX)?;
        within("the life of clients' certificates", self.client_validity, limits::CLIENT_VALIDITY_MAX)
    }
}

/// A revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// The client.
    pub client: ClientId,
    /// The one certificate; `None` if the client is revoked with all of them.
    pub certificate: Option<CertificateSha256>,
    /// When it takes effect: at once or, for a renewed certificate, after its grace period.
    pub from: OffsetDateTime,
    /// The reason given for the revocation.
    pub reason: String,
}

/// Observes the authority. It is called on the acting threads, so it must return at once.
pub trait Observer: Send + Sync {
    /// A revocation was recorded. An observer that holds connections must, from [`Revoked::from`]
    /// on, call [`Authority::identify`] for each and close those that it refuses.
    fn revoked(&self, revoked: &Revoked);

    /// A certificate was refused in a handshake. Only the transport knows of clients that presented
    /// none.
    fn refused(&self, certificate: &CertificateSha256, refusal: Refusal);
}

/// The authority, open.
pub struct Authority {
    store: Arc<dyn Store>,
    sealing_key: SecretBytes,
    settings: Settings,
    active: RwLock<Arc<Active>>,
    server: RwLock<Arc<ServerIdentity>>,
    shown: Arc<Shown>,
    trust: RwLock<Arc<Trust>>,
    signers: SignerCache,
    /// Held while the trust is rebuilt, so that rebuilds are sequential and each revocation is
    /// reported once.
    reloading: Mutex<()>,
    observers: RwLock<Vec<Arc<dyn Observer>>>,
}

impl Authority {
    /// Opens the authority in `store`, or creates it there. `sealing_key` (32 bytes) is derived
    /// from the server's root key for this purpose alone.
    ///
    /// # Errors
    /// [`AuthorityError::Limit`], [`AuthorityError::ServerName`] for settings;
    /// [`AuthorityError::Sealed`] under another root key; [`AuthorityError::Damaged`];
    /// [`AuthorityError::Store`].
    pub fn open(
        store: Arc<dyn Store>,
        sealing_key: &SecretBytes,
        settings: Settings,
        now: OffsetDateTime,
    ) -> Result<Arc<Self>, AuthorityError> {
        settings.check()?;
        let sealing_key = sealing_key.duplicate()?;
        let active = ca::open(store.as_ref(), &sealing_key, now)?;
        let (names, validity) = (settings.server_names.as_slice(), settings.server_validity);
        let server = server_certificate::open(store.as_ref(), &sealing_key, &active, names, validity, now)?;
        let trust = Trust::load(store.snapshot()?.as_ref())?;
        let roots: Vec<_> = trust.roots(now).cloned().collect();
        let shown = Arc::new(Shown::new(&server, &active, &roots));
        let authority = Arc::new(Self {
            store,
            sealing_key,
            settings,
            active: RwLock::new(Arc::new(active)),
            server: RwLock::new(Arc::new(server)),
            shown,
            trust: RwLock::new(Arc::new(trust)),
            signers: SignerCache::default(),
            reloading: Mutex::default(),
            observers: RwLock::default(),
        });
        watch::start(&authority);
        Ok(authority)
    }

    /// Adds an observer.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.observers.write().push(observer);
    }

    /// TLS for the KMIP port: version 1.2 and 1.3, no client without a certificate. It stays
    /// current: later connections use new certificates, revocations and roll-overs.
    ///
    /// # Errors
    /// [`AuthorityError::Tls`].
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, AuthorityError> {
        self.config(true)
    }

    /// TLS for the enrolment port: a client may present a certificate, which must then be
    /// acceptable.
    ///
    /// # Errors
    /// [`AuthorityError::Tls`].
    pub fn enrolment_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, AuthorityError> {
        self.config(false)
    }

    fn config(self: &Arc<Self>, certificate_mandatory: bool) -> Result<Arc<ServerConfig>, AuthorityError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = Arc::new(ClientVerifier::new(self, certificate_mandatory));
        let shown: Arc<Shown> = Arc::clone(&self.shown);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(shown);
        // A resumed session would bypass revocations since the first handshake.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Identifies the peer that presented `certificate` in a handshake. Call it for every request:
    /// a certificate revoked or expired since is refused. The chain is verified only the first
    /// time.
    ///
    /// # Errors
    /// Why the certificate is not, or no longer, accepted.
    pub fn identify(
        &self,
        certificate: &CertificateDer<'_>,
        now: OffsetDateTime,
    ) -> Result<Arc<Identity>, Refusal> {
        self.trust().identify(certificate, &[], now)
    }

    /// The authority's own certificates that are trusted at `now`, the active one first: the roots
    /// that a client must trust.
    pub fn roots(&self, now: OffsetDateTime) -> Vec<CertificateDer<'static>> {
        self.trust().roots(now).cloned().collect()
    }

    /// What is revoked at `now`.
    pub(super) fn revocations(&self, now: OffsetDateTime) -> enrol::protocol::RevocationsResponse {
        self.trust().revocations(now)
    }

    /// The fingerprint of the active authority, for people and tokens.
    pub fn fingerprint(&self) -> CertificateSha256 {
        CertificateSha256::of(&self.active().certificate)
    }

    /// The server's current certificate.
    pub fn server_certificate(&self) -> CertificateDer<'static> {
        self.server().record.certificate.0.clone()
    }

    /// Creates the next generation of the authority. The present one stays trusted for `overlap`,
    /// within which every client must renew.
    ///
    /// # Errors
    /// [`AuthorityError::Limit`] for an overlap out of range, or during an earlier roll-over;
    /// [`AuthorityError::Contended`]; [`AuthorityError::Store`].
    pub fn roll_over(&self, overlap: Duration, now: OffsetDateTime) -> Result<(), AuthorityError> {
        let active = ca::roll_over(self.store.as_ref(), &self.sealing_key, overlap, now)?;
        *self.active.write() = Arc::new(active);
        self.reload()?;
        self.renew_server_certificate(now)
    }

    /// Periodic maintenance: renews the server's certificate, ends rolled-over authorities, and
    /// forgets long-expired records. Call it from a timer; once an hour is enough.
    ///
    /// # Errors
    /// [`AuthorityError::Store`] and others; the next call does the rest.
    pub fn maintain(&self, now: OffsetDateTime) -> Result<(), AuthorityError> {
        if ca::forget_ended(self.store.as_ref(), now)? > 0 {
            self.reload()?;
            self.show_server_certificate(now);
        }
        let (server, active) = (self.server(), self.active());
        if !server_certificate::fits(&server.record, &active, &self.settings.server_names, now) {
            self.renew_server_certificate(now)?;
        }
        clients::forget_expired(self.store.as_ref(), now)?;
        enrol::forget_expired(self.store.as_ref(), now - limits::EXPIRED_TOKEN_KEPT)
    }

    fn renew_server_certificate(&self, now: OffsetDateTime) -> Result<(), AuthorityError> {
        let active = self.active();
        let (names, validity) = (self.settings.server_names.as_slice(), self.settings.server_validity);
        let store = self.store.as_ref();
        let server = server_certificate::open(store, &self.sealing_key, &active, names, validity, now)?;
        *self.server.write() = Arc::new(server);
        self.show_server_certificate(now);
        Ok(())
    }

    fn show_server_certificate(&self, now: OffsetDateTime) {
        self.shown.show(&self.server(), &self.active(), &self.roots(now));
    }

    /// Rebuilds the trust, and reports revocations since the last rebuild.
    fn reload(&self) -> Result<(), AuthorityError> {
        let _reloading = self.reloading.lock();
        let trust = Arc::new(Trust::load(self.store.snapshot()?.as_ref())?);
        let before = {
            let mut present = self.trust.write();
            std::mem::replace(&mut *present, Arc::clone(&trust))
        };
        let observers = self.observers.read().clone();
        for revoked in trust.revoked_since(&before) {
            observers.iter().for_each(|observer| observer.revoked(&revoked));
        }
        Ok(())
    }

    fn tell_refused(&self, certificate: CertificateSha256, refusal: Refusal) {
        let observers = self.observers.read().clone();
        observers.iter().for_each(|observer| observer.refused(&certificate, refusal));
    }

    // Each lock guards only the exchange of an `Arc`, so a panic elsewhere leaves no partial
    // change.

    fn trust(&self) -> Arc<Trust> {
        Arc::clone(&self.trust.read())
    }

    fn active(&self) -> Arc<Active> {
        Arc::clone(&self.active.read())
    }

    fn server(&self) -> Arc<ServerIdentity> {
        Arc::clone(&self.server.read())
    }
}

#[cfg(test)]
mod tests;
