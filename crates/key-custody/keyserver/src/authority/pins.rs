//! Pinned certificates: foreign ones that are trusted individually.

use rustls::pki_types::CertificateDer;
use strongroom_store::{Is, Outcome, Transaction};
use time::OffsetDateTime;

use super::clients::put_client;
use super::error::AuthorityError;
use super::limits::{PINNED_CERTIFICATE_MAX_BYTES, PINS_MAX};
use super::records::{
    CERTIFICATE, CLIENT, ClientRecord, PIN, PemCertificate, PinRecord, REVOKED_CLIENT, encode, find,
};
use super::{Authority, trust};
use crate::access::{CertificateSha256, ClientId, ClientName, Role};

/// The client of a certificate to pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinFor {
    /// A new client.
    New(ClientName),
    /// A client with an earlier pinned certificate, which keeps its objects.
    Existing(ClientId),
}

impl Authority {
    /// Trusts one foreign certificate (DER), for a client of role `client`: for KMIP clients with a
    /// self-signed certificate, such as a vCenter. The caller must have compared its fingerprint
    /// with the client's own display.
    ///
    /// # Errors
    /// [`AuthorityError::Pin`] if it is unusable for TLS, has expired, or is already known;
    /// [`AuthorityError::Unknown`] for a client that is unknown or not of role `client`;
    /// [`AuthorityError::Limit`]; [`AuthorityError::Store`].
    pub fn pin(
        &self,
        certificate: CertificateDer<'_>,
        whose: PinFor,
        now: OffsetDateTime,
    ) -> Result<ClientId, AuthorityError> {
        if certificate.len() > PINNED_CERTIFICATE_MAX_BYTES {
            return Err(AuthorityError::Pin("it is longer than a certificate may be"));
        }
        let (_, not_after, _) = trust::usable(&certificate).ok_or(AuthorityError::Pin(
            "it is no X.509 certificate of version 3 that TLS can be spoken with",
        ))?;
        if not_after < now {
            return Err(AuthorityError::Pin("it has expired"));
        }
        if self.trust().pins().len() >= PINS_MAX {
            return Err(AuthorityError::Limit {
                what: "the number of pinned certificates",
                allowed: format!("at most {PINS_MAX}"),
            });
        }
        let snapshot = self.store.snapshot()?;
        let (client, name, transaction) = match whose {
            PinFor::New(name) => {
                let client = ClientId::random();
                let record = ClientRecord { name: name.clone(), role: Role::Client, created: now };
                (client, name, put_client(Transaction::new(), client, &record)?)
            }
            PinFor::Existing(client) => {
                let found = find::<ClientRecord>(snapshot.as_ref(), &format!("{CLIENT}{client}"))?
                    .filter(|found| found.record.role == Role::Client)
                    .ok_or_else(|| AuthorityError::unknown_client(client, " of role client"))?;
                (client, found.record.name, Transaction::new())
            }
        };
        let certificate = PemCertificate(certificate.into_owned());
        let sha256 = certificate.sha256();
        let key = format!("{PIN}{sha256}");
        let pin = PinRecord { client, name, created: now, certificate };
        let transaction = transaction
            .when(format!("{REVOKED_CLIENT}{client}"), Is::Absent)
            .when(format!("{CERTIFICATE}{sha256}"), Is::Absent)
            .when(key.clone(), Is::Absent)
            .put(key, encode(&pin)?);
        match self.store.commit(transaction)? {
            Outcome::Committed(_) => self.reload().map(|()| client),
            Outcome::Conflict(_) => {
                Err(AuthorityError::Pin("it is pinned or issued here already, or its client is revoked"))
            }
        }
    }

    /// The pinned certificates.
    pub fn pins(&self) -> Vec<(CertificateSha256, PinRecord)> {
        self.trust().pins().iter().map(|(certificate, pin)| (*certificate, pin.clone())).collect()
    }
}
