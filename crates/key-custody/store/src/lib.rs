//! The metadata store: compare-and-swap transactions, ranges, watches and leases.
//!
//! All durable metadata, as opposed to guest data, lies behind one small trait, [`Store`]: sealed
//! key objects and tombstones of the key server today, the control plane's inventory later. One
//! machine has it in one file ([`Engine`]); many machines will have it in etcd. So the trait
//! promises nothing that one of the two could not keep.
//!
//! # What every store promises
//! - A transaction takes effect whole or not at all, and durably **before** it is answered. After
//!   [`StoreError::Uncertain`] it may be either; a caller that needs to know reads.
//! - Transactions have one order, which the [`Revision`]s count without gaps. Each is judged
//!   against everything before it and nothing after it.
//! - A [`Snapshot`] is one revision of everything, regardless of later writes.
//! - A [`Watch`] reports each change from its revision on once and in order, or fails with
//!   [`StoreError::Compacted`]. It names keys and never holds values: deleted data must not live on
//!   in a history.
//! - Keys and values are bytes. The store does not interpret them; secrets come sealed. Errors,
//!   `Debug` and counters show sizes, never values.
//!
//! # Calls
//! Reading calls return at once; [`Store::commit`] blocks for a write to the device, and
//! [`Store::submit`] does not: it returns a future.
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
/// The storage under an [`Engine`]: a file, or a test's substitute.
pub use redb::StorageBackend;
pub use store::{Change, Entries, Event, PendingCommit, Snapshot, Store, Watch};
pub use transaction::{Condition, Conflict, Is, Operation, Outcome, Transaction};
