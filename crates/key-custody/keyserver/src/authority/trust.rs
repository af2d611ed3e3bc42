//! Which clients the server accepts: an immutable snapshot of all facts that decide it, rebuilt
//! whenever the store changes.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use strongroom_store::{KeyRange, Snapshot};
use time::OffsetDateTime;
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::Revoked;
use super::certificate::read_client_uri;
use super::enrol::protocol::RevocationsResponse;
use super::error::AuthorityError;
use super::limits::IDENTIFIED_MAX;
use super::records::{
    CA, CaRecord, PIN, PinRecord, REVOKED_CERTIFICATE, REVOKED_CLIENT, RevokedCertificate, RevokedClient,
    damaged, decode, rest_of,
};
use super::refusal::Refusal;
use crate::access::{
    CertificateSerial, CertificateSha256, ClientId, ClientName, Identity, PublicKeySha256, Role,
};

/// A generation of the authority, in the form that verification needs.
struct Root {
    certificate: CertificateDer<'static>,
    anchor: TrustAnchor<'static>,
    /// The first moment at which it is no longer trusted.
    until: Option<OffsetDateTime>,
}

/// A certificate's verified identity, and how long it holds if nothing is revoked.
struct Identified {
    identity: Arc<Identity>,
    not_before: OffsetDateTime,
    until: OffsetDateTime,
}

/// All facts that decide which clients are accepted, at one revision of the store.
pub(super) struct Trust {
    algorithms: WebPkiSupportedAlgorithms,
    roots: Vec<Root>,
    pins: HashMap<CertificateSha256, PinRecord>,
    pub(super) revoked_certificates: HashMap<CertificateSha256, RevokedCertificate>,
    pub(super) revoked_clients: HashMap<ClientId, RevokedClient>,
    /// Certificates whose chain has been verified. A new snapshot starts with none.
    identified: Mutex<HashMap<CertificateSha256, Identified>>,
}

impl Trust {
    pub(super) fn load(snapshot: &dyn Snapshot) -> Result<Self, AuthorityError> {
        let mut roots = Vec::new();
        for entry in snapshot.all(&KeyRange::prefix(CA))? {
            let record: CaRecord = decode(&entry.key, &entry.value)?;
            let certificate = record.certificate.0;
            let anchor =
                webpki::anchor_from_trusted_cert(&certificate).map_err(|_| damaged(&entry.key))?.to_owned();
            roots.push(Root { certificate, anchor, until: record.trusted_until });
        }
        let mut trust = Self {
            algorithms: rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms,
            roots,
            pins: HashMap::new(),
            revoked_certificates: HashMap::new(),
            revoked_clients: HashMap::new(),
            identified: Mutex::default(),
        };
        for entry in snapshot.all(&KeyRange::prefix(PIN))? {
            trust.pins.insert(rest_of(&entry.key, PIN)?, decode(&entry.key, &entry.value)?);
        }
        for entry in snapshot.all(&KeyRange::prefix(REVOKED_CERTIFICATE))? {
            let certificate = rest_of(&entry.key, REVOKED_CERTIFICATE)?;
            trust.revoked_certificates.insert(certificate, decode(&entry.key, &entry.value)?);
        }
        for entry in snapshot.all(&KeyRange::prefix(REVOKED_CLIENT))? {
            let client = rest_of(&entry.key, REVOKED_CLIENT)?;
            trust.revoked_clients.insert(client, decode(&entry.key, &entry.value)?);
        }
        Ok(trust)
    }

    /// Revocations that are new here, or take effect earlier, compared with `before`.
    pub(super) fn revoked_since(&self, before: &Trust) -> Vec<Revoked> {
        let known = |certificate| before.revoked_certificates.get(certificate).map(|revoked| revoked.from);
        let certificates = self
            .revoked_certificates
            .iter()
            .filter(|(certificate, revoked)| known(*certificate).is_none_or(|from| revoked.from < from))
            .map(|(certificate, revoked)| Revoked {
                client: revoked.client,
                certificate: Some(*certificate),
                from: revoked.from,
                reason: revoked.reason.clone(),
            });
        let clients = self
            .revoked_clients
            .iter()
            .filter(|(client, _)| !before.revoked_clients.contains_key(client))
            .map(|(client, revoked)| Revoked {
                client: *client,
                certificate: None,
                from: revoked.from,
                reason: revoked.reason.clone(),
            });
        certificates.chain(clients).collect()
    }

    /// What is revoked at `now`, without certificates that have expired.
    pub(super) fn revocations(&self, now: OffsetDateTime) -> RevocationsResponse {
        let certificates = self.revoked_certificates.iter();
        let in_force = certificates.filter(|(_, revoked)| revoked.from <= now && now <= revoked.not_after);
        RevocationsResponse {
            certificates: in_force.map(|(certificate, _)| *certificate).collect(),
            clients: self.revoked_clients.keys().copied().collect(),
        }
    }

    /// The roots that are trusted at `now`, the newest first.
    pub(super) fn roots(&self, now: OffsetDateTime) -> impl Iterator<Item = &CertificateDer<'static>> {
        let trusted = move |root: &&Root| root.until.is_none_or(|until| now < until);
        self.roots.iter().rev().filter(trusted).map(|root| &root.certificate)
    }

    pub(super) fn pins(&self) -> &HashMap<CertificateSha256, PinRecord> {
        &self.pins
    }

    /// Identifies the client that presents `leaf` at `now`. Every call checks revocations and time;
    /// the chain is verified only the first time.
    pub(super) fn identify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: OffsetDateTime,
    ) -> Result<Arc<Identity>, Refusal> {
        let sha256 = CertificateSha256::of(leaf);
        if let Some(known) = self.identified.lock().get(&sha256) {
            return self.admit(known, now);
        }
        let identified = match self.pins.get(&sha256) {
            Some(pin) => read_pinned(leaf, sha256, pin)?,
            None => self.verify(leaf, intermediates, sha256, now)?,
        };
        let admitted = self.admit(&identified, now);
        let mut all = self.identified.lock();
        // Only verified certificates get here, so a stranger cannot fill it; if it is full, start
        // over.
        if all.len() >= IDENTIFIED_MAX {
            all.clear();
        }
        all.insert(sha256, identified);
        admitted
    }

    fn admit(&self, known: &Identified, now: OffsetDateTime) -> Result<Arc<Identity>, Refusal> {
        let identity = &known.identity;
        let revoked_certificate =
            self.revoked_certificates.get(&identity.certificate).is_some_and(|revoked| revoked.from <= now);
        if revoked_certificate || self.revoked_clients.contains_key(&identity.client) {
            return Err(Refusal::Revoked);
        }
        if now < known.not_before {
            return Err(Refusal::NotYetValid);
        }
        if known.until < now {
            return Err(Refusal::Expired);
        }
        Ok(Arc::clone(identity))
    }

    /// Verifies the chain to one of the roots, and reads the identity.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        sha256: CertificateSha256,
        now: OffsetDateTime,
    ) -> Result<Identified, Refusal> {
        let end_entity = EndEntityCert::try_from(leaf).map_err(|_| Refusal::Malformed)?;
        let seconds = u64::try_from(now.unix_timestamp()).unwrap_or(0);
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let mut refusal = Refusal::UnknownAuthority;
        for root in self.roots.iter().filter(|root| root.until.is_none_or(|until| now < until)) {
            let verified = end_entity.verify_for_usage(
                self.algorithms.all,
                std::slice::from_ref(&root.anchor),
                intermediates,
                time,
                KeyUsage::client_auth(),
                None,
                None,
            );
            match verified.map_err(Refusal::from) {
                Ok(_) => {
                    let mut identified = read_issued(&end_entity, leaf, sha256)?;
                    identified.until =
                        root.until.map_or(identified.until, |until| identified.until.min(until));
                    return Ok(identified);
                }
                // Another root may have signed it; if none did, the most specific refusal counts.
                Err(Refusal::UnknownAuthority) => {}
                Err(other) => refusal = other,
            }
        }
        // An expired certificate of ours may also be revoked, which is the graver reason.
        if self.revoked_certificates.contains_key(&sha256) && refusal == Refusal::Expired {
            refusal = Refusal::Revoked;
        }
        Err(refusal)
    }
}

/// A certificate's public key, and its period of validity.
struct Contents {
    name: Option<String>,
    public_key: PublicKeySha256,
    serial: CertificateSerial,
    not_before: OffsetDateTime,
    not_after: OffsetDateTime,
}

fn read_contents(leaf: &CertificateDer<'_>) -> Option<Contents> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Some(Contents {
        name: name.map(str::to_owned),
        public_key: PublicKeySha256::of(certificate.public_key().raw),
        serial: CertificateSerial::from_bytes(certificate.raw_serial()),
        not_before: certificate.validity().not_before.to_datetime(),
        not_after: certificate.validity().not_after.to_datetime(),
    })
}

fn read_issued(
    end_entity: &EndEntityCert<'_>,
    leaf: &CertificateDer<'_>,
    sha256: CertificateSha256,
) -> Result<Identified, Refusal> {
    let mut uris = end_entity.valid_uri_names();
    let (Some(uri), None) = (uris.next(), uris.next()) else {
        return Err(Refusal::NoIdentity);
    };
    let (client, role) = read_client_uri(uri).ok_or(Refusal::NoIdentity)?;
    let contents = read_contents(leaf).ok_or(Refusal::Malformed)?;
    let name = contents.name.as_deref().and_then(|name| name.parse().ok()).ok_or(Refusal::NoIdentity)?;
    Ok(identified(contents, client, role, name, sha256))
}

/// The identity that a certificate claims, if an authority of this kind could have issued it. It is
/// not verified: use it only for one's own certificate, or one from a trusted file.
pub fn claimed_identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let end_entity = EndEntityCert::try_from(certificate).ok()?;
    let read = read_issued(&end_entity, certificate, CertificateSha256::of(certificate));
    read.ok().map(|identified| Arc::unwrap_or_clone(identified.identity))
}

fn read_pinned(
    leaf: &CertificateDer<'_>,
    sha256: CertificateSha256,
    pin: &PinRecord,
) -> Result<Identified, Refusal> {
    let contents = read_contents(leaf).ok_or(Refusal::Malformed)?;
    Ok(identified(contents, pin.client, Role::Client, pin.name.clone(), sha256))
}

fn identified(
    contents: Contents,
    client: ClientId,
    role: Role,
    name: ClientName,
    certificate: CertificateSha256,
) -> Identified {
    Identified {
        identity: Arc::new(Identity {
            client,
            role,
            name,
            public_key: contents.public_key,
            certificate,
            serial: contents.serial,
            not_after: contents.not_after,
        }),
        not_before: contents.not_before,
        until: contents.not_after,
    }
}

/// A foreign certificate's claimed period of validity, if it is usable for TLS.
pub(super) fn usable(
    leaf: &CertificateDer<'_>,
) -> Option<(OffsetDateTime, OffsetDateTime, CertificateSerial)> {
    EndEntityCert::try_from(leaf).ok()?;
    let contents = read_contents(leaf)?;
    Some((contents.not_before, contents.not_after, contents.serial))
}
