//! Decides when a slow or stalled disk is worth an alarm, and when the alarm is over.

use strongroom_statistics::{Histogram, Operation, Snapshot};

/// The period that is judged as a whole, in milliseconds: one slow request in a quiet minute is not
/// news.
const PERIOD_MS: u64 = 60_000;
/// The number of consecutive slow periods that raise the alarm, and of good ones that clear it.
const PERIODS: u32 = 5;
/// With fewer requests, a period is not judged.
const REQUESTS_MIN: u64 = 50;
/// A period is good if its latency is below this part of the threshold. Between the two, an alarm
/// stays as it is.
const GOOD_PERCENT: u64 = 80;
/// A disk counts as stalled if it has completed nothing for this long with requests in flight, in
/// milliseconds.
pub const STALLED_MS: u64 = 30_000;

/// The recent performance of a disk.
#[derive(Debug, Default)]
pub struct DiskWatch {
    /// The time and counters at the beginning of the present period.
    begun: Option<(u64, Snapshot)>,
    /// The number of consecutive slow periods, and of good ones.
    slow: u32,
    good: u32,
    /// The 99th percentile latency in the last slow period, while the alarm stands.
    alarm: Option<u64>,
}

impl DiskWatch {
    /// Adds a snapshot. `threshold_ns` is the latency that 99 of 100 requests should keep below;
    /// `None` turns the alarm off.
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
            // A clock that was set back restarts the period.
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
            // An idle disk is not slow.
            Some(p99_ns) if p99_ns > threshold_ns / 100 * GOOD_PERCENT => (self.slow, self.good) = (0, 0),
            _ => {
                (self.slow, self.good) = (0, self.good.saturating_add(1));
                if self.good >= PERIODS {
                    self.alarm = None;
                }
            }
        }
    }

    /// The 99th percentile latency while it is too high, in nanoseconds.
    pub fn slow_ns(&self) -> Option<u64> {
        self.alarm
    }
}

/// The latency of reads and writes. Flushes, discards and zeroings may take long.
fn latency_of(snapshot: &Snapshot) -> Histogram {
    let mut latency = snapshot.of(Operation::Read).latency.clone();
    latency.merge(&snapshot.of(Operation::Write).latency);
    latency
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Feeds periods with this many requests of this latency. Returns whether the alarm stands
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
            // Samples are more frequent than periods.
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
        // One good minute restarts the count; a few requests do not count.
        assert_eq!(after(&[(100, 1), (100, 200), (100, 200), (10, 5000), (100, 200)]), [false; 5]);
        assert_eq!(after(&[(100, 200); 5]), [false, false, false, true, true]);
        // Neither slow nor good: the alarm stays, however long it takes.
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
