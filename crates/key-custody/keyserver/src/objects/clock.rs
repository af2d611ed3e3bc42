//! Time as KMIP counts it: whole seconds since 1970, UTC.

use std::fmt;
use strongroom_types::unix_seconds_now;

use serde::{Deserialize, Serialize};

/// A point in time, in seconds since 1970-01-01T00:00:00Z (KMIP 1.4, 9.1.1.4: Date-Time).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixSeconds(pub i64);

impl UnixSeconds {
    /// This point moved by `seconds`, which may be negative; stops at the ends of the range.
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Seconds from `earlier` to this point, negative if it is later.
    pub fn seconds_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match time::OffsetDateTime::from_unix_timestamp(self.0) {
            Ok(moment) => write!(
                formatter,
                "{}T{:02}:{:02}:{:02}Z",
                moment.date(),
                moment.hour(),
                moment.minute(),
                moment.second()
            ),
            Err(_) => write!(formatter, "{} s since 1970", self.0),
        }
    }
}

/// A source of time, so that a test can let a cryptoperiod pass.
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> UnixSeconds;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> UnixSeconds {
        // The end of the range is beyond the year 292 billion.
        UnixSeconds(i64::try_from(unix_seconds_now()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_dates() {
        assert_eq!(UnixSeconds(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(UnixSeconds(1_335_514_475).to_string(), "2012-04-27T08:14:35Z");
        assert_eq!(UnixSeconds(i64::MAX).to_string(), format!("{} s since 1970", i64::MAX));
    }
}
