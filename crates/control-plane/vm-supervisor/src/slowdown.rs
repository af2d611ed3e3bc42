//! Guests that write faster than their disks pass to another place are slowed down.

use std::sync::Arc;

use strongroom_types::{BANDWIDTH_MAX_BYTES, BANDWIDTH_MIN_BYTES, Bandwidth, BandwidthLimit, IoLimits};
use strongroom_worker::supervise::LimitPage;

/// Slows the disks of a guest down that writes faster than its disks pass, until it is dropped.
pub struct Slowdown {
    page: Arc<LimitPage>,
    /// What limits them otherwise.
    own: IoLimits,
}

impl Slowdown {
    /// Disks whose page of limits this is, and which have these ones.
    pub fn new(page: Arc<LimitPage>, own: IoLimits) -> Self {
        Self { page, own }
    }

    /// `passed` is how fast the last round has passed, in bytes per second, of so many before.
    pub fn after(&self, rounds: u32, passed: u64) {
        // Whatever passes, the guest gets half of it, and less with each round that is not enough.
        let bytes = passed.checked_shr(rounds).unwrap_or_default();
        let bytes = bytes.clamp(BANDWIDTH_MIN_BYTES, BANDWIDTH_MAX_BYTES);
        let own = self.own.bandwidth.map_or(BANDWIDTH_MAX_BYTES, |limit| limit.bytes_per_second.get());
        if let Ok(bytes_per_second) = Bandwidth::new(bytes.min(own)) {
            let bandwidth = Some(BandwidthLimit { bytes_per_second, burst_bytes: None });
            self.page.set(IoLimits { bandwidth, ..self.own });
        }
    }
}

impl Drop for Slowdown {
    fn drop(&mut self) {
        self.page.set(self.own);
    }
}

#[cfg(test)]
mod tests {
    use strongroom_worker::supervise::limit_page;

    use super::*;

    #[test]
    fn a_guest_is_slowed_down_more_with_each_round_and_no_further_than_it_may() {
        const MIB: u64 = 1 << 20;
        let limited = |bytes| IoLimits {
            bandwidth: Some(BandwidthLimit {
                bytes_per_second: Bandwidth::new(bytes).unwrap(),
                burst_bytes: None,
            }),
            ..IoLimits::NONE
        };
        for own in [IoLimits::NONE, limited(30 * MIB)] {
            let page = limit_page(own).unwrap();
            let slowdown = Slowdown::new(Arc::clone(&page), own);
            for (rounds, expected) in [(1, 50 * MIB), (2, 25 * MIB), (7, MIB), (200, MIB)] {
                slowdown.after(rounds, 100 * MIB);
                let most = own.bandwidth.map_or(u64::MAX, |limit| limit.bytes_per_second.get());
                assert_eq!(page.limits(), limited(expected.min(most)), "after {rounds}");
            }
            drop(slowdown);
            assert_eq!(page.limits(), own);
        }
    }
}
