//! A limit on the bytes per second of a migration, for all its channels together.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// What may pass at once after a silence, as time at the limit: long enough that a thread's waking
/// late costs nothing, short enough that others on the network notice no burst.
const BURST: Duration = Duration::from_millis(20);

/// The limit, and the bytes that are ahead of it.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<NonZeroU64>,
    /// When everything that has passed would have passed at the limit.
    even_at: Instant,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<NonZeroU64>, now: Instant) -> Self {
        Self { bytes_per_second, even_at: now }
    }

    pub(super) fn set(&mut self, bytes_per_second: Option<NonZeroU64>, now: Instant) {
        *self = Self::new(bytes_per_second, now);
    }

    /// Counts bytes that are about to pass, and returns when they may.
    pub(super) fn pass(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let limit = self.bytes_per_second?;
        let nanoseconds = u128::from(bytes as u64) * 1_000_000_000 / u128::from(limit.get());
        let takes = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let begins = self.even_at.max(now.checked_sub(BURST).unwrap_or(now));
        self.even_at = begins.checked_add(takes).unwrap_or(begins);
        (self.even_at > now).then_some(self.even_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_at_the_limit_and_not_at_once_after_a_silence() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut pace = Pace::new(NonZeroU64::new(1_000_000), start);
        assert_eq!(pace.pass(100_000, start), Some(at(100)));
        assert_eq!(pace.pass(100_000, at(100)), Some(at(200)));
        assert_eq!(pace.pass(50_000, at(150)), Some(at(250)), "two channels share it");
        // After a long silence no more than the burst.
        assert_eq!(pace.pass(100_000, at(10_000)), Some(at(10_080)));
        assert_eq!(pace.pass(1_000, at(20_000)), None);
        pace.set(None, at(20_000));
        assert_eq!(pace.pass(usize::MAX, at(20_000)), None);
        pace.set(NonZeroU64::new(1), at(20_000));
        assert!(pace.pass(usize::MAX, at(20_000)).is_some());
        assert!(pace.pass(usize::MAX, at(20_000)).is_some());
    }
}
