//! Grants: the control plane's signed word that a host may have a VM's keys, once and soon.
//!
//! A host owns no key. To read one it shows, beside its certificate, a [`Grant`]: for this VM, on
//! this host, these objects, these operations, from then until then, signed with a key whose
//! certificate has the role `control`. So a stolen host certificate alone reads nothing, a stolen
//! grant is of no use to another host, and neither the control plane (which has no host
//! certificate) nor a host (which cannot sign) gets a key without the other.
//!
//! | file | what |
//! |---|---|
//! | [`encoding`] | the bytes of a grant, one encoding for each grant |
//! | [`verify`] | is it genuine, ours, timely, and for what is asked |
//! | [`ledger`] | has it been used, has its VM gone on; written down durably |
//! | [`holding`] | what a redeemed grant lets its host go on asking: the state of the keys that it got |
//! | [`refusal`] | every reason why not, each with its own name |
//!
//! The way of a grant through a request, in this order, because each step rests on those before it:
//! 1. [`GrantVerifier::check`] with the identity of the host that asks and what the request asks
//!    for; and each object that it names is its signer's ([`Refusal::NotTheSigners`]);
//! 2. [`ledger::redeem`]: no object is another VM's ([`Refusal::OtherVm`]), and one transaction of
//!    the store writes down that the grant is used and which generation of the VM it was for.
//!    Durable before any key leaves;
//! 3. the audit record;
//! 4. the key is released.
//!
//! A crash after 2 leaves a used grant and no key: the host asks the control plane for another. The
//! other order could release twice.
//!
//! **Generations.** Each time the control plane lets a VM start somewhere it counts its generation
//! up and puts it into the grants. The server remembers the highest it has seen of each VM and
//! refuses lower ones: a host that was given up and comes back cannot fetch the keys again with a
//! grant from before.
//!
//! What may not enter: KMIP, objects, how certificates are verified (room `authority`).

pub mod encoding;
pub mod holding;
pub mod ledger;
pub mod refusal;
mod terms;
pub mod verify;

pub use encoding::{Grant, GrantError, GrantSigner, GrantedOperation, GrantedOperations};
pub use ledger::RedeemError;
pub use refusal::{Refusal, SignerRefusal};
pub use strongroom_types::{GrantId, VmId};
pub use terms::{GrantPeriod, GrantTime, VmGeneration};
pub use verify::{GrantVerifier, Signer, Signers, VerifiedGrant};
