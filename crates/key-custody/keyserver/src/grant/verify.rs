//! Verifies a grant: its signature, its host, its period, its objects and operations.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use time::OffsetDateTime;

use super::encoding::{Grant, GrantedOperation, Presented};
use super::refusal::{Refusal, SignerRefusal};
use super::terms::{GrantPeriod, GrantTime};
use crate::access::{CertificateSha256, ClientId, Identity, Role};

/// How far the clocks of the control plane and this server may differ, either way: more than hosts
/// with NTP ever do, and little compared with a grant's validity.
pub const CLOCK_SKEW_SECONDS: u64 = 30;
/// Longest validity of a grant. A used grant is remembered until it has expired, so this bounds
/// their number; a starting VM's keys are fetched within minutes.
pub const GRANT_MAX_LIFETIME_SECONDS: u64 = 3600;

/// A control plane's key from its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The certificate's client.
    pub client: ClientId,
    /// The public key: an uncompressed point of P-256 (SEC 1, 2.3.3), 65 bytes.
    pub public_key: Vec<u8>,
}

/// The signers of grants, implemented by the authority.
pub trait Signers: Send + Sync {
    /// The key of `certificate`, if it was issued here for the role `control`, is not revoked and
    /// valid at `now`.
    ///
    /// # Errors
    /// Why it may not sign grants.
    fn signer(&self, certificate: &CertificateSha256, now: OffsetDateTime) -> Result<Signer, SignerRefusal>;
}

/// Verifies grants against their permitted signers.
#[derive(Debug)]
pub struct GrantVerifier<S> {
    signers: S,
}

impl<S: Signers> GrantVerifier<S> {
    /// A verifier that accepts signatures of `signers`.
    pub fn new(signers: S) -> Self {
        Self { signers }
    }

    /// Verifies that `bytes` are a grant that `host` may use at `now`. Before acting under it,
    /// check each object and operation ([`VerifiedGrant::permits`]) and redeem it.
    ///
    /// # Errors
    /// The refusal. The signature is checked before any field is trusted, so every reason after
    /// [`Refusal::BadSignature`] rests on a genuine grant.
    pub fn verify(
        &self,
        bytes: &[u8],
        host: &Identity,
        now: OffsetDateTime,
    ) -> Result<VerifiedGrant, Refusal> {
        let presented = Presented::read(bytes)?;
        let signer = self.signers.signer(&presented.signer, now)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &signer.public_key)
            .verify(&presented.message, presented.signature)
            .map_err(|_| Refusal::BadSignature)?;
        let grant = presented.grant;
        if host.role != Role::Host {
            return Err(Refusal::NotAHost);
        }
        if grant.host() != host.public_key {
            return Err(Refusal::OtherHost);
        }
        let period = GrantPeriod { not_before: grant.not_before(), expires: grant.expires() };
        check_period(period, GrantTime::of(now))?;
        Ok(VerifiedGrant { grant, signer: signer.client, host: host.client })
    }

    /// [`verify`](Self::verify), and [`permits`](VerifiedGrant::permits) for one object and
    /// operation.
    ///
    /// # Errors
    /// The refusal.
    pub fn check(
        &self,
        bytes: &[u8],
        host: &Identity,
        now: OffsetDateTime,
        object: &str,
        operation: GrantedOperation,
    ) -> Result<VerifiedGrant, Refusal> {
        let verified = self.verify(bytes, host, now)?;
        verified.permits(object, operation)?;
        Ok(verified)
    }
}

pub(super) fn check_period(period: GrantPeriod, now: GrantTime) -> Result<(), Refusal> {
    let GrantPeriod { not_before, expires } = period;
    let lifetime_seconds = expires.0.saturating_sub(not_before.0);
    if lifetime_seconds > GRANT_MAX_LIFETIME_SECONDS {
        return Err(Refusal::TooLongLived { lifetime_seconds });
    }
    if now.0.saturating_add(CLOCK_SKEW_SECONDS) < not_before.0 {
        return Err(Refusal::NotYetValid { not_before });
    }
    if now.0 >= expires.0.saturating_add(CLOCK_SKEW_SECONDS) {
        return Err(Refusal::Expired { expires });
    }
    Ok(())
}

/// A grant that is genuine, for this host, and currently valid. It is not redeemed yet, and may
/// have been used before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGrant {
    grant: Grant,
    signer: ClientId,
    host: ClientId,
}

impl VerifiedGrant {
    /// The grant.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The control plane that signed it.
    pub fn signer(&self) -> ClientId {
        self.signer
    }

    /// The host that presented it.
    pub fn host(&self) -> ClientId {
        self.host
    }

    /// Checks that it covers `operation` on the object with this unique identifier.
    ///
    /// # Errors
    /// [`Refusal::OtherObject`], [`Refusal::OtherOperation`].
    pub fn permits(&self, object: &str, operation: GrantedOperation) -> Result<(), Refusal> {
        if self.grant.objects().binary_search_by(|granted| granted.as_str().cmp(object)).is_err() {
            return Err(Refusal::OtherObject);
        }
        if !self.grant.operations().contain(operation) {
            return Err(Refusal::OtherOperation);
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
