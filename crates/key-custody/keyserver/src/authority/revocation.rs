//! Permanent revocation of one certificate, or of a client with all its certificates.

use strongroom_store::{Is, Outcome, Snapshot, Transaction};
use time::OffsetDateTime;

use super::clients::ATTEMPTS;
use super::error::AuthorityError;
use super::records::{
    CERTIFICATE, CLIENT, CertificateRecord, ClientRecord, PIN, PinRecord, REVOKED_CERTIFICATE,
    REVOKED_CLIENT, RevokedCertificate, RevokedClient, encode, find,
};
use super::{Authority, trust};
use crate::access::{CertificateSerial, CertificateSha256, ClientId};

/// Longest reason for a revocation, in bytes.
const REASON_MAX_BYTES: usize = 256;

impl Authority {
    /// Revokes one certificate, issued here or pinned. In force for handshakes and requests when
    /// this returns.
    ///
    /// # Errors
    /// [`AuthorityError::Unknown`]; [`AuthorityError::Limit`] for a long reason;
    /// [`AuthorityError::Contended`]; [`AuthorityError::Store`].
    pub fn revoke_certificate(
        &self,
        certificate: &CertificateSha256,
        reason: &str,
        now: OffsetDateTime,
    ) -> Result<(), AuthorityError> {
        check_reason(reason)?;
        let key = format!("{REVOKED_CERTIFICATE}{certificate}");
        for _ in 0..ATTEMPTS {
            let snapshot = self.store.snapshot()?;
            let (client, serial, not_after) = whose(snapshot.as_ref(), certificate)?;
            let earlier = find::<RevokedCertificate>(snapshot.as_ref(), &key)?;
            if earlier.as_ref().is_some_and(|earlier| earlier.record.from <= now) {
                return Ok(());
            }
            let is = earlier.map_or(Is::Absent, |earlier| earlier.is);
            let revoked =
                RevokedCertificate { client, serial, from: now, reason: reason.to_owned(), not_after };
            let transaction = Transaction::new().when(key.clone(), is).put(key.clone(), encode(&revoked)?);
            if let Outcome::Committed(_) = self.store.commit(transaction)? {
                return self.reload();
            }
        }
        Err(AuthorityError::Contended)
    }

    /// Permanently revokes a client: all its certificates, and it gets no others. In force when
    /// this returns.
    ///
    /// # Errors
    /// As [`revoke_certificate`](Self::revoke_certificate).
    pub fn revoke_client(
        &self,
        client: ClientId,
        reason: &str,
        now: OffsetDateTime,
    ) -> Result<(), AuthorityError> {
        let is_known =
            find::<ClientRecord>(self.store.snapshot()?.as_ref(), &format!("{CLIENT}{client}"))?.is_some();
        if !is_known {
            return Err(AuthorityError::unknown_client(client, ""));
        }
        self.revoke_any_client(client, reason, now)
    }

    /// The same for a client that this server may not know: one that was enrolled after the
    /// restored backup was made has a certificate of this authority, but no record.
    ///
    /// # Errors
    /// [`AuthorityError::Limit`] for a long reason; [`AuthorityError::Store`].
    pub(crate) fn revoke_any_client(
        &self,
        client: ClientId,
        reason: &str,
        now: OffsetDateTime,
    ) -> Result<(), AuthorityError> {
        check_reason(reason)?;
        let key = format!("{REVOKED_CLIENT}{client}");
        let revoked = RevokedClient { from: now, reason: reason.to_owned() };
        let transaction = Transaction::new().when(key.clone(), Is::Absent).put(key, encode(&revoked)?);
        // A conflict means that it is already revoked.
        self.store.commit(transaction)?;
        self.reload()
    }
}

fn check_reason(reason: &str) -> Result<(), AuthorityError> {
    if reason.len() <= REASON_MAX_BYTES && !reason.contains(char::is_control) {
        return Ok(());
    }
    Err(AuthorityError::Limit {
        what: "the reason of a revocation",
        allowed: format!("one line of at most {REASON_MAX_BYTES} bytes"),
    })
}

/// A certificate's client, serial number and expiry.
fn whose(
    snapshot: &dyn Snapshot,
    certificate: &CertificateSha256,
) -> Result<(ClientId, CertificateSerial, OffsetDateTime), AuthorityError> {
    if let Some(found) = find::<CertificateRecord>(snapshot, &format!("{CERTIFICATE}{certificate}"))? {
        return Ok((found.record.client, found.record.serial, found.record.not_after));
    }
    let pin_key = format!("{PIN}{certificate}");
    let pin = find::<PinRecord>(snapshot, &pin_key)?
        .ok_or_else(|| AuthorityError::unknown_certificate(certificate))?
        .record;
    let (_, not_after, serial) =
        trust::usable(&pin.certificate.0).ok_or(AuthorityError::Damaged { key: pin_key })?;
    Ok((pin.client, serial, not_after))
}
