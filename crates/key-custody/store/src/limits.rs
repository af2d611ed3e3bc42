//! Limits of one call. They hold for every store, so that all accept the same calls.

use std::time::Duration;

/// Longest key, in bytes. Ids, owners and index terms are well below; a B-tree page of 4096 bytes
/// holds a few.
pub const KEY_MAX_BYTES: usize = 1024;

/// Longest value, in bytes. The largest thing kept is a sealed KMIP object; half of what etcd takes
/// in a request leaves room for the rest of its transaction.
pub const VALUE_MAX_BYTES: usize = 512 * 1024;

/// Most conditions of one transaction, and most operations: etcd's `--max-txn-ops` is 128 for each.
pub const TRANSACTION_MAX_ITEMS: usize = 128;

/// Most bytes of keys and values in one transaction: etcd's `--max-request-bytes` is 1.5 MiB with
/// its framing.
pub const TRANSACTION_MAX_BYTES: usize = 1024 * 1024;

/// Most entries in one page of a range, regardless of the caller's limit.
pub const PAGE_MAX_ENTRIES: usize = 1024;

/// A page ends with the entry that reaches this many bytes of keys and values, so that it has a
/// bound in memory.
pub const PAGE_MAX_BYTES: usize = 2 * 1024 * 1024;

/// Shortest life of a lease: etcd counts whole seconds.
pub const LEASE_MIN_TTL: Duration = Duration::from_secs(1);

/// Longest life of a lease. A caller that needs a key for longer keeps the lease alive.
pub const LEASE_MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Most leases at a time.
pub const LEASES_MAX: usize = 16 * 1024;

/// How many revisions back a watch may begin. A watcher that falls further behind reads everything
/// again.
pub const HISTORY_MAX_REVISIONS: u64 = 16 * 1024;

/// Most transactions that wait in a store; further ones are refused and may be tried again.
pub const QUEUE_MAX_TRANSACTIONS: usize = 8 * 1024;

/// Most bytes of keys and values that wait in a store.
pub const QUEUE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Most transactions in one commit; the rest go into the next one.
pub(crate) const GROUP_MAX_TRANSACTIONS: usize = 1024;

/// A group is closed by the transaction that reaches this many bytes, so that a commit's length has
/// a bound.
pub(crate) const GROUP_MAX_BYTES: usize = 8 * 1024 * 1024;
