//! Delays clients that fail often, so that guessing and noise cost the server little.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_serving::network_of;

/// Failures that an address may have within a [`WINDOW`]: more than happen by mistake.
pub(super) const FAILURES_MAX: u32 = 10;
/// How long failures count.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Most addresses that are remembered. An attacker with more addresses only displaces his own.
const ADDRESSES_MAX: usize = 4096;

/// The addresses that have failed lately.
#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<HashMap<IpAddr, Window>>);

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    failures: u32,
}

impl Failures {
    /// Whether `address` has to wait.
    pub(super) fn has_to_wait(&self, address: IpAddr, now: Instant) -> bool {
        let all = self.0.lock();
        let window = all.get(&network_of(address));
        window.is_some_and(|window| {
            window.failures >= FAILURES_MAX && now.duration_since(window.began) < WINDOW
        })
    }

    /// `address` has failed.
    pub(super) fn count(&self, address: IpAddr, now: Instant) {
        let mut all = self.0.lock();
        if all.len() >= ADDRESSES_MAX {
            all.retain(|_, window| now.duration_since(window.began) < WINDOW);
        }
        if all.len() >= ADDRESSES_MAX {
            all.clear();
        }
        let window = all.entry(network_of(address)).or_insert(Window { began: now, failures: 0 });
        if now.duration_since(window.began) >= WINDOW {
            *window = Window { began: now, failures: 0 };
        }
        window.failures = window.failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_who_fails_often_waits_until_the_window_is_over_and_nobody_else_does() {
        let (failures, start) = (Failures::default(), Instant::now());
        let one = address("192.0.2.1");
        for _ in 0..FAILURES_MAX {
            assert!(!failures.has_to_wait(one, start));
            failures.count(one, start);
        }
        assert!(failures.has_to_wait(one, start + WINDOW - Duration::from_millis(1)));
        assert!(failures.has_to_wait(address("::ffff:192.0.2.1"), start));
        assert!(!failures.has_to_wait(address("192.0.2.2"), start));
        assert!(!failures.has_to_wait(one, start + WINDOW));
        failures.count(one, start + WINDOW);
        assert!(!failures.has_to_wait(one, start + WINDOW));
    }

    #[test]
    fn a_network_of_ipv6_is_one() {
        let (failures, start) = (Failures::default(), Instant::now());
        for host in 0..FAILURES_MAX {
            failures.count(address(&format!("2001:db8::{host}")), start);
        }
        assert!(failures.has_to_wait(address("2001:db8::ffff"), start));
        assert!(!failures.has_to_wait(address("2001:db8:0:1::"), start));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let (failures, start) = (Failures::default(), Instant::now());
        for host in 0..2 * ADDRESSES_MAX as u32 {
            failures.count(IpAddr::V4(host.into()), start);
        }
        assert!(failures.0.lock().len() <= ADDRESSES_MAX);
    }
}
