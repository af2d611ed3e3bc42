//! A token and a signing request become a certificate.

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

/// How often a redemption is tried again because the token was used or cancelled meanwhile: then
/// the second look knows.
const ATTEMPTS: usize = 4;

/// Why a token is not redeemed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnrolRefusal {
    /// What was shown has not the form of a token.
    #[error("what was shown is no enrolment token")]
    Malformed,
    /// There is no such token, or it has another secret; which, is not told.
    #[error("the token is not known here; it may have been cancelled or have expired some time ago")]
    Unknown,
    /// Its time is over.
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
    /// The client that it made has been revoked.
    #[error("the client that the token made is revoked")]
    Revoked,
    /// The signing request is refused.
    #[error("the signing request is refused: {0}")]
    SigningRequest(#[from] SigningRequestError),
    /// The authority could not do it now; the token is unused, or the same request is answered
    /// again.
    #[error("the server cannot do this now; try again with the same token and key")]
    Unavailable(#[source] AuthorityError),
}

impl EnrolRefusal {
    /// The word for it in answers and records; never changes.
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
    /// Redeems a token: its user becomes the client that the token was made for. With the same key
    /// again, the same certificate again.
    ///
    /// # Errors
    /// Why it is not redeemed.
    pub fn enrol(
        &self,
        token: &EnrolmentToken,
        signing_request: &[u8],
        now: OffsetDateTime,
    ) -> Result<ClientCertificate, EnrolRefusal> {
        // Before the token is looked at: a request that proves nothing costs no token.
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

    /// For who did not get the answer: the certificate of the first time, to the same key alone.
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
