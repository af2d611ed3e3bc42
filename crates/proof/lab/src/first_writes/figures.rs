//! Computes figures from times.

use std::time::Duration;

use serde::Serialize;

use super::writer::Timed;

/// The results of a phase of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests.
    pub operations: u64,
    /// The time that all of them took.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub megabytes_per_second: f64,
    /// Median latency, in microseconds.
    pub median_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// The longest latency.
    pub longest_us: f64,
    /// Processor time of all the server's processes per request, including the kernel's part, in
    /// microseconds.
    pub processor_us: f64,
}

impl Figures {
    /// The figures of a run, with the server's processor time.
    pub fn of(timed: &Timed, processor: Duration) -> Self {
        let seconds = timed.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        Self {
            operations: timed.operations,
            seconds,
            iops: timed.operations as f64 / seconds,
            megabytes_per_second: timed.bytes as f64 / 1e6 / seconds,
            median_us: us(timed.latencies.quantile(0.5)),
            p99_us: us(timed.latencies.quantile(0.99)),
            longest_us: us(timed.latencies.longest()),
            processor_us: us(processor) / timed.operations.max(1) as f64,
        }
    }
}

/// The results of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
}

impl Spread {
    /// The spread of these rounds; `None` if there are none.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = rounds.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { median, lowest, highest })
    }

    /// The spread of the ratio of one figure to another, round by round, so that a slow round
    /// affects both.
    pub fn of_ratios(rounds: &[Figures], by: &[Figures], figure: impl Fn(&Figures) -> f64) -> Option<Self> {
        Self::of(rounds.iter().zip(by).map(|(one, other)| figure(one) / figure(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;

    #[test]
    fn a_run_becomes_figures() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_millis(1));
        latencies.record(Duration::from_millis(3));
        let timed = Timed { operations: 2, bytes: 8192, elapsed: Duration::from_millis(4), latencies };
        let figures = Figures::of(&timed, Duration::from_micros(50));
        assert_eq!((figures.iops.round(), figures.processor_us.round()), (500.0, 25.0));
        assert!((figures.megabytes_per_second - 2.048).abs() < 1e-9);
        assert!(figures.median_us < 1020.0 && figures.p99_us == figures.longest_us);
        let nothing = Figures::of(&Timed::default(), Duration::ZERO);
        assert_eq!((nothing.iops, nothing.processor_us), (0.0, 0.0));
    }

    #[test]
    fn a_spread_is_of_all_rounds() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, lowest: 1.0, highest: 3.0 }));
        assert_eq!(Spread::of([1.0, 2.0]).map(|spread| spread.median), Some(1.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let rounds = |iops: &[f64]| -> Vec<Figures> {
            iops.iter().map(|iops| Figures { iops: *iops, ..Figures::default() }).collect()
        };
        let ratios =
            Spread::of_ratios(&rounds(&[50.0, 5.0]), &rounds(&[100.0, 10.0]), |figures| figures.iops);
        assert_eq!(ratios, Some(Spread { median: 0.5, lowest: 0.5, highest: 0.5 }));
    }
}
