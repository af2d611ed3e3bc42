//! The audit log: requests and their outcomes, append-only and hash-chained, with signed heads.
//!
//! # What it promises
//! - A record that was answered is durable. A caller awaits [`AuditLog::append`] before it releases
//!   a key or an answer: no durable record, no release. Waiting callers share one `fdatasync`.
//! - Each line carries the SHA-256 of the line before it, across files. To change, remove or insert
//!   a line, an attacker must rewrite all lines after it, which needs the key that signs the
//!   [heads](SignedHead). An exported head reveals a log that was cut short or rewritten before it
//!   ([`verify`]).
//! - After a power cut the part of the last group that was not durable is cut off, and never
//!   anything else. If later lines show that a broken line had been durable, the log is damaged and
//!   refuses to open.
//! - Without room an append is refused, and the next one tries again. After a failed sync all are
//!   refused until the log has been opened again.
//! - A [`Retention`] removes older files, oldest first and each with a record, so that the rest
//!   verifies from its first line on.
//! - Shipped lines ([`syslog`]) are durable and in order; each is sent at least once.
//!
//! `docs/AUDIT.md` has the format byte by byte.
//!
//! # What may not enter
//! Secrets. A record is made of names, ids and reasons; its writer ensures that no text in it is,
//! or derives from, a key, a passphrase or a token.
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
