//! The authority out of one server's store and into another's: for backups.
//!
//! What makes the authority itself goes along: its keys, in the clear inside the backup's own
//! encryption and sealed anew under the root that they come to; whom it lets in, and whom no
//! longer. The server's certificate does not, because it names the machine and is made anew; nor do
//! tokens, because one that was used since the backup would be good again.
//!
//! Restored over a server of the same authority, the backup is the older of two stories of one
//! thing. Then what is newer stays: who was revoked in either is revoked, who was enrolled since is
//! known, a roll-over is not taken back.

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

/// Where all that the authority keeps lies in the store.
pub(crate) const PREFIX: &str = "authority/";

/// What a backup does with one of the authority's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It has it as it is.
    Plain,
    /// It has the private key that is sealed there.
    Sealed,
    /// It does without.
    LeftOut,
}

/// Nothing for a record that nobody has decided about.
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
    /// What a backup has of one of the authority's records, opened; `None` if it does without.
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

/// What puts a record that [`Authority::opened`] gave into a store, sealed under that server's key.
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

/// What makes the restored authority in `staged` as new as the one in `present`, if it is the same
/// one. Both lie sealed under the same key.
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

/// Whether they have a certificate of an authority in common.
fn is_same_authority(staged: &dyn Snapshot, present: &dyn Snapshot) -> Result<bool, AuthorityError> {
    let certificates = |snapshot: &dyn Snapshot| -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
        let entries = snapshot.all(&KeyRange::prefix(CA))?;
        let certificate = |entry: &Entry| Ok(decode::<CaRecord>(&entry.key, &entry.value)?.certificate.0);
        entries.iter().map(certificate).collect()
    };
    let restored = certificates(staged)?;
    Ok(certificates(present)?.iter().any(|certificate| restored.contains(certificate)))
}

/// What two servers that have a record of one thing make of it; `None` if the restored one stays.
fn newer_value(key: &[u8], present: &[u8], restored: &[u8]) -> Result<Option<Vec<u8>>, AuthorityError> {
    #[derive(Clone, Copy)]
    struct Values<'a> {
        present: &'a [u8],
        restored: &'a [u8],
    }
    /// The present one, if `is_newer` says so.
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
        // An end that was once set is never taken back.
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

/// Takes away the authorities of the backup that have ended since it was made, and were forgotten.
fn ended_since(staged: &dyn Snapshot, present: &dyn Snapshot) -> Result<Vec<Operation>, AuthorityError> {
    let Some(active) = find::<ActiveRecord>(present, ACTIVE)? else { return Ok(Vec::new()) };
    let mut operations = Vec::new();
    // Keys lie in the order of generations.
    for entry in staged.all(&KeyRange::between(CA, active.record.generation.key(CA)))? {
        if present.get(&entry.key)?.is_none() {
            let digits: String = rest_of(&entry.key, CA)?;
            let sealed = format!("{SEALED_CA}{digits}").into_bytes();
            operations.extend([entry.key, sealed].map(|key| Operation::Delete { key }));
        }
    }
    Ok(operations)
}

/// What a sealed key is bound to: the place where it lies.
fn purpose(key: &[u8]) -> Result<String, AuthorityError> {
    String::from_utf8(key.to_vec()).map_err(|_| damaged(key))
}
