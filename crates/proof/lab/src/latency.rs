//! Latencies of requests: a histogram of fixed size for any number of requests.

use std::time::Duration;

/// Steps within a power of two: a reported latency has an error of at most 1 in 64.
const STEPS_BITS: u32 = 6;
const STEPS: usize = 1 << STEPS_BITS;
/// Every number of nanoseconds has a step.
const BUCKETS: usize = (64 - STEPS_BITS as usize + 1) * STEPS;

/// Latencies of a run.
#[derive(Clone, Debug)]
pub struct Latencies {
    counts: Vec<u64>,
    count: u64,
    longest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], count: 0, longest_ns: 0 }
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, other)| *count += other);
        self.count += other.count;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// The quantile `share` (0 to 1) of the latencies; zero if there were none.
    pub fn quantile(&self, share: f64) -> Duration {
        let rank = (share.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        Duration::from_nanos(found.map_or(0, |bucket| highest(bucket).min(self.longest_ns)))
    }

    /// The longest.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns)
    }
}

fn bucket(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(STEPS_BITS + 1);
    power as usize * STEPS + (ns >> power) as usize
}

/// The longest latency counted in a bucket.
fn highest(bucket: usize) -> u64 {
    let power = (bucket / STEPS).saturating_sub(1);
    let step = (bucket - power * STEPS) as u64;
    (step << power) + ((1 << power) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_has_a_bucket_that_is_not_far_from_it() {
        let mut last = 0;
        for ns in
            (0..70_000).chain((17..64).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << (power - 1)]))
        {
            let at = bucket(ns);
            let told = highest(at);
            assert!(told >= ns && told - ns <= ns / 64, "{ns} is told as {told}");
            assert!(at < BUCKETS && (ns > 70_000 || at >= last));
            last = at;
        }
        assert_eq!(highest(bucket(u64::MAX)), u64::MAX);
    }

    #[test]
    fn quantiles_are_of_all_that_was_counted() {
        let mut latencies = Latencies::default();
        assert_eq!((latencies.quantile(0.5), latencies.longest()), (Duration::ZERO, Duration::ZERO));
        (1..=50).for_each(|us| latencies.record(Duration::from_micros(us)));
        let mut others = Latencies::default();
        (51..=100).for_each(|us| others.record(Duration::from_micros(us)));
        latencies.add(&others);
        let told = |share| latencies.quantile(share).as_secs_f64() * 1e6;
        for (share, us) in [(0.0, 1.0), (0.01, 1.0), (0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            assert!((us..us * 1.017).contains(&told(share)), "{share}: {} us", told(share));
        }
        assert_eq!(latencies.longest(), Duration::from_micros(100));
    }
}
