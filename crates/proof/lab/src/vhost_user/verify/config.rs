//! The configuration of a load, its end, and the state that a new session finds.

use std::time::{Duration, Instant};

/// The configuration of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// The seed, which determines everything except the order of answers.
    pub seed: u64,
    /// The used area from the beginning of the disk, in bytes. Its content is lost.
    pub area_bytes: u64,
    /// How long a stall with requests in flight may last.
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
    /// After this many answered requests in this run.
    Operations(u64),
    /// At this time.
    Time(Instant),
}

/// The state that a successor found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnected {
    /// Requests that were not answered.
    pub in_flight: usize,
    /// Those of them that the dead server had taken from the rings.
    pub taken: usize,
}
