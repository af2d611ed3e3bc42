//! Whether a queue looks for work a while before it sleeps.
//!
//! To sleep and to be woken takes processor time on both sides, and on a virtual machine, whose
//! idle processors are the host's to wake, tens of microseconds until it goes on. Where the next
//! thing to do comes sooner than that, looking for it is cheaper than sleeping. Whether it does is
//! found out by trying, and kept as an account: what was found has saved a sleep and cost the time
//! that it took, what was not found has cost the whole window. Looking goes on while the account is
//! in credit. After that it is tried again when waits have become short, and each time that this
//! turns out vain it takes twice as many of them. So a queue that is idle does not spin, nor one
//! whose disk takes its time, nor one whose driver does not come to run because the processors are
//! busy.

use std::time::Duration;

/// How long work is looked for at most.
const WINDOW: Duration = Duration::from_micros(50);

/// What a sleep costs both sides, to fall asleep, to wake and to be woken: measured on a virtual
/// machine of two processors, 18 microseconds of the server's processor time and 19 of the driver's
/// for each request of one at a time, of which 10 and 7 were left without the sleep
/// (`docs/PERFORMANCE.md`).
const SLEEP_COST_US: i64 = 20;

/// A wait that is so short although it was slept through is a reason to try. Most of it may have
/// been the waking.
const SHORT_WAIT: Duration = Duration::from_micros(100);

/// What a trial may cost; and no more is ever kept, so that a change is noticed soon.
const CREDIT_US: i64 = 200;

/// How many short waits in a row lead to a trial, at first and at most.
const SHORT_WAITS_MIN: u32 = 8;
const SHORT_WAITS_MAX: u32 = 1 << 14;

/// The account of one kind of wait.
#[derive(Debug)]
pub struct Spinning {
    /// In microseconds of processor time; looking pays while there is any.
    credit_us: i64,
    /// Short waits in a row since it last looked.
    short_waits: u32,
    /// How many of them lead to the next trial.
    short_waits_needed: u32,
}

impl Default for Spinning {
    fn default() -> Self {
        Self { credit_us: 0, short_waits: 0, short_waits_needed: SHORT_WAITS_MIN }
    }
}

impl Spinning {
    /// How long to look before the next sleep; nothing if it does not pay.
    pub fn window(&self) -> Option<Duration> {
        (self.credit_us > 0).then_some(WINDOW)
    }

    /// Work was found after so long.
    pub fn found(&mut self, after: Duration) {
        self.credit_us = (self.credit_us + SLEEP_COST_US - microseconds(after)).min(CREDIT_US);
        match self.credit_us {
            CREDIT_US => self.short_waits_needed = SHORT_WAITS_MIN,
            ..=0 => self.give_up(),
            _ => {}
        }
    }

    /// None was found in the window.
    pub fn missed(&mut self) {
        self.credit_us -= microseconds(WINDOW);
        if self.credit_us <= 0 {
            self.give_up();
        }
    }

    /// A wait is over that was slept through, of this length in all.
    pub fn slept(&mut self, waited: Duration) {
        if self.window().is_some() {
            return;
        }
        self.short_waits = if waited <= SHORT_WAIT { self.short_waits + 1 } else { 0 };
        if self.short_waits >= self.short_waits_needed {
            // What is to be saved must be there within the trial: it begins with half of what can
            // be kept.
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

    /// Runs waits of these lengths as a queue does; a wait that is slept through takes longer by
    /// the waking. Says how many microseconds were spent looking, and how many sleeps there were.
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
        // A long one now and then changes nothing.
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
