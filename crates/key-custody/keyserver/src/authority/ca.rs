//! The authority's own keys: made, sealed, opened, rolled over.
//!
//! A roll-over makes the next generation in one transaction: its key and certificate, a cross
//! certificate (the new key certified by the old one), and the day on which trust in the old one
//! ends. Until that day both are trusted. A client that knows only the old one reaches the new one
//! through the cross certificate, which the server sends along; a client that renews meanwhile
//! receives both.

use rcgen::Issuer;
use rustls::pki_types::CertificateDer;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Is, KeyRange, Outcome, Snapshot, Store, Transaction};
use time::{Duration, OffsetDateTime};

use super::certificate::{self, Validity};
use super::error::AuthorityError;
use super::limits::{CA_GENERATIONS_MAX, CA_OVERLAP_MIN, CA_VALIDITY};
use super::private_key::{self, PrivateKey};
use super::records::{
    ACTIVE, ActiveRecord, CA, CaGeneration, CaRecord, PemCertificate, SEALED_CA, decode, encode, find,
    rest_of,
};

/// The generation that signs.
pub(super) struct Active {
    pub(super) generation: CaGeneration,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) cross: Option<CertificateDer<'static>>,
    pub(super) not_after: OffsetDateTime,
    pub(super) issuer: Issuer<'static, PrivateKey>,
}

/// Returns the active generation; makes the first one if there is none.
pub(super) fn open(
    store: &dyn Store,
    sealing_key: &SecretBytes,
    now: OffsetDateTime,
) -> Result<Active, AuthorityError> {
    if let Some(active) = load(store.snapshot()?.as_ref(), sealing_key)? {
        return Ok(active);
    }
    let generation = CaGeneration(1);
    let first = make(sealing_key, generation, None, now)?;
    let transaction = Transaction::new().when(ACTIVE, Is::Absent);
    // If another process made one meanwhile, that one counts.
    store.commit(first.put_into(transaction)?)?;
    load(store.snapshot()?.as_ref(), sealing_key)?
        .ok_or_else(|| AuthorityError::Damaged { key: ACTIVE.to_owned() })
}

fn load(snapshot: &dyn Snapshot, sealing_key: &SecretBytes) -> Result<Option<Active>, AuthorityError> {
    let Some(active) = find::<ActiveRecord>(snapshot, ACTIVE)? else {
        return Ok(None);
    };
    let generation = active.record.generation;
    let (record_key, sealed_key) = (generation.key(CA), generation.key(SEALED_CA));
    let damaged = |key: &str| AuthorityError::Damaged { key: key.to_owned() };
    let record = find::<CaRecord>(snapshot, &record_key)?.ok_or_else(|| damaged(&record_key))?.record;
    let sealed = snapshot.get(sealed_key.as_bytes())?.ok_or_else(|| damaged(&sealed_key))?;
    let pkcs8 = private_key::open(sealing_key, &sealed_key, &sealed.value)?;
    let certificate = record.certificate.0;
    let not_after = super::trust::usable(&certificate).ok_or_else(|| damaged(&record_key))?.1;
    let issuer = Issuer::from_ca_cert_der(&certificate, PrivateKey::from_pkcs8(&pkcs8)?)?;
    let cross = record.cross.map(|cross| cross.0);
    Ok(Some(Active { generation, certificate, cross, not_after, issuer }))
}

/// A generation that is not stored yet.
struct Made {
    generation: CaGeneration,
    record: CaRecord,
    sealed: Vec<u8>,
}

fn make(
    sealing_key: &SecretBytes,
    generation: CaGeneration,
    previous: Option<&Active>,
    now: OffsetDateTime,
) -> Result<Made, AuthorityError> {
    let (key, pkcs8) = PrivateKey::generate()?;
    let validity = Validity::of(now, CA_VALIDITY, now + CA_VALIDITY);
    let own = certificate::authority(generation, &key, None, validity)?;
    let cross = match previous {
        Some(previous) => {
            let validity = Validity::of(now, CA_VALIDITY, previous.not_after);
            Some(certificate::authority(generation, &key, Some(&previous.issuer), validity)?)
        }
        None => None,
    };
    let record = CaRecord {
        certificate: PemCertificate(own.certificate),
        cross: cross.map(|cross| PemCertificate(cross.certificate)),
        created: now,
        trusted_until: None,
    };
    let sealed =
        private_key::seal(sealing_key, &generation.key(SEALED_CA), &pkcs8).map_err(AuthorityError::Sealed)?;
    Ok(Made { generation, record, sealed })
}

impl Made {
    fn put_into(&self, transaction: Transaction) -> Result<Transaction, AuthorityError> {
        Ok(transaction
            .put(ACTIVE, encode(&ActiveRecord { generation: self.generation })?)
            .put(self.generation.key(CA), encode(&self.record)?)
            .put(self.generation.key(SEALED_CA), self.sealed.clone()))
    }
}

/// Makes the next generation sign, and trusts the present one for `overlap` longer. It is one
/// transaction: after a crash it has happened completely or not at all.
pub(super) fn roll_over(
    store: &dyn Store,
    sealing_key: &SecretBytes,
    overlap: Duration,
    now: OffsetDateTime,
) -> Result<Active, AuthorityError> {
    if !(CA_OVERLAP_MIN..=CA_VALIDITY).contains(&overlap) {
        return Err(AuthorityError::Limit {
            what: "the time for which the old authority stays trusted",
            allowed: format!("from {} to {} days", CA_OVERLAP_MIN.whole_days(), CA_VALIDITY.whole_days()),
        });
    }
    let snapshot = store.snapshot()?;
    if snapshot.all(&KeyRange::prefix(CA))?.len() >= CA_GENERATIONS_MAX {
        return Err(AuthorityError::Limit {
            what: "the number of authorities trusted at a time",
            allowed: format!("at most {CA_GENERATIONS_MAX}; wait until the oldest ends"),
        });
    }
    let present = load(snapshot.as_ref(), sealing_key)?.ok_or_else(|| AuthorityError::Unknown {
        what: "authority in this key server".to_owned(),
        next: "set the key server up with `strongroom keyserver init`",
    })?;
    let active = find::<ActiveRecord>(snapshot.as_ref(), ACTIVE)?;
    let present_key = present.generation.key(CA);
    let record = find::<CaRecord>(snapshot.as_ref(), &present_key)?;
    let (Some(active), Some(record)) = (active, record) else {
        return Err(AuthorityError::Damaged { key: present_key });
    };
    let ended = CaRecord { trusted_until: Some(now + overlap), ..record.record };
    let next = make(sealing_key, CaGeneration(present.generation.0.saturating_add(1)), Some(&present), now)?;
    let transaction = Transaction::new()
        .when(ACTIVE, active.is)
        .when(present_key.clone(), record.is)
        .put(present_key, encode(&ended)?);
    match store.commit(next.put_into(transaction)?)? {
        Outcome::Committed(_) => load(store.snapshot()?.as_ref(), sealing_key)?
            .ok_or_else(|| AuthorityError::Damaged { key: ACTIVE.to_owned() }),
        Outcome::Conflict(_) => Err(AuthorityError::Contended),
    }
}

/// Removes the generations that are no longer trusted, with their keys.
pub(super) fn forget_ended(store: &dyn Store, now: OffsetDateTime) -> Result<usize, AuthorityError> {
    let mut forgotten = 0;
    for entry in store.snapshot()?.all(&KeyRange::prefix(CA))? {
        let record: CaRecord = decode(&entry.key, &entry.value)?;
        if record.trusted_until.is_some_and(|until| until <= now) {
            let digits: String = rest_of(&entry.key, CA)?;
            let transaction = Transaction::new()
                .when(entry.key.clone(), Is::ModifiedAt(entry.mod_revision))
                .delete(entry.key)
                .delete(format!("{SEALED_CA}{digits}"));
            store.commit(transaction)?;
            forgotten += 1;
        }
    }
    Ok(forgotten)
}
