//! The server's own certificate: kept sealed in the store, so that a restart shows the same one;
//! renewed after two thirds of its validity, while the server runs.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Is, Outcome, Store, Transaction};
use time::{Duration, OffsetDateTime};

use super::ca::Active;
use super::certificate::{self, Validity};
use super::error::AuthorityError;
use super::private_key::{self, PrivateKey};
use super::records::{PemCertificate, SEALED_SERVER, SERVER, ServerRecord, encode, find};

/// The certificate and its key, ready for TLS.
pub(super) struct ServerIdentity {
    pub(super) record: ServerRecord,
    key: Arc<dyn rustls::sign::SigningKey>,
}

impl ServerIdentity {
    /// The chain to the authority: with the cross certificate of a roll-over, and `roots`. A client
    /// that has a root does not need it; one that has only its fingerprint, from a token, does.
    fn chain(&self, active: &Active, roots: &[CertificateDer<'static>]) -> Arc<CertifiedKey> {
        let leaf = self.record.certificate.0.clone();
        // The cross certificate leads to the previous root, and is useless once that has ended.
        let cross = active.cross.clone().filter(|_| roots.len() > 1);
        let chain = [leaf].into_iter().chain(cross).chain(roots.iter().cloned());
        Arc::new(CertifiedKey::new(chain.collect(), Arc::clone(&self.key)))
    }
}

/// The stored certificate, if it still fits; otherwise a new one, stored before it is used.
pub(super) fn open(
    store: &dyn Store,
    sealing_key: &SecretBytes,
    active: &Active,
    names: &[String],
    validity: Duration,
    now: OffsetDateTime,
) -> Result<ServerIdentity, AuthorityError> {
    let snapshot = store.snapshot()?;
    let stored = find::<ServerRecord>(snapshot.as_ref(), SERVER)?;
    let is = stored.as_ref().map_or(Is::Absent, |stored| stored.is);
    if let Some(record) = stored.map(|stored| stored.record).filter(|record| fits(record, active, names, now))
    {
        let damaged = || AuthorityError::Damaged { key: SEALED_SERVER.to_owned() };
        let sealed = snapshot.get(SEALED_SERVER.as_bytes())?.ok_or_else(damaged)?;
        let pkcs8 = private_key::open(sealing_key, &purpose(&record.certificate), &sealed.value)?;
        return Ok(ServerIdentity { record, key: tls_key(&pkcs8)? });
    }
    let (key, pkcs8) = PrivateKey::generate()?;
    let validity = Validity::of(now, validity, active.not_after);
    let made = certificate::server(names, &key, &active.issuer, validity)?;
    let record = ServerRecord {
        certificate: PemCertificate(made.certificate),
        names: names.to_vec(),
        generation: active.generation,
        not_before: validity.not_before,
        not_after: validity.not_after,
    };
    let purpose = purpose(&record.certificate);
    let sealed = private_key::seal(sealing_key, &purpose, &pkcs8).map_err(AuthorityError::Sealed)?;
    let transaction =
        Transaction::new().when(SERVER, is).put(SERVER, encode(&record)?).put(SEALED_SERVER, sealed);
    match store.commit(transaction)? {
        Outcome::Committed(_) => Ok(ServerIdentity { record, key: tls_key(&pkcs8)? }),
        Outcome::Conflict(_) => Err(AuthorityError::Contended),
    }
}

/// Binds the sealed key to its certificate.
fn purpose(certificate: &PemCertificate) -> String {
    format!("{SEALED_SERVER}/{}", certificate.sha256())
}

/// Whether a certificate can still be used: it has these names, is by the present authority, and is
/// not due for renewal.
pub(super) fn fits(record: &ServerRecord, active: &Active, names: &[String], now: OffsetDateTime) -> bool {
    record.generation == active.generation && record.names == names && now < renewal_due(record)
}

/// The end of two thirds of its validity.
pub(super) fn renewal_due(record: &ServerRecord) -> OffsetDateTime {
    record.not_before + (record.not_after - record.not_before) * 2 / 3
}

fn tls_key(pkcs8: &SecretBytes) -> Result<Arc<dyn rustls::sign::SigningKey>, AuthorityError> {
    // Borrowed: the bytes stay in secret memory, and the library makes its own key from them.
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.expose()));
    Ok(rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der)?)
}

/// The certificate of TLS handshakes, replaceable while the server runs.
pub(super) struct Shown(RwLock<Arc<CertifiedKey>>);

impl Shown {
    pub(super) fn new(identity: &ServerIdentity, active: &Active, roots: &[CertificateDer<'static>]) -> Self {
        Self(RwLock::new(identity.chain(active, roots)))
    }

    /// Uses `identity` from the next handshake on.
    pub(super) fn show(&self, identity: &ServerIdentity, active: &Active, roots: &[CertificateDer<'static>]) {
        *self.0.write() = identity.chain(active, roots);
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Shown(the server's certificate, key redacted)")
    }
}
