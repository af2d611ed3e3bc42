//! What a grant speaks of beside its own id and a VM: generations, times.

use std::fmt;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

/// How often the control plane has let a VM start somewhere. Never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmGeneration(pub u64);

impl fmt::Display for VmGeneration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A time of a grant, in whole seconds since 1970 (UTC, without leap seconds), as eight bytes of it
/// say: never before 1970, as times of objects may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantTime(pub u64);

impl GrantTime {
    /// The second in which `time` lies; 1970 for all times before it.
    pub fn of(time: OffsetDateTime) -> Self {
        Self(u64::try_from(time.unix_timestamp()).unwrap_or(0))
    }
}

impl fmt::Display for GrantTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} s after 1970", self.0)
    }
}

/// When a grant is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantPeriod {
    /// From then on.
    pub not_before: GrantTime,
    /// Until then, no longer.
    pub expires: GrantTime,
}
