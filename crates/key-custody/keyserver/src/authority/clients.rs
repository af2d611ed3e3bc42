//! Clients and their certificates: issued, renewed, listed, forgotten. Each change is one
//! transaction of the store, and a certificate leaves this room only once it is durable.

use rustls::pki_types::CertificateDer;
use strongroom_store::{Is, KeyRange, Operation, Outcome, Snapshot, Store, Transaction};
use time::{Duration, OffsetDateTime};

use super::certificate::{self, Validity};
use super::error::AuthorityError;
use super::limits::{CLIENT_CERTIFICATES_MAX, CLIENT_VALIDITY_MAX, VALIDITY_MIN};
use super::records::{
    CERTIFICATE, CERTIFICATE_OF, CLIENT, CertificateRecord, ClientRecord, PIN, PemCertificate,
    REVOKED_CERTIFICATE, REVOKED_CLIENT, RevokedCertificate, certificate_pem, decode, encode, find, rest_of,
};
use super::signing_request::RequestedKey;
use super::{Authority, Refusal};
use crate::access::{CertificateSha256, ClientId, ClientName, Identity, Role};

/// How often a change is retried because of a concurrent change to the same records.
pub(super) const ATTEMPTS: usize = 8;
/// How long records of expired certificates are kept, for later questions about them.
const EXPIRED_KEPT: Duration = Duration::days(30);
/// Records forgotten in one transaction: two operations each, within the store's limit.
const FORGET_PER_TRANSACTION: usize = 50;

/// A client's certificate, and the roots that the client must trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The issued certificate.
    pub record: CertificateRecord,
    /// The authority's certificates that are trusted now, the active one first.
    pub roots: Vec<CertificateDer<'static>>,
}

impl ClientCertificate {
    /// The roots in PEM, one after the other.
    pub fn roots_pem(&self) -> String {
        self.roots.iter().map(certificate_pem).collect()
    }
}

impl Authority {
    /// Issues a certificate for a new client that the caller vouches for: for signing requests that
    /// a person delivers, such as a vCenter's.
    ///
    /// # Errors
    /// [`AuthorityError::SigningRequest`]; [`AuthorityError::Limit`] for a validity out of range;
    /// [`AuthorityError::Store`].
    pub fn issue(
        &self,
        role: Role,
        name: &ClientName,
        signing_request: &[u8],
        validity: Option<Duration>,
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, AuthorityError> {
        let key = RequestedKey::read(signing_request, self.settings.key_types)?;
        let client = ClientId::random();
        let record = self.make(client, role, name, &key, validity, now)?;
        let client_record = ClientRecord { name: name.clone(), role, created: now };
        let transaction = put_client(Transaction::new(), client, &client_record)?;
        match self.store.commit(put_certificate(transaction, &record)?)? {
            Outcome::Committed(_) => Ok(self.deliver(record, now)),
            Outcome::Conflict(_) => Err(AuthorityError::Contended),
        }
    }

    /// Issues another certificate to a client that has lost its own, and that the caller vouches
    /// for. Its earlier certificates stay valid.
    ///
    /// # Errors
    /// As [`issue`](Self::issue); [`AuthorityError::Refused`] if it is revoked;
    /// [`AuthorityError::Contended`].
    pub(crate) fn reissue(
        &self,
        client: ClientId,
        known: &ClientRecord,
        signing_request: &[u8],
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, AuthorityError> {
        let key = RequestedKey::read(signing_request, self.settings.key_types)?;
        let record = self.make(client, known.role, &known.name, &key, None, now)?;
        let transaction = Transaction::new()
            .when(format!("{REVOKED_CLIENT}{client}"), Is::Absent)
            .when(format!("{CLIENT}{client}"), Is::Present);
        match self.store.commit(put_certificate(transaction, &record)?)? {
            Outcome::Committed(_) => Ok(self.deliver(record, now)),
            Outcome::Conflict(conflict) if conflict.condition == 0 => Err(Refusal::Revoked.into()),
            Outcome::Conflict(_) => Err(AuthorityError::Contended),
        }
    }

    /// Makes a certificate without storing it.
    pub(super) fn make(
        &self,
        client: ClientId,
        role: Role,
        name: &ClientName,
        key: &RequestedKey,
        validity: Option<Duration>,
        now: OffsetDateTime,
    ) -> Result<CertificateRecord, AuthorityError> {
        let validity = validity.unwrap_or(self.settings.client_validity);
        check_client_validity(validity)?;
        let active = self.active();
        let validity = Validity::of(now, validity, active.not_after);
        let made = certificate::client(client, role, name, key.key(), &active.issuer, validity)?;
        Ok(CertificateRecord {
            client,
            name: name.clone(),
            role,
            serial: made.serial,
            public_key: key.sha256(),
            not_before: validity.not_before,
            not_after: validity.not_after,
            certificate: PemCertificate(made.certificate),
        })
    }

    pub(super) fn deliver(&self, record: CertificateRecord, now: OffsetDateTime) -> ClientCertificate {
        ClientCertificate { record, roots: self.roots(now) }
    }

    /// Issues another certificate to the client that presents `present`: same client, role and
    /// name. The present one stays valid for the settings' grace period.
    ///
    /// # Errors
    /// [`AuthorityError::Refused`] if the present certificate is no longer accepted;
    /// [`AuthorityError::Unknown`] if it was pinned and not issued here; [`AuthorityError::Limit`]
    /// if the client has many valid certificates already; [`AuthorityError::SigningRequest`];
    /// [`AuthorityError::Store`].
    pub fn renew(
        &self,
        present: &Identity,
        signing_request: &[u8],
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, AuthorityError> {
        let key = RequestedKey::read(signing_request, self.settings.key_types)?;
        let client = present.client;
        for _ in 0..ATTEMPTS {
            let snapshot = self.store.snapshot()?;
            find::<CertificateRecord>(snapshot.as_ref(), &format!("{CERTIFICATE}{}", present.certificate))?
                .ok_or_else(|| AuthorityError::unknown_certificate(&present.certificate))?;
            if present.not_after < now {
                return Err(Refusal::Expired.into());
            }
            if valid_certificates(snapshot.as_ref(), client, now)? >= CLIENT_CERTIFICATES_MAX {
                return Err(AuthorityError::Limit {
                    what: "the number of a client's valid certificates",
                    allowed: format!("at most {CLIENT_CERTIFICATES_MAX}; revoke those that are not used"),
                });
            }
            let record = self.make(client, present.role, &present.name, &key, None, now)?;
            // A concurrent revocation is a conflict, and always prevails.
            let transaction = Transaction::new().when(format!("{REVOKED_CLIENT}{client}"), Is::Absent);
            let transaction = self.end_after_grace(transaction, snapshot.as_ref(), present, now)?;
            match self.store.commit(put_certificate(transaction, &record)?)? {
                Outcome::Committed(_) => {
                    self.reload()?;
                    return Ok(self.deliver(record, now));
                }
                Outcome::Conflict(conflict) if conflict.condition == 0 => return Err(Refusal::Revoked.into()),
                Outcome::Conflict(_) => {}
            }
        }
        Err(AuthorityError::Contended)
    }

    /// Ends the renewed certificate after the grace period, unless it expires earlier.
    fn end_after_grace(
        &self,
        transaction: Transaction,
        snapshot: &dyn Snapshot,
        present: &Identity,
        now: OffsetDateTime,
    ) -> Result<Transaction, AuthorityError> {
        let key = format!("{REVOKED_CERTIFICATE}{}", present.certificate);
        if let Some(revoked) = find::<RevokedCertificate>(snapshot, &key)? {
            if revoked.record.from <= now {
                return Err(Refusal::Revoked.into());
            }
            return Ok(transaction.when(key, revoked.is));
        }
        let transaction = transaction.when(key.clone(), Is::Absent);
        let end = self.settings.renewal_grace.map(|grace| now + grace).filter(|end| *end < present.not_after);
        let Some(from) = end else {
            return Ok(transaction);
        };
        let ended = RevokedCertificate {
            client: present.client,
            serial: present.serial.clone(),
            from,
            reason: "renewed".to_owned(),
            not_after: present.not_after,
        };
        Ok(transaction.put(key, encode(&ended)?))
    }

    /// Every client, and whether it is revoked.
    ///
    /// # Errors
    /// [`AuthorityError::Store`], [`AuthorityError::Damaged`].
    pub fn clients(&self) -> Result<Vec<(ClientId, ClientRecord, bool)>, AuthorityError> {
        let trust = self.trust();
        let entries = self.store.snapshot()?.all(&KeyRange::prefix(CLIENT))?;
        let read = entries.into_iter().map(|entry| {
            let client: ClientId = rest_of(&entry.key, CLIENT)?;
            let revoked = trust.revoked_clients.contains_key(&client);
            Ok((client, decode(&entry.key, &entry.value)?, revoked))
        });
        read.collect()
    }

    /// The certificates on record for a client, and whether each is revoked at `now`.
    ///
    /// # Errors
    /// [`AuthorityError::Store`], [`AuthorityError::Damaged`].
    pub fn certificates_of(
        &self,
        client: ClientId,
        now: OffsetDateTime,
    ) -> Result<Vec<(CertificateRecord, bool)>, AuthorityError> {
        let trust = self.trust();
        let revoked_client = trust.revoked_clients.contains_key(&client);
        let revoked = |record: &CertificateRecord| {
            let entry = trust.revoked_certificates.get(&record.sha256());
            revoked_client || entry.is_some_and(|revoked| revoked.from <= now)
        };
        let records = certificates(self.store.snapshot()?.as_ref(), client)?;
        Ok(records
            .into_iter()
            .map(|record| (revoked(&record), record))
            .map(|(is, record)| (record, is))
            .collect())
    }
}

pub(super) fn check_client_validity(validity: Duration) -> Result<(), AuthorityError> {
    if (VALIDITY_MIN..=CLIENT_VALIDITY_MAX).contains(&validity) {
        return Ok(());
    }
    Err(AuthorityError::Limit {
        what: "the life of a client's certificate",
        allowed: format!(
            "from {} hours to {} days",
            VALIDITY_MIN.whole_hours(),
            CLIENT_VALIDITY_MAX.whole_days()
        ),
    })
}

/// Ends all certificates of a client at `now`. The first condition of the transaction is that the
/// client is not revoked.
pub(super) fn end_all_of(
    snapshot: &dyn Snapshot,
    client: ClientId,
    now: OffsetDateTime,
) -> Result<Transaction, AuthorityError> {
    let mut transaction = Transaction::new()
        .when(format!("{REVOKED_CLIENT}{client}"), Is::Absent)
        .when(format!("{CLIENT}{client}"), Is::Present);
    for record in certificates(snapshot, client)?.into_iter().filter(|record| record.not_after >= now) {
        let key = format!("{REVOKED_CERTIFICATE}{}", record.sha256());
        let earlier = find::<RevokedCertificate>(snapshot, &key)?;
        if earlier.as_ref().is_some_and(|earlier| earlier.record.from <= now) {
            continue;
        }
        let is = earlier.map_or(Is::Absent, |earlier| earlier.is);
        let ended = RevokedCertificate {
            client,
            serial: record.serial.clone(),
            from: now,
            reason: "replaced".to_owned(),
            not_after: record.not_after,
        };
        transaction = transaction.when(key.clone(), is).put(key, encode(&ended)?);
    }
    Ok(transaction)
}

pub(super) fn put_client(
    transaction: Transaction,
    client: ClientId,
    record: &ClientRecord,
) -> Result<Transaction, AuthorityError> {
    let key = format!("{CLIENT}{client}");
    Ok(transaction.when(key.clone(), Is::Absent).put(key, encode(record)?))
}

pub(super) fn put_certificate(
    transaction: Transaction,
    record: &CertificateRecord,
) -> Result<Transaction, AuthorityError> {
    let sha256 = record.sha256();
    Ok(transaction
        .put(format!("{CERTIFICATE}{sha256}"), encode(record)?)
        .put(format!("{CERTIFICATE_OF}{}/{sha256}", record.client), []))
}

fn certificates(snapshot: &dyn Snapshot, client: ClientId) -> Result<Vec<CertificateRecord>, AuthorityError> {
    let prefix = format!("{CERTIFICATE_OF}{client}/");
    let mut records = Vec::new();
    for entry in snapshot.all(&KeyRange::prefix(prefix.as_bytes()))? {
        let sha256: CertificateSha256 = rest_of(&entry.key, &prefix)?;
        records.extend(find(snapshot, &format!("{CERTIFICATE}{sha256}"))?.map(|found| found.record));
    }
    Ok(records)
}

/// The number of a client's certificates that are valid at `now`, including those in their grace
/// period.
fn valid_certificates(
    snapshot: &dyn Snapshot,
    client: ClientId,
    now: OffsetDateTime,
) -> Result<usize, AuthorityError> {
    let mut valid = 0;
    for record in certificates(snapshot, client)? {
        let key = format!("{REVOKED_CERTIFICATE}{}", record.sha256());
        let revoked =
            find::<RevokedCertificate>(snapshot, &key)?.is_some_and(|found| found.record.from <= now);
        valid += usize::from(!revoked && now <= record.not_after);
    }
    Ok(valid)
}

/// Forgets certificates, issued and pinned, that expired some time ago, together with their
/// revocations. A revoked client stays revoked.
pub(super) fn forget_expired(store: &dyn Store, now: OffsetDateTime) -> Result<(), AuthorityError> {
    let snapshot = store.snapshot()?;
    let long_ago = now - EXPIRED_KEPT;
    let mut forgotten: Vec<[Operation; 2]> = Vec::new();
    let delete = |key: String| Operation::Delete { key: key.into_bytes() };
    for entry in snapshot.all(&KeyRange::prefix(CERTIFICATE))? {
        let record: CertificateRecord = decode(&entry.key, &entry.value)?;
        if record.not_after < long_ago {
            let sha256 = record.sha256();
            let index = format!("{CERTIFICATE_OF}{}/{sha256}", record.client);
            forgotten.push([delete(format!("{CERTIFICATE}{sha256}")), delete(index)]);
        }
    }
    for entry in snapshot.all(&KeyRange::prefix(REVOKED_CERTIFICATE))? {
        let revoked: RevokedCertificate = decode(&entry.key, &entry.value)?;
        if revoked.not_after < long_ago {
            let sha256: CertificateSha256 = rest_of(&entry.key, REVOKED_CERTIFICATE)?;
            // Its pin, if it was pinned; an expired certificate is refused with or without a pin.
            forgotten
                .push([delete(format!("{REVOKED_CERTIFICATE}{sha256}")), delete(format!("{PIN}{sha256}"))]);
        }
    }
    for chunk in forgotten.chunks(FORGET_PER_TRANSACTION) {
        let operations = chunk.iter().flatten().cloned().collect();
        store.commit(Transaction { conditions: Vec::new(), operations })?;
    }
    Ok(())
}
