//! The audit log: who asked for what, and what became of it; append-only, hash-chained, its heads
//! signed.
//!
//! # What it promises
//! - A record that was answered is durable. Whoever releases something awaits [`AuditLog::append`]
//!   first: no durable record, no release. All that wait share one `fdatasync`.
//! - Each line carries the SHA-256 of the line before it, across files, so nothing in between can
//!   be changed, removed or put in without everything after it being written anew; and that needs
//!   the key that signs the [heads](SignedHead). A head that was exported tells of a log that was
//!   cut short or written anew before it ([`verify`]).
//! - After a power cut the part of the last group that was not durable is cut off, and nothing else
//!   ever: where later lines show that a broken one had been durable, the log is damaged and
//!   refuses to be opened.
//! - Without room an append is refused, and the next one tries again. After a failed sync all are
//!   refused until the log has been opened again.
//! - Older files go as a [`Retention`] says, on record, the oldest first, so that what is left
//!   verifies from its first line on.
//! - What is shipped ([`syslog`]) is durable, in order, each line at least once.
//!
//! `docs/AUDIT.md` has the format byte by byte.
//!
//! # What may not enter
//! Secrets. A record is made of names, ids and reasons; whoever writes one sees to it that none of
//! its texts is or derives from a key, a passphrase or a token.
#![forbid(unsafe_code)]

mod counters;
mod error;
mod head;
pub mod limits;
mod line;
mod log;
mod read;
mod record;
pub mod storage;
pub mod syslog;
mod verify;

pub use counters::Counters;
pub use error::AuditError;
pub use head::{HeadKey, HeadSigner, PublicKey, SignError, SignedHead};
pub use log::{AuditLog, History, Noted, Options, PendingAppend, PendingHead, Receipt, Retention, Size};
pub use record::{Actor, Outcome, Record};
pub use verify::{Broken, Fault, Report, VerifyError, verify};
