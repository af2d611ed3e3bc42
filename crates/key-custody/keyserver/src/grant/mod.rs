//! Grants: the control plane's signed, short-lived, single-use permission for a host to fetch a
//! VM's keys.
//!
//! A host owns no key. To read one it presents its certificate and a [`Grant`], which names the VM,
//! the host, the objects, the operations and the period, and is signed with a key whose certificate
//! has the role `control`. So a stolen host certificate alone reads nothing, a stolen grant is
//! useless to another host, and neither the control plane (which has no host certificate) nor a
//! host (which cannot sign) gets a key without the other.
//!
//! | file | what |
//! |---|---|
//! | [`encoding`] | the bytes of a grant, one encoding for each grant |
//! | [`verify`] | checks signature, host, period, objects and operations |
//! | [`ledger`] | records uses and VMs' generations durably |
//! | [`holding`] | lets a host keep reading the state of the keys that it got |
//! | [`migration`] | permission for two hosts to pass a running VM on, another kind of grant |
//! | [`refusal`] | every reason for a refusal, each with its own code |
//!
//! The steps of a request with a grant, in this order because each depends on those before it:
//! 1. [`GrantVerifier::check`] with the host's identity and the requested objects and operations;
//!    each named object must belong to the signer ([`Refusal::NotTheSigners`]);
//! 2. [`ledger::redeem`]: no object may be bound to another VM ([`Refusal::OtherVm`]), and one
//!    transaction of the store records the grant's use and the VM's generation, durably before any
//!    key leaves;
//! 3. the audit record;
//! 4. the key is released.
//!
//! A crash after step 2 leaves a used grant and no released key: the host asks the control plane
//! for another. The reverse order could release a key twice.
//!
//! **Generations.** Each time the control plane starts a VM on a host, it increments the VM's
//! generation and puts it into the grants. The server remembers the highest generation of each VM
//! and refuses lower ones: a host that was abandoned and comes back cannot fetch the keys with an
//! earlier grant.
//!
//! What may not enter: KMIP, objects, the verification of certificates (room `authority`).

pub mod encoding;
pub mod holding;
pub mod ledger;
pub mod migration;
pub mod refusal;
mod terms;
pub mod verify;

pub use encoding::{Grant, GrantError, GrantSigner, GrantedOperation, GrantedOperations};
pub use ledger::RedeemError;
pub use migration::{MIGRATION_GRANT_BYTES, MigratingVm, MigrationGrant};
pub use refusal::{Refusal, SignerRefusal};
pub use strongroom_types::{GrantId, Secrecy, VmId};
pub use terms::{GrantPeriod, GrantTime, VmGeneration};
pub use verify::{GrantVerifier, Signer, Signers, VerifiedGrant};
