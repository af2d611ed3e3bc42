//! Redeems a token and a signing request for a certificate.

use strongroom_store::{Outcome, StoreError, Transaction};
use time::{Duration, OffsetDateTime};

use super::super::clients::{end_all_of, put_certificate, put_client};
use super::super::error::{AuthorityError, SigningRequestError};
use super::super::records::{
    CERTIFICATE, CertificateRecord, ClientRecord, REVOKED_CLIENT, RevokedClient, encode, find,
};
use super::super::signing_request::RequestedKey;
use super::super::{Authority, ClientCertificate};
use super::token::{EnrolmentToken, TokenRecord, UsedRecord, token_key};

/// How often a redemption is retried because the token was used or cancelled meanwhile; the next
/// attempt sees that.
const ATTEMPTS: usize = 4;

/// Why a token is not redeemed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolRefusal {
    /// The text does not have the form of a token.
    #[error("what was shown is no enrolment token")]
    Malformed,
    /// There is no such token, or its secret is another; the message does not say which.
    #[error("the token is not known here; it may have been cancelled or have expired some time ago")]
    Unknown,
    /// It has expired.
    #[error("the token has expired; ask for another")]
    Expired,
    /// It was used for another key.
    #[error(
        "the token was used before, for another key; if that was not you, tell your administrator at once"
    )]
    Used,
    /// It was made for another key.
    #[error("the token is for another key than the signing request's")]
    OtherKey,
    /// Its client has been revoked.
    #[error("the client that the token made is revoked")]
    Revoked,
    /// The signing request is refused.
    #[error("the signing request is refused: {0}")]
    SigningRequest(#[from] SigningRequestError),
    /// The authority is unavailable. The token is unused, or the same request gets the same answer
    /// again.
    #[error("the server cannot do this now; try again with the same token and key")]
    Unavailable(#[source] AuthorityError),
}

impl EnrolRefusal {
    /// Its code in answers and records; never changes.
    pub const fn code(&self) -> &'static str {
        match self {
            EnrolRefusal::Malformed => "token-malformed",
            EnrolRefusal::Unknown => "token-unknown",
            EnrolRefusal::Expired => "token-expired",
            EnrolRefusal::Used => "token-used",
            EnrolRefusal::OtherKey => "token-other-key",
            EnrolRefusal::Revoked => "client-revoked",
            EnrolRefusal::SigningRequest(_) => "signing-request",
            EnrolRefusal::Unavailable(_) => "unavailable",
        }
    }
}

impl From<AuthorityError> for EnrolRefusal {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::SigningRequest(error) => Self::SigningRequest(error),
            other => Self::Unavailable(other),
        }
    }
}

impl From<StoreError> for EnrolRefusal {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.into())
    }
}

impl Authority {
    /// Redeems a token: its user becomes the client that the token was made for. A repetition with
    /// the same key returns the same certificate.
    ///
    /// # Errors
    /// The refusal.
    pub fn enrol(
        &self,
        token: &EnrolmentToken,
        signing_request: &[u8],
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, EnrolRefusal> {
        // Checked before the token: a request without a proof must not use up a token.
        let key = RequestedKey::read(signing_request, self.settings.key_types)?;
        let token_key = token_key(token.id());
        for _ in 0..ATTEMPTS {
            let snapshot = self.store.snapshot()?;
            let found = find::<TokenRecord>(snapshot.as_ref(), &token_key)?
                .filter(|found| token.is_of(&found.record))
                .ok_or(EnrolRefusal::Unknown)?;
            let record = found.record;
            if record.expires <= now {
                return Err(EnrolRefusal::Expired);
            }
            if record.public_key.is_some_and(|bound| bound != key.sha256()) {
                return Err(EnrolRefusal::OtherKey);
            }
            if let Some(used) = &record.used {
                return self.deliver_again(used, &record, &key, now);
            }
            let validity = record.certificate_seconds.map(Duration::seconds);
            let certificate = self.make(record.client, record.role, &record.name, &key, validity, now)?;
            let used = UsedRecord { public_key: key.sha256(), certificate: certificate.sha256() };
            let transaction = if record.replaces {
                end_all_of(snapshot.as_ref(), record.client, now)?
            } else {
                let client = ClientRecord { name: record.name.clone(), role: record.role, created: now };
                put_client(Transaction::new(), record.client, &client)?
            };
            let replaces = record.replaces;
            let transaction = put_certificate(transaction, &certificate)?
                .when(token_key.clone(), found.is)
                .put(token_key.clone(), encode(&TokenRecord { used: Some(used), ..record })?);
            match self.store.commit(transaction)? {
                Outcome::Committed(_) => {
                    if replaces {
                        self.reload()?;
                    }
                    return Ok(self.deliver(certificate, now));
                }
                Outcome::Conflict(conflict) if replaces && conflict.condition == 0 => {
                    return Err(EnrolRefusal::Revoked);
                }
                Outcome::Conflict(_) => {}
            }
        }
        Err(AuthorityError::Contended.into())
    }

    /// Repeats a lost answer: the same certificate, for the same key only.
    fn deliver_again(
        &self,
        used: &UsedRecord,
        token: &TokenRecord,
        key: &RequestedKey,
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, EnrolRefusal> {
        if used.public_key != key.sha256() {
            return Err(EnrolRefusal::Used);
        }
        let snapshot = self.store.snapshot()?;
        if find::<RevokedClient>(snapshot.as_ref(), &format!("{REVOKED_CLIENT}{}", token.client))?.is_some() {
            return Err(EnrolRefusal::Revoked);
        }
        let certificate_key = format!("{CERTIFICATE}{}", used.certificate);
        let found = find::<CertificateRecord>(snapshot.as_ref(), &certificate_key)?
            .ok_or(AuthorityError::Damaged { key: certificate_key })?;
        Ok(self.deliver(found.record, now))
    }
}
