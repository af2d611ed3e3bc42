//! The contents of a backup, and the restore of a server from it: the two ends of
//! [`backup`](crate::backup) at the store.
//!
//! | in the store | in a backup | kept from the present server on a restore over it |
//! |---|---|---|
//! | `object/`: live objects | opened | replaced; of two states of one object, the later |
//! | `object/`: tombstones | opened | all of both: destroyed keys stay destroyed |
//! | `name/`, `owned/` | no: made from the objects | no |
//! | `authority/` | keys opened, the rest unchanged; see [`authority::transfer`](crate::authority::transfer) | newer records, if it is the same authority |
//! | `destruction/` | yes; a second person must confirm again | those of the objects that it has |
//! | `grant/vm/`, `grant/held/` | yes | the higher generations |
//! | `grant/`, the rest | no: all earlier grants are refused | no |
//! | `audit/` | no: the log and its key belong to the machine | kept |
//! | `restored` | no | replaced |
//!
//! Any other entry fails a backup, because its treatment is not decided.
//!
//! | file | what |
//! |---|---|
//! | [`source`] | one consistent view of the store, as records |
//! | [`target`] | writes records into a store beside the present one, which it then replaces |
//! | `present` | records kept from the present server |
//! | `recertify` | certificates of the machine's own clients afterwards |
//! | [`restored`] | the server's own record of the restore, and its audit record |

mod present;
mod recertify;
pub mod restored;
pub mod source;
pub mod target;

pub use recertify::{RecertifyError, recertify, renew_own};
pub use source::ServerSource;
pub use target::ServerTarget;

/// The prefix of the key that signs the audit log's heads. The log and its key stay with the
/// machine.
pub(crate) const AUDIT_PREFIX: &[u8] = b"audit/";

#[cfg(test)]
pub(crate) mod tests;
