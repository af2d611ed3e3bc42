//! Moves the authority from one server's store into another's, for backups.
//!
//! A backup contains the authority itself: its keys, in plaintext inside the backup's own
//! encryption and sealed again under the target's root; its clients and their revocations. It does
//! not contain the server's certificate, which names the machine and is made again, nor tokens,
//! because one used since the backup would become valid again.
//!
//! If the target is a server of the same authority, the backup is the older of two states of one
//! authority. Then the newer facts stay: a client revoked in either is revoked, a client enrolled
//! since is known, and a roll-over is not undone.

use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Entry, KeyRange, Operation, Snapshot};
use zeroize::Zeroizing;

use super::Authority;
use super::error::AuthorityError;
use super::private_key;
use super::records::{
    ACTIVE, ActiveRecord, CA, CERTIFICATE, CERTIFICATE_OF, CLIENT, CaRecord, PIN, REVOKED_CERTIFICATE,
    REVOKED_CLIENT, RevokedCertificate, RevokedClient, SEALED_CA, SEALED_SERVER, SERVER, TOKEN, damaged,
    decode, encode, find, rest_of,
};

/// The prefix of all the authority's records in the store.
pub(crate) const PREFIX: &str = "authority/";

/// How a backup treats one of the authority's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Copied unchanged.
    Plain,
    /// Contains the private key that is sealed there.
    Sealed,
    /// Left out of the backup.
    LeftOut,
}

/// `None` for an unknown kind of record.
fn part_of(key: &[u8]) -> Option<Part> {
    const PARTS: [(&str, Part); 12] = [
        (SEALED_CA, Part::Sealed),
        (SEALED_SERVER, Part::LeftOut),
        (SERVER, Part::LeftOut),
        (TOKEN, Part::LeftOut),
        (ACTIVE, Part::Plain),
        (CA, Part::Plain),
        (REVOKED_CERTIFICATE, Part::Plain),
        (REVOKED_CLIENT, Part::Plain),
        (PIN, Part::Plain),
        (CLIENT, Part::Plain),
        (CERTIFICATE, Part::Plain),
        (CERTIFICATE_OF, Part::Plain),
    ];
    PARTS.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes())).map(|(_, part)| *part)
}

impl Authority {
    /// The content of one of the authority's records for a backup, opened; `None` if it is left
    /// out.
    ///
    /// # Errors
    /// [`AuthorityError::Damaged`] for a record of no known kind; [`AuthorityError::Sealed`].
    pub(crate) fn opened(&self, entry: &Entry) -> Result<Option<Zeroizing<Vec<u8>>>, AuthorityError> {
        match part_of(&entry.key).ok_or_else(|| damaged(&entry.key))? {
            Part::Plain => Ok(Some(Zeroizing::new(entry.value.clone()))),
            Part::Sealed => {
                let pkcs8 = private_key::open(&self.sealing_key, &purpose(&entry.key)?, &entry.value)?;
                Ok(Some(Zeroizing::new(pkcs8.expose().to_vec())))
            }
            Part::LeftOut => Ok(None),
        }
    }
}

/// The operation that puts a record from [`Authority::opened`] into a store, sealed under that
/// server's key.
///
/// # Errors
/// [`AuthorityError::Damaged`] for a record that no backup has.
pub(crate) fn put(sealing_key: &SecretBytes, key: &[u8], value: &[u8]) -> Result<Operation, AuthorityError> {
    let value = match part_of(key) {
        Some(Part::Plain) => value.to_vec(),
        Some(Part::Sealed) => {
            let mut pkcs8 = SecretBytes::zeroed(value.len())?;
            pkcs8.expose_mut().copy_from_slice(value);
            private_key::seal(sealing_key, &purpose(key)?, &pkcs8).map_err(AuthorityError::Sealed)?
        }
        Some(Part::LeftOut) | None => return Err(damaged(key)),
    };
    Ok(Operation::Put { key: key.to_vec(), value, lease: None })
}

/// The operations that make the restored authority in `staged` as new as the one in `present`, if
/// it is the same authority. Both are sealed under the same key.
///
/// # Errors
/// [`AuthorityError::Store`], [`AuthorityError::Damaged`].
pub(crate) fn newer(staged: &dyn Snapshot, present: &dyn Snapshot) -> Result<Vec<Operation>, AuthorityError> {
    if !is_same_authority(staged, present)? {
        return Ok(Vec::new());
    }
    let mut operations = Vec::new();
    for entry in present.all(&KeyRange::prefix(PREFIX))? {
        if matches!(part_of(&entry.key).ok_or_else(|| damaged(&entry.key))?, Part::LeftOut) {
            continue;
        }
        let value = match staged.get(&entry.key)? {
            None => entry.value,
            Some(restored) => match newer_value(&entry.key, &entry.value, &restored.value)? {
                Some(value) => value,
                None => continue,
            },
        };
        operations.push(Operation::Put { key: entry.key, value, lease: None });
    }
    operations.extend(ended_since(staged, present)?);
    Ok(operations)
}

/// Whether they share a certificate of an authority.
fn is_same_authority(staged: &dyn Snapshot, present: &dyn Snapshot) -> Result<bool, AuthorityError> {
    let certificates = |snapshot: &dyn Snapshot| -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
        let entries = snapshot.all(&KeyRange::prefix(CA))?;
        let certificate = |entry: &Entry| Ok(decode::<CaRecord>(&entry.key, &entry.value)?.certificate.0);
        entries.iter().map(certificate).collect()
    };
    let restored = certificates(staged)?;
    Ok(certificates(present)?.iter().any(|certificate| restored.contains(certificate)))
}

/// Merges two records under one key; `None` if the restored one stays.
fn newer_value(key: &[u8], present: &[u8], restored: &[u8]) -> Result<Option<Vec<u8>>, AuthorityError> {
    #[derive(Clone, Copy)]
    struct Values<'a> {
        present: &'a [u8],
        restored: &'a [u8],
    }
    /// The present record, if `is_newer` prefers it.
    fn chosen<R: DeserializeOwned + Serialize>(
        key: &[u8],
        values: Values<'_>,
        is_newer: impl Fn(&R, &R) -> bool,
    ) -> Result<Option<Vec<u8>>, AuthorityError> {
        let (present, restored): (R, R) = (decode(key, values.present)?, decode(key, values.restored)?);
        is_newer(&present, &restored).then(|| encode(&present)).transpose()
    }
    let both = Values { present, restored };
    let is_at = |prefix: &str| key.starts_with(prefix.as_bytes());
    match () {
        () if is_at(ACTIVE) => {
            chosen::<ActiveRecord>(key, both, |present, restored| present.generation > restored.generation)
        }
        // An end date, once set, is never removed.
        () if is_at(CA) => chosen::<CaRecord>(key, both, |present, restored| {
            let until = [present.trusted_until, restored.trusted_until];
            matches!(until, [Some(_), None]) || matches!(until, [Some(one), Some(other)] if one < other)
        }),
        () if is_at(REVOKED_CERTIFICATE) => {
            chosen::<RevokedCertificate>(key, both, |present, restored| present.from < restored.from)
        }
        () if is_at(REVOKED_CLIENT) => {
            chosen::<RevokedClient>(key, both, |present, restored| present.from < restored.from)
        }
        () => Ok(None),
    }
}

/// Removes the backup's authorities that have ended, and been forgotten, since it was made.
fn ended_since(staged: &dyn Snapshot, present: &dyn Snapshot) -> Result<Vec<Operation>, AuthorityError> {
    let Some(active) = find::<ActiveRecord>(present, ACTIVE)? else { return Ok(Vec::new()) };
    let mut operations = Vec::new();
    // Keys sort by generation.
    for entry in staged.all(&KeyRange::between(CA, active.record.generation.key(CA)))? {
        if present.get(&entry.key)?.is_none() {
            let digits: String = rest_of(&entry.key, CA)?;
            let sealed = format!("{SEALED_CA}{digits}").into_bytes();
            operations.extend([entry.key, sealed].map(|key| Operation::Delete { key }));
        }
    }
    Ok(operations)
}

/// The purpose to which a sealed key is bound: its place in the store.
fn purpose(key: &[u8]) -> Result<String, AuthorityError> {
    String::from_utf8(key.to_vec()).map_err(|_| damaged(key))
}
