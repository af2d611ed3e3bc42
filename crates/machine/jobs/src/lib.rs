//! Jobs on keys: volumes move to other keys, keys are rotated, and what nothing needs is
//! destroyed.
//!
//! - [`rekey`]: volumes move to other keys. [`rotation`]: a key gets a successor, for every volume
//!   that needs it. [`destructions`]: destructions that wait for their time.
//! - [`reencrypt`]: a volume gets other data keys, or none; all of it is rewritten.
//! - [`inventory`]: which keys there are, and which volumes need them.
//! - [`datastores`]: where volumes are that need keys of providers.
//! - [`state_file`]: files of the home that say their format.
//!
//! What it promises:
//! - A job can be killed at any moment; called again in the same way, it goes on. What it is about
//!   to do is noted before, durably, so that no key is made that is not found again.
//! - Until a volume is done, its old key opens it.
//! - A key goes out of use only when it is known for sure that nothing needs it.
//!
//! What may not enter: where a person's keys come from. The caller is asked for a present key
//! ([`PresentKeys`]) and for a new passphrase ([`NewKeySource`]), and says whether a person wants
//! the job to stop. Nothing is printed here.
#![forbid(unsafe_code)]

pub mod datastores;
pub mod destructions;
mod error;
pub mod inventory;
mod present_keys;
pub mod reencrypt;
pub mod rekey;
pub mod rotation;
pub mod state_file;

pub use self::error::{FailedVolume, JobError};
pub use self::present_keys::{KeyRefusal, PresentKeys};
pub use self::rekey::NewKeySource;
