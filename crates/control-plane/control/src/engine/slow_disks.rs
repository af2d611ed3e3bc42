//! When a disk is slow, and when it stands still: what is worth waking somebody up for, and when
//! that is over.

use strongroom_statistics::{Histogram, Operation, Snapshot};

/// What is judged as one, in milliseconds: one slow request in a quiet minute is no news.
const PERIOD_MS: u64 = 60_000;
/// So many slow periods, one after the other, raise the alarm, and so many good ones clear it.
const PERIODS: u32 = 5;
/// Fewer requests in a period say nothing of its disk.
const REQUESTS_MIN: u64 = 50;
/// A period is good when its latency keeps below this part of the threshold: between the two an
/// alarm stays as it is.
const GOOD_PERCENT: u64 = 80;
/// No completion for so long, with requests in flight, in milliseconds.
pub const STALLED_MS: u64 = 30_000;

/// How a disk fared in its last periods.
#[derive(Debug, Default)]
pub struct DiskWatch {
    /// What there was when the present period began.
    begun: Option<(u64, Snapshot)>,
    /// Slow periods in a row, and good ones.
    slow: u32,
    good: u32,
    /// The latency that 99 of 100 requests kept below in the last period that was too slow, while
    /// the alarm stands.
    alarm: Option<u64>,
}

impl DiskWatch {
    /// Takes a snapshot in; `threshold_ns` is what 99 of 100 requests should keep below, and `None`
    /// if nobody wants to know.
    pub fn see(&mut self, now_ms: u64, snapshot: &Snapshot, threshold_ns: Option<u64>) {
        let Some(threshold_ns) = threshold_ns else {
            *self = Self::default();
            return;
        };
        let Some((begun_ms, before)) = &self.begun else {
            self.begun = Some((now_ms, snapshot.clone()));
            return;
        };
        match now_ms.checked_sub(*begun_ms) {
            Some(passed) if passed < PERIOD_MS => return,
            Some(_) => {}
            // A clock that was set back begins a period anew.
            None => {
                self.begun = Some((now_ms, snapshot.clone()));
                return;
            }
        }
        let latency = latency_of(&snapshot.since(before));
        self.begun = Some((now_ms, snapshot.clone()));
        let p99_ns = latency.quantile_ns(0.99).filter(|_| latency.total() >= REQUESTS_MIN);
        match p99_ns {
            Some(p99_ns) if p99_ns > threshold_ns => {
                (self.slow, self.good) = (self.slow.saturating_add(1), 0);
                if self.slow >= PERIODS || self.alarm.is_some() {
                    self.alarm = Some(p99_ns);
                }
            }
            // A disk that nobody uses is not slow.
            Some(p99_ns) if p99_ns > threshold_ns / 100 * GOOD_PERCENT => (self.slow, self.good) = (0, 0),
            _ => {
                (self.slow, self.good) = (0, self.good.saturating_add(1));
                if self.good >= PERIODS {
                    self.alarm = None;
                }
            }
        }
    }

    /// The latency that 99 of 100 requests kept below lately, in nanoseconds, if that is too much.
    pub fn slow_ns(&self) -> Option<u64> {
        self.alarm
    }
}

/// Of reads and writes: a flush, a discard or a zeroing takes as long as it takes.
fn latency_of(snapshot: &Snapshot) -> Histogram {
    let mut latency = snapshot.of(Operation::Read).latency.clone();
    latency.merge(&snapshot.of(Operation::Write).latency);
    latency
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A disk that does so many requests of this latency in each period; whether the alarm stands
    /// after each.
    fn periods(
        watch: &mut DiskWatch,
        snapshot: &mut Snapshot,
        now_ms: &mut u64,
        done: &[(u64, u64)],
    ) -> Vec<bool> {
        let mut alarms = Vec::new();
        for (requests, latency_ms) in done {
            (0..*requests).for_each(|_| snapshot.read.latency.record(latency_ms * MS));
            // Samples come more often than periods end.
            for _ in 0..6 {
                *now_ms += PERIOD_MS / 6;
                watch.see(*now_ms, snapshot, Some(100 * MS));
            }
            alarms.push(watch.slow_ns().is_some());
        }
        alarms
    }

    #[test]
    fn five_slow_minutes_raise_and_five_good_ones_clear() {
        let (mut watch, mut snapshot, mut now_ms) = (DiskWatch::default(), Snapshot::default(), 0);
        watch.see(now_ms, &snapshot, Some(100 * MS));
        let mut after = |done: &[(u64, u64)]| periods(&mut watch, &mut snapshot, &mut now_ms, done);
        assert_eq!(after(&[(100, 200); 4]), [false; 4]);
        // One good minute, and it begins anew; a few requests say nothing.
        assert_eq!(after(&[(100, 1), (100, 200), (100, 200), (10, 5000), (100, 200)]), [false; 5]);
        assert_eq!(after(&[(100, 200); 5]), [false, false, false, true, true]);
        // Neither slow nor good: as it is, for as long as it takes.
        assert_eq!(after(&[(100, 85); 20]), [true; 20]);
        assert_eq!(after(&[(100, 1), (100, 1), (100, 200), (100, 1)]), [true; 4]);
        assert_eq!(after(&[(100, 1), (0, 0), (100, 1), (100, 1)]), [true, true, true, false]);
    }

    #[test]
    fn counters_that_begin_anew_and_clocks_that_go_back_raise_nothing() {
        let (mut watch, mut snapshot) = (DiskWatch::default(), Snapshot::default());
        (0..1000).for_each(|_| snapshot.write.latency.record(500 * MS));
        watch.see(20 * PERIOD_MS, &snapshot, Some(100 * MS));
        for step in 1..=20 {
            (0..1000).for_each(|_| snapshot.write.latency.record(500 * MS));
            watch.see((20 - step) * PERIOD_MS, &snapshot, Some(100 * MS));
        }
        assert_eq!(watch.slow_ns(), None);
        for step in 1..=20 {
            let fresh = Snapshot { since_unix_ms: step, ..Snapshot::default() };
            watch.see(step * PERIOD_MS, &fresh, Some(100 * MS));
        }
        assert_eq!(watch.slow_ns(), None);
    }

    #[test]
    fn whoever_wants_no_alarm_gets_none() {
        let (mut watch, mut snapshot) = (DiskWatch::default(), Snapshot::default());
        for minute in 0..20 {
            (0..1000).for_each(|_| snapshot.write.latency.record(500 * MS));
            watch.see(minute * PERIOD_MS, &snapshot, None);
        }
        assert_eq!(watch.slow_ns(), None);
    }
}
