//! Counters of a log's work.

use std::time::Duration;

/// Counts since the log was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records that are durable.
    pub records: u64,
    /// Records that were refused or failed.
    pub refused: u64,
    /// Groups that were written and synced.
    pub groups: u64,
    /// Records in the largest group.
    pub group_max: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Heads that were signed.
    pub heads: u64,
    /// Heads that could not be signed.
    pub heads_failed: u64,
    /// Time that writing and syncing groups took.
    pub sync_time: Duration,
    /// The longest time that one group took.
    pub sync_time_max: Duration,
}
