//! How long a guest may take to become quiet.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::QUIESCE_WITHIN_MAX_S;

/// How long the agent in a guest may take to freeze the guest's file systems: 1 to 300 whole
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(try_from = "u32", into = "u32")]
#[cfg_attr(feature = "schema", schema(value_type = u32, minimum = 1, maximum = 300))]
pub struct QuiesceWithin(u32);

/// The time is too short or too long.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a guest cannot have {0} s to freeze its file systems; give it 1 to {QUIESCE_WITHIN_MAX_S}")]
pub struct QuiesceError(u32);

impl QuiesceWithin {
    /// A time of this many seconds.
    ///
    /// # Errors
    /// If it is too short or too long.
    pub const fn new(seconds: u32) -> Result<Self, QuiesceError> {
        if seconds >= 1 && seconds <= QUIESCE_WITHIN_MAX_S {
            Ok(Self(seconds))
        } else {
            Err(QuiesceError(seconds))
        }
    }

    /// The time.
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0 as u64)
    }
}

/// What a person usually wants: a guest that is busy writing takes some seconds.
impl Default for QuiesceWithin {
    fn default() -> Self {
        Self(30)
    }
}

impl TryFrom<u32> for QuiesceWithin {
    type Error = QuiesceError;

    fn try_from(seconds: u32) -> Result<Self, QuiesceError> {
        Self::new(seconds)
    }
}

impl From<QuiesceWithin> for u32 {
    fn from(within: QuiesceWithin) -> Self {
        within.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_at_least_a_second_and_at_most_five_minutes() {
        for seconds in [1, 300] {
            assert_eq!(u32::from(QuiesceWithin::new(seconds).unwrap()), seconds);
        }
        for seconds in ["0", "301", "-1", "4294967296", "1.5"] {
            assert!(serde_json::from_str::<QuiesceWithin>(seconds).is_err(), "{seconds}");
        }
        assert_eq!(QuiesceWithin::default().duration(), Duration::from_secs(30));
    }
}
