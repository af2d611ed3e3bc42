//! Whether a grant is genuine, for the host that shows it, good now, and for what is asked.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use time::OffsetDateTime;

use super::encoding::{Grant, GrantedOperation, Presented};
use super::refusal::{Refusal, SignerRefusal};
use super::terms::GrantTime;
use crate::access::{CertificateSha256, ClientId, Identity, Role};

/// How far the clocks of the control plane and this server may lie apart, either way: what hosts
/// with NTP never reach, and little beside a grant's life.
pub const CLOCK_SKEW_SECONDS: u64 = 30;
/// Longest time that a grant may be good. A used grant is remembered until it has expired, so this
/// bounds how many are; and a key that is fetched when a VM starts is fetched within minutes.
pub const GRANT_MAX_LIFETIME_SECONDS: u64 = 3600;

/// A control plane's key, as its certificate has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Whose certificate it is.
    pub client: ClientId,
    /// The public key: an uncompressed point of P-256 (SEC 1, 2.3.3), 65 bytes.
    pub public_key: Vec<u8>,
}

/// Who may sign grants. The authority answers.
pub trait Signers: Send + Sync {
    /// The key of `certificate`, if it was issued here for the role `control`, is not revoked and
    /// valid at `now`.
    ///
    /// # Errors
    /// The reason why it does not vouch for a grant.
    fn signer(&self, certificate: &CertificateSha256, now: OffsetDateTime) -> Result<Signer, SignerRefusal>;
}

/// Checks grants against those who may sign them.
#[derive(Debug)]
pub struct GrantVerifier<S> {
    signers: S,
}

impl<S: Signers> GrantVerifier<S> {
    /// Believes the signatures of `signers`.
    pub fn new(signers: S) -> Self {
        Self { signers }
    }

    /// Whether `bytes` are a grant that `host` may use at `now`. Before anything is done under it,
    /// ask it about each object and operation ([`VerifiedGrant::permits`]) and redeem it.
    ///
    /// # Errors
    /// Why it is refused. The signature is checked before any field is believed, so every reason
    /// after [`Refusal::BadSignature`] is the control plane's own word against the asker.
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
        check_time(&grant, GrantTime::of(now))?;
        Ok(VerifiedGrant { grant, signer: signer.client, host: host.client })
    }

    /// [`verify`](Self::verify), and [`permits`](VerifiedGrant::permits) for one object and
    /// operation.
    ///
    /// # Errors
    /// Why it is refused.
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

fn check_time(grant: &Grant, now: GrantTime) -> Result<(), Refusal> {
    let lifetime_seconds = grant.expires().0.saturating_sub(grant.not_before().0);
    if lifetime_seconds > GRANT_MAX_LIFETIME_SECONDS {
        return Err(Refusal::TooLongLived { lifetime_seconds });
    }
    if now.0.saturating_add(CLOCK_SKEW_SECONDS) < grant.not_before().0 {
        return Err(Refusal::NotYetValid { not_before: grant.not_before() });
    }
    if now.0 >= grant.expires().0.saturating_add(CLOCK_SKEW_SECONDS) {
        return Err(Refusal::Expired { expires: grant.expires() });
    }
    Ok(())
}

/// A grant that is genuine, the asker's, and good now. Not yet redeemed: it may have been used
/// before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedGrant {
    grant: Grant,
    signer: ClientId,
    host: ClientId,
}

impl VerifiedGrant {
    /// What was granted.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The control plane that signed.
    pub fn signer(&self) -> ClientId {
        self.signer
    }

    /// The host that showed it.
    pub fn host(&self) -> ClientId {
        self.host
    }

    /// Whether it covers `operation` on the object with this unique identifier.
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
