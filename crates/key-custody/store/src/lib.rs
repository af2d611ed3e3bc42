//! The metadata store: compare-and-swap transactions, ranges, watches and leases.
//!
//! Everything that has to be remembered and agreed upon, and is no guest data, lies behind one
//! small trait,
//! [`Store`]: sealed key objects and tombstones of the key server today, the control plane's inventory later.
//! One machine has it in one file ([`Engine`]); many machines will have it in etcd. So the trait
//! says nothing that one of the two could not keep.
//!
//! # What every store promises
//! - A transaction is done whole or not at all, and durably **before** it is answered. One whose
//!   answer is [`StoreError::Uncertain`] may be either; who needs to know reads.
//! - Transactions have one order, which the [`Revision`]s count without gaps. Each is judged
//!   against everything before it and nothing after it.
//! - A [`Snapshot`] is one revision of everything, whatever is written meanwhile.
//! - A [`Watch`] tells of each change from its revision on once, in order, or says that it no
//!   longer can ([`StoreError::Compacted`]). It names keys and never holds values: what was deleted
//!   must not live on in a history.
//! - Keys and values are bytes. Nothing here knows what they mean; secrets come sealed. Errors,
//!   `Debug` and counters tell sizes, never values.
//!
//! # Calls
//! Reading calls return at once; [`Store::commit`] blocks for a write to the device, and
//! [`Store::submit`] does not: it hands out what a task awaits.
#![forbid(unsafe_code)]

mod counters;
mod engine;
mod entry;
mod error;
pub mod limits;
mod range;
mod store;
mod transaction;

pub use counters::Counters;
pub use engine::Engine;
pub use entry::{Entry, LeaseId, Revision};
pub use error::StoreError;
pub use range::{KeyRange, Page};
/// What an [`Engine`] stands on: a file, or what a test puts in its place.
pub use redb::StorageBackend;
pub use store::{Change, Entries, Event, PendingCommit, Snapshot, Store, Watch};
pub use transaction::{Condition, Conflict, Is, Operation, Outcome, Transaction};
