//! What load to make, for how long; and what a new session finds.

use std::time::{Duration, Instant};

/// What load to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// From which everything follows but the order of answers.
    pub seed: u64,
    /// How much of the disk is used, from its beginning on, in bytes. Its content is lost.
    pub area_bytes: u64,
    /// How long no request may be answered while some are in flight.
    pub stall_timeout: Duration,
}

impl LoadConfig {
    /// Load on the first 64 MiB.
    pub fn new(seed: u64) -> Self {
        Self { seed, area_bytes: 64 << 20, stall_timeout: Duration::from_secs(60) }
    }
}

/// When to pause. Requests stay in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// So many requests were answered in this run so far.
    Operations(u64),
    /// At this time.
    Time(Instant),
}

/// What a successor found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnected {
    /// Requests that were not answered.
    pub in_flight: usize,
    /// Those of them that the dead server had taken from the rings.
    pub taken: usize,
}
