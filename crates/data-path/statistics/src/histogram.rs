//! Counts latencies in buckets with growing bounds: four per power of two.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Latencies below 2^10 ns (1.024 us) share one bucket: differences between such fast requests are
/// of no interest.
const FIRST_EXPONENT: u32 = 10;
/// Latencies from 2^36 ns (68.7 s) on share one bucket: a client has given up by then.
const LAST_EXPONENT: u32 = 36;
/// Four buckets per power of two: a bucket's upper bound is at most a quarter above its lower one.
const STEP_BITS: u32 = 2;

/// How many buckets there are: those between the two powers, the one below and the one above.
pub const BUCKETS: usize = (((LAST_EXPONENT - FIRST_EXPONENT) << STEP_BITS) + 2) as usize;

/// The bucket of a latency in nanoseconds.
pub fn bucket_of(latency_ns: u64) -> usize {
    if latency_ns < 1 << FIRST_EXPONENT {
        return 0;
    }
    let exponent = latency_ns.ilog2();
    if exponent >= LAST_EXPONENT {
        return BUCKETS - 1;
    }
    let step = (latency_ns >> (exponent - STEP_BITS)) as u32 & ((1 << STEP_BITS) - 1);
    (1 + ((exponent - FIRST_EXPONENT) << STEP_BITS) + step) as usize
}

/// The upper bound of a bucket's latencies, exclusive, in nanoseconds; `None` for the last bucket
/// and beyond it.
pub fn upper_bound_ns(bucket: usize) -> Option<u64> {
    match bucket {
        0 => Some(1 << FIRST_EXPONENT),
        1.. if bucket < BUCKETS - 1 => {
            let at = bucket as u32 - 1;
            let (exponent, step) = (FIRST_EXPONENT + (at >> STEP_BITS), at & ((1 << STEP_BITS) - 1));
            Some(u64::from((1 << STEP_BITS) + step + 1) << (exponent - STEP_BITS))
        }
        _ => None,
    }
}

/// The distribution of requests' latencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram([u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    /// Adds requests to a bucket. An invalid bucket is ignored.
    pub fn add(&mut self, bucket: usize, count: u64) {
        if let Some(counted) = self.0.get_mut(bucket) {
            *counted = counted.saturating_add(count);
        }
    }

    /// Adds one request.
    pub fn record(&mut self, latency_ns: u64) {
        self.add(bucket_of(latency_ns), 1);
    }

    /// Adds all requests of another histogram.
    pub fn merge(&mut self, other: &Self) {
        other.counts().for_each(|(bucket, count)| self.add(bucket, count));
    }

    /// The requests since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.0.iter_mut().zip(before.0) {
            *count = count.saturating_sub(before);
        }
        since
    }

    /// Count of requests.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The buckets that are not empty, with their counts.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.0.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// How many requests took less than `bound_ns`, which must be the bound of a bucket.
    pub fn total_below(&self, bound_ns: u64) -> u64 {
        let below =
            |(bucket, _): &(usize, u64)| upper_bound_ns(*bucket).is_some_and(|upper| upper <= bound_ns);
        self.counts().filter(below).fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The latency in nanoseconds below which this part (0 to 1) of the requests stayed: the upper
    /// bound of their bucket, so at most a quarter too high. For the last bucket it is the lower
    /// bound. `None` if there are no requests.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let total = self.total();
        // The number of the request in question, counted from the fastest; at least 1.
        let rank = ((total as f64 * part).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0_u64;
        let bucket = self.counts().find_map(|(bucket, count)| {
            seen = seen.saturating_add(count);
            (seen >= rank).then_some(bucket)
        })?;
        Some(upper_bound_ns(bucket).unwrap_or(1 << LAST_EXPONENT))
    }

    /// The bound of the slowest request, as [`quantile_ns`](Self::quantile_ns).
    pub fn max_ns(&self) -> Option<u64> {
        self.quantile_ns(1.0)
    }
}

/// As the buckets that are not empty: `[[17,4],[18,1]]`.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.counts())
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = Vec::<(usize, u64)>::deserialize(deserializer)?;
        let mut histogram = Self::default();
        counts.into_iter().for_each(|(bucket, count)| histogram.add(bucket, count));
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bounds_are_those_of_the_page_format() {
        assert_eq!(BUCKETS, 106);
        let bounds: Vec<_> = (0..6).map(upper_bound_ns).collect();
        assert_eq!(bounds, [1024, 1280, 1536, 1792, 2048, 2560].map(Some));
        assert_eq!((upper_bound_ns(104), upper_bound_ns(105)), (Some(1 << 36), None));
        assert_eq!(upper_bound_ns(usize::MAX), None);
    }

    #[test]
    fn each_bucket_begins_where_the_one_before_ends() {
        for bucket in 0..BUCKETS - 1 {
            let bound = upper_bound_ns(bucket).unwrap();
            assert_eq!((bucket_of(bound - 1), bucket_of(bound)), (bucket, bucket + 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn what_is_empty_has_no_quantile_and_what_is_full_does_not_wrap() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile_ns(0.5), histogram.max_ns()), (None, None));
        histogram.add(3, u64::MAX);
        histogram.add(4, u64::MAX);
        histogram.add(BUCKETS, 1);
        assert_eq!((histogram.total(), histogram.quantile_ns(0.99)), (u64::MAX, Some(1792)));
    }

    proptest! {
        /// The slow oracle keeps every latency.
        #[test]
        fn quantiles_are_those_of_the_sorted_latencies(
            latencies in prop::collection::vec(prop_oneof![0_u64..5_000, 0_u64..50_000_000, any::<u64>()], 1..300),
            part in 0.0_f64..=1.0,
            cut in 0_usize..300,
        ) {
            let cut = cut.min(latencies.len() - 1);
            let (mut before, mut all) = (Histogram::default(), Histogram::default());
            for (at, latency) in latencies.iter().enumerate() {
                all.record(*latency);
                if at < cut {
                    before.record(*latency);
                }
            }
            let interval = all.since(&before);
            let mut sorted = latencies[cut..].to_vec();
            sorted.sort_unstable();
            prop_assert_eq!(interval.total(), sorted.len() as u64);
            let rank = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len());
            let (exact, told) = (sorted[rank - 1], interval.quantile_ns(part).unwrap());
            match exact {
                _ if exact >= 1 << LAST_EXPONENT => prop_assert_eq!(told, 1 << LAST_EXPONENT),
                _ if exact < 1 << FIRST_EXPONENT => prop_assert_eq!(told, 1 << FIRST_EXPONENT),
                _ => prop_assert!(exact < told && told <= exact + exact / 4 + 1, "{} of {}", told, exact),
            }
            let bound = upper_bound_ns(part.mul_add(104.0, 0.0) as usize).unwrap();
            let below = sorted.iter().filter(|latency| **latency < bound).count();
            prop_assert_eq!(interval.total_below(bound), below as u64);
            let text = serde_json::to_string(&all).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), all);
        }
    }
}
