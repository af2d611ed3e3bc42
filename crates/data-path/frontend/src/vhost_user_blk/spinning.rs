//! Decides whether a queue polls for work for a while before it sleeps.
//!
//! Sleeping and waking take processor time on both sides. On a virtual machine, whose idle
//! processors the host must wake, waking takes tens of microseconds. If the next work arrives
//! sooner than that, polling is cheaper than sleeping. Whether it does is found by trial, and kept
//! as an account: work that was found has saved a sleep and cost the time until it came; a vain
//! attempt has cost the whole window. Polling continues while the account is in credit. After that
//! it is tried again when waits have become short, and each vain trial doubles the count of short
//! waits that the next one needs. So an idle queue does not spin, nor one with a slow disk, nor one
//! whose driver does not get to run because the processors are busy.

use std::time::Duration;

/// The longest time of polling.
const WINDOW: Duration = Duration::from_micros(50);

/// The cost of a sleep on both sides, of falling asleep, waking and being woken. Measured on a
/// virtual machine of two processors with one request at a time, each request took 18 microseconds
/// of the server's processor time and 19 of the driver's; without the sleep it took 10 and 7
/// (`docs/PERFORMANCE.md`).
const SLEEP_COST_US: i64 = 20;

/// A wait this short, although it was slept through, is a reason for a trial. Most of it may have
/// been the wake-up.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// The most that a trial may cost. The credit is limited to this, so that a change is noticed soon.
const CREDIT_US: i64 = 200;

/// How many short waits in a row trigger a trial, at first and at most.
const SHORT_WAITS_MIN: u32 = 8;
const SHORT_WAITS_MAX: u32 = 1 << 14;

/// The account of one kind of wait.
#[derive(Debug)]
pub struct Spinning {
    /// The credit in microseconds of processor time; polling pays while it is positive.
    credit_us: i64,
    /// Short waits in a row since the last polling.
    short_waits: u32,
    /// How many of them trigger the next trial.
    short_waits_needed: u32,
}

impl Default for Spinning {
    fn default() -> Self {
        Self { credit_us: 0, short_waits: 0, short_waits_needed: SHORT_WAITS_MIN }
    }
}

impl Spinning {
    /// How long to poll before the next sleep; `None` if it does not pay.
    pub fn window(&self) -> Option<Duration> {
        (self.credit_us > 0).then_some(WINDOW)
    }

    /// Notes that work was found after this time.
    pub fn found(&mut self, after: Duration) {
        self.credit_us = (self.credit_us + SLEEP_COST_US - microseconds(after)).min(CREDIT_US);
        match self.credit_us {
            CREDIT_US => self.short_waits_needed = SHORT_WAITS_MIN,
            ..=0 => self.give_up(),
            _ => {}
        }
    }

    /// Notes that no work was found in the window.
    pub fn missed(&mut self) {
        self.credit_us -= microseconds(WINDOW);
        if self.credit_us <= 0 {
            self.give_up();
        }
    }

    /// Notes the end of a wait that was slept through, and its total length.
    pub fn slept(&mut self, waited: Duration) {
        if self.window().is_some() {
            return;
        }
        self.short_waits = if waited <= SHORT_WAIT { self.short_waits + 1 } else { 0 };
        if self.short_waits >= self.short_waits_needed {
            // The trial must pay off within its credit: it begins with half of the limit.
            self.credit_us = CREDIT_US / 2;
        }
    }

    fn give_up(&mut self) {
        self.credit_us = 0;
        self.short_waits = 0;
        self.short_waits_needed = (2 * self.short_waits_needed).min(SHORT_WAITS_MAX);
    }
}

fn microseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;

    /// Runs waits of these lengths as a queue does. A wait that is slept through is longer by the
    /// wake-up. Returns the microseconds spent polling, and the count of sleeps.
    fn run(spinning: &mut Spinning, waits_us: impl IntoIterator<Item = u64>) -> (u64, u64) {
        const WAKING_US: u64 = 20;
        let (mut spun_us, mut sleeps) = (0, 0);
        let window_us = WINDOW.as_micros() as u64;
        for wait_us in waits_us {
            match spinning.window() {
                Some(_) if wait_us <= window_us => {
                    spun_us += wait_us;
                    spinning.found(Duration::from_micros(wait_us));
                    continue;
                }
                Some(_) => {
                    spun_us += window_us;
                    spinning.missed();
                }
                None => {}
            }
            sleeps += 1;
            spinning.slept(Duration::from_micros(wait_us + WAKING_US));
        }
        (spun_us, sleeps)
    }

    #[test]
    fn short_waits_are_spun_through() {
        let (_, sleeps) = run(&mut Spinning::default(), repeat_n(8, 10_000));
        assert_eq!(sleeps, u64::from(SHORT_WAITS_MIN));
        // An occasional long wait changes nothing.
        let (_, sleeps) =
            run(&mut Spinning::default(), (0..10_000).map(|wait| if wait % 50 == 49 { 500 } else { 8 }));
        assert!(sleeps < 250, "{sleeps}");
    }

    #[test]
    fn idle_queues_do_not_spin() {
        let (spun_us, sleeps) = run(&mut Spinning::default(), repeat_n(1_000_000, 1000));
        assert_eq!((spun_us, sleeps), (0, 1000));
        // Nor does one that was busy before.
        let mut spinning = Spinning::default();
        run(&mut spinning, repeat_n(3, 1000));
        let (spun_us, _) = run(&mut spinning, repeat_n(10_000, 1000));
        assert!(spun_us <= 4 * WINDOW.as_micros() as u64, "{spun_us}");
    }

    #[test]
    fn what_does_not_pay_is_tried_ever_more_rarely() {
        // A disk that takes as long as the window, and one that takes a little less.
        for wait_us in [70, 45, 30] {
            let mut spinning = Spinning::default();
            run(&mut spinning, repeat_n(wait_us, 20_000));
            let (spun_us, sleeps) = run(&mut spinning, repeat_n(wait_us, 100_000));
            assert!(spun_us < 100_000 * wait_us / 100, "{spun_us} us of {wait_us} us waits");
            assert!(sleeps > 99_000, "{sleeps}");
        }
    }

    #[test]
    fn what_begins_to_pay_is_noticed() {
        let mut spinning = Spinning::default();
        run(&mut spinning, repeat_n(70, 200_000));
        let (_, sleeps) = run(&mut spinning, repeat_n(5, 100_000));
        assert!(sleeps <= u64::from(SHORT_WAITS_MAX), "{sleeps}");
        let (_, sleeps) = run(&mut spinning, repeat_n(5, 100_000));
        assert_eq!(sleeps, 0);
    }
}
