//! Refusals of grants. Each reason has its own code, so that the record of a refusal distinguishes
//! an attack from a wrong clock.

use super::terms::{GrantTime, VmGeneration};

/// Why a grant is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Not a grant's encoding: truncated, extended, of an unknown format, or with invalid fields.
    #[error("what was shown is no grant")]
    Malformed,
    /// Its signer's certificate may not sign grants.
    #[error("the grant's signer is refused: {0}")]
    Signer(#[from] SignerRefusal),
    /// The signature is not that signer's.
    #[error("the grant's signature is wrong")]
    BadSignature,
    /// The client's certificate is not a host's.
    #[error("a grant lets a host do something, and the asker is none")]
    NotAHost,
    /// It was granted to another host.
    #[error("the grant is for another host")]
    OtherHost,
    /// It is not yet valid.
    #[error("the grant is good from {not_before} on")]
    NotYetValid {
        /// The first second at which it is valid.
        not_before: GrantTime,
    },
    /// It has expired.
    #[error("the grant expired at {expires}")]
    Expired {
        /// The first second at which it was no longer valid.
        expires: GrantTime,
    },
    /// Its validity exceeds the limit.
    #[error("the grant is good for {lifetime_seconds} s, longer than a grant may be")]
    TooLongLived {
        /// Its claimed validity.
        lifetime_seconds: u64,
    },
    /// It does not name the object.
    #[error("the grant does not name this object")]
    OtherObject,
    /// It names an object that its signer does not own.
    #[error("the grant names a key that its signer does not own")]
    NotTheSigners,
    /// It names a key of another VM.
    #[error("the key was made for another VM, and is granted to that one alone")]
    OtherVm,
    /// It does not name the operation.
    #[error("the grant does not name this operation")]
    OtherOperation,
    /// It was used before.
    #[error("the grant was used before; each is good for one request")]
    Replayed,
    /// Another request with it waits for an external provider.
    #[error("another request with the grant is not over; present it one at a time")]
    InUse,
    /// It was valid before the key server was restored, so its use is unknown.
    #[error(
        "the grant was good before the key server was restored from a backup; a grant must be good only after {restored}"
    )]
    BeforeRestore {
        /// The last second of grants that are refused.
        restored: GrantTime,
    },
    /// The VM's move was given up, or another one was prepared since.
    #[error("the grant is for generation {granted} of the VM, which was prepared for a move that is over")]
    NotPrepared {
        /// The generation in the grant.
        granted: VmGeneration,
    },
    /// The VM has been started elsewhere since.
    #[error("the grant is for generation {granted} of the VM, which has gone on to {highest}")]
    Superseded {
        /// The generation in the grant.
        granted: VmGeneration,
        /// The highest generation that was redeemed for the VM.
        highest: VmGeneration,
    },
}

impl Refusal {
    /// Its code in records; never changes.
    pub const fn code(&self) -> &'static str {
        match self {
            Refusal::Malformed => "grant-malformed",
            Refusal::Signer(SignerRefusal::Unknown) => "grant-signer-unknown",
            Refusal::Signer(SignerRefusal::NotControl) => "grant-signer-not-control",
            Refusal::Signer(SignerRefusal::Revoked) => "grant-signer-revoked",
            Refusal::Signer(SignerRefusal::Expired) => "grant-signer-expired",
            Refusal::Signer(SignerRefusal::Unavailable) => "grant-signer-unavailable",
            Refusal::Signer(SignerRefusal::OtherKeyType) => "grant-signer-key-type",
            Refusal::BadSignature => "grant-bad-signature",
            Refusal::NotAHost => "grant-not-a-host",
            Refusal::OtherHost => "grant-other-host",
            Refusal::NotYetValid { .. } => "grant-not-yet-valid",
            Refusal::Expired { .. } => "grant-expired",
            Refusal::TooLongLived { .. } => "grant-too-long-lived",
            Refusal::OtherObject => "grant-other-object",
            Refusal::NotTheSigners => "grant-not-the-signers",
            Refusal::OtherVm => "grant-other-vm",
            Refusal::OtherOperation => "grant-other-operation",
            Refusal::Replayed => "grant-replayed",
            Refusal::InUse => "grant-in-use",
            Refusal::BeforeRestore { .. } => "grant-before-restore",
            Refusal::NotPrepared { .. } => "grant-not-prepared",
            Refusal::Superseded { .. } => "grant-superseded",
        }
    }
}

/// Why a certificate may not sign a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignerRefusal {
    /// This server did not issue such a certificate, or has forgotten it long after its expiry.
    #[error("its certificate is not known here")]
    Unknown,
    /// The certificate has another role.
    #[error("its certificate's role is not control")]
    NotControl,
    /// The certificate or its client is revoked.
    #[error("its certificate is revoked")]
    Revoked,
    /// The certificate has expired or is not valid yet.
    #[error("its certificate is not valid now")]
    Expired,
    /// It cannot be determined, because the store cannot be read.
    #[error("whether it may sign cannot be told now")]
    Unavailable,
    /// The certificate's key is not on P-256.
    #[error("its key is not of P-256")]
    OtherKeyType,
}
