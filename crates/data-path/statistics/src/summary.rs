//! A summary of the statistics for people.

use serde::Serialize;

use crate::snapshot::{Counters, Errors};

/// A summary of the requests of one operation. Latencies are in nanoseconds and at most a quarter
/// too high, because they are the bounds of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How many were answered, including failed ones, but not those refused at once.
    pub requests: u64,
    /// Bytes of the requests that succeeded.
    pub bytes: u64,
    /// The requests that failed.
    pub errors: Errors,
    /// The mean latency; exact.
    pub mean_ns: u64,
    /// Half of the requests took less.
    pub p50_ns: u64,
    /// 99 of 100 took less.
    pub p99_ns: u64,
    /// 999 of 1000 took less.
    pub p999_ns: u64,
    /// All took less.
    pub max_ns: u64,
}

impl From<&Counters> for Summary {
    fn from(counters: &Counters) -> Self {
        let requests = counters.requests();
        let quantile = |part| counters.latency.quantile_ns(part).unwrap_or(0);
        Self {
            requests,
            bytes: counters.bytes,
            errors: counters.errors,
            mean_ns: counters.time_ns.checked_div(requests).unwrap_or(0),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: quantile(1.0),
        }
    }
}

/// A latency for a person: `0`, `870us`, `4.2ms`, `1.7s`.
pub fn display_latency(latency_ns: u64) -> String {
    let us = latency_ns.div_ceil(1000);
    match us {
        0 => "0".to_owned(),
        1..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.1}ms", us as f64 / 1e3),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_nothing_is_zeroes_and_of_some_requests_their_bounds() {
        let mut counters = Counters::default();
        assert_eq!(Summary::from(&counters), Summary::default());
        (0..99).for_each(|_| counters.latency.record(100_000));
        counters.latency.record(9_000_000);
        (counters.time_ns, counters.bytes) = (18_900_000, 409_600);
        let summary = Summary::from(&counters);
        assert_eq!((summary.requests, summary.mean_ns, summary.bytes), (100, 189_000, 409_600));
        assert_eq!((summary.p50_ns, summary.p99_ns), (114_688, 114_688));
        assert_eq!((summary.p999_ns, summary.max_ns), (10_485_760, 10_485_760));
    }

    #[test]
    fn latencies_are_short() {
        let shown = [0, 1024, 870_000, 4_194_304, 1_717_986_918].map(display_latency);
        assert_eq!(shown, ["0", "2us", "870us", "4.2ms", "1.7s"]);
    }
}
