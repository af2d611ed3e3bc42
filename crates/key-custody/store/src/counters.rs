//! Counters of a store's work.

use std::time::Duration;

/// Counts since the store was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Durable transactions that changed something, including those of leases.
    pub committed: u64,
    /// Transactions with a condition that did not hold.
    pub conflicts: u64,
    /// Transactions that were refused or failed.
    pub refused: u64,
    /// Commits of the engine, each for a group of transactions.
    pub groups: u64,
    /// Transactions in the largest group.
    pub group_max: u64,
    /// Time from the first operation of a group to its being durable, of all groups.
    pub group_time: Duration,
    /// That of the longest.
    pub group_time_max: Duration,
    /// Times that a device was asked to make writes durable. Two for each group.
    pub syncs: u64,
    /// Time that they took.
    pub sync_time: Duration,
    /// That of the longest.
    pub sync_time_max: Duration,
}
