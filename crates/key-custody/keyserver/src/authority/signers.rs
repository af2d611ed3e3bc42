//! The signers of grants: certificates of role `control` that this authority issued, while they are
//! accepted.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use super::limits::IDENTIFIED_MAX;
use super::records::{CERTIFICATE, CertificateRecord, find};
use super::{Authority, Refusal};
use crate::access::{CertificateSha256, Role};
use crate::grant::{Signer, SignerRefusal, Signers};

/// Bytes of an uncompressed point of P-256 (SEC 1, 2.3.3).
const P256_POINT_BYTES: usize = 65;

/// Signers already parsed. A certificate's contents never change; whether it is accepted is checked
/// each time.
#[derive(Default)]
pub(super) struct SignerCache(Mutex<HashMap<CertificateSha256, Arc<KnownSigner>>>);

struct KnownSigner {
    certificate: CertificateDer<'static>,
    signer: Signer,
}

impl Signers for Arc<Authority> {
    fn signer(&self, certificate: &CertificateSha256, now: OffsetDateTime) -> Result<Signer, SignerRefusal> {
        let known = self.known_signer(certificate)?;
        match self.identify(&known.certificate, now) {
            Ok(_) => Ok(known.signer.clone()),
            Err(Refusal::Revoked) => Err(SignerRefusal::Revoked),
            Err(Refusal::Expired | Refusal::NotYetValid) => Err(SignerRefusal::Expired),
            Err(_) => Err(SignerRefusal::Unknown),
        }
    }
}

impl Authority {
    fn known_signer(&self, certificate: &CertificateSha256) -> Result<Arc<KnownSigner>, SignerRefusal> {
        let lock = || self.signers.0.lock();
        if let Some(known) = lock().get(certificate) {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(self.read_signer(certificate)?);
        let mut all = lock();
        if all.len() >= IDENTIFIED_MAX {
            all.clear();
        }
        all.insert(*certificate, Arc::clone(&known));
        Ok(known)
    }

    fn read_signer(&self, certificate: &CertificateSha256) -> Result<KnownSigner, SignerRefusal> {
        let record = self
            .store
            .snapshot()
            .map_err(Into::into)
            .and_then(|snapshot| {
                find::<CertificateRecord>(snapshot.as_ref(), &format!("{CERTIFICATE}{certificate}"))
            })
            .map_err(|_| SignerRefusal::Unavailable)?
            .ok_or(SignerRefusal::Unknown)?
            .record;
        if record.role != Role::Control {
            return Err(SignerRefusal::NotControl);
        }
        let certificate = record.certificate.0;
        let public_key = p256_point(&certificate).ok_or(SignerRefusal::OtherKeyType)?;
        Ok(KnownSigner { certificate, signer: Signer { client: record.client, public_key } })
    }
}

/// The key in a certificate, if it is on P-256: an uncompressed point (SEC 1, 2.3.3).
pub(super) fn p256_point(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    match certificate.public_key().parsed().ok()? {
        PublicKey::EC(point) if point.data().len() == P256_POINT_BYTES => Some(point.data().to_vec()),
        _ => None,
    }
}
