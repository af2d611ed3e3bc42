//! The generations and times in grants.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// The number of times that the control plane has started a VM on a host. Never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmGeneration(pub u64);

impl fmt::Display for VmGeneration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A time in a grant, in whole seconds since 1970 (UTC, without leap seconds), encoded in eight
/// bytes. Unlike times of objects, it is never before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantTime(pub u64);

impl GrantTime {
    /// The second that contains `time`; 1970 for all earlier times.
    pub fn of(time: OffsetDateTime) -> Self {
        Self(u64::try_from(time.unix_timestamp()).unwrap_or(0))
    }
}

impl fmt::Display for GrantTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} s after 1970", self.0)
    }
}

/// A grant's period of validity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantPeriod {
    /// Its first second.
    pub not_before: GrantTime,
    /// The first second after it.
    pub expires: GrantTime,
}
