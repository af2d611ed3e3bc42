//! What a backup has of a key server, and how a server is made of it again: the two ends of
//! [`backup`](crate::backup) at the store.
//!
//! | in the store | in a backup | of the present server, in one that is restored over it |
//! |---|---|---|
//! | `object/`: live objects | opened | replaced; of two states of one object the later |
//! | `object/`: tombstones | opened | all of both: the dead stay dead |
//! | `name/`, `owned/` | no: made from the objects | no |
//! | `authority/` | keys opened, the rest as it is; see [`authority::transfer`](crate::authority::transfer) | what is newer, if it is the same authority |
//! | `destruction/` | yes; a second person has to confirm anew | those of the objects that it has |
//! | `grant/vm/`, `grant/held/` | yes | the higher generations |
//! | `grant/`, the rest | no: all grants from before are refused | no |
//! | `audit/` | no: the log and its key are the machine's | kept |
//! | `restored` | no | replaced |
//!
//! What is none of these ends a backup with an error: nobody has decided yet what becomes of it.
//!
//! | file | what |
//! |---|---|
//! | [`source`] | one consistent view of the store, as records |
//! | [`target`] | records into a store beside the present one, and then into its place |
//! | `present` | what of the present server is kept |
//! | `recertify` | certificates of the machine's own clients afterwards |
//! | [`restored`] | the server's memory of having been restored, and its record of it |

mod present;
mod recertify;
pub mod restored;
pub mod source;
pub mod target;

pub use recertify::{RecertifyError, recertify, renew_own};
pub use source::ServerSource;
pub use target::ServerTarget;

/// Where the key lies that signs the audit log's heads. The log stays with the machine, and so does
/// its key.
pub(crate) const AUDIT_PREFIX: &[u8] = b"audit/";

#[cfg(test)]
pub(crate) mod tests;
