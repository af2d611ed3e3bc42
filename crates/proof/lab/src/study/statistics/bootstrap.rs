//! A median and its confidence interval.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// The number of resamples for the interval.
const RESAMPLES: usize = 4000;
/// The share of resamples excluded at each end, which gives an interval of 95 %.
const TAIL: f64 = 0.025;
/// With fewer values, resampling says less than the values themselves.
pub(super) const VALUES_FOR_A_BOOTSTRAP: usize = 6;
/// A fixed seed, so that a report is reproducible.
const SEED: u64 = 0x5eed_0f1a_b000;

/// A median and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The interval of these values; `None` if there are none. It is the 95 % percentile bootstrap
    /// of the median or, with fewer than 6 values, the range from the lowest to the highest.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let median = median(&sorted);
        if sorted.len() < VALUES_FOR_A_BOOTSTRAP {
            return Some(Self { median, low, high });
        }
        let mut random = StdRng::seed_from_u64(SEED);
        let mut drawn = vec![0; sorted.len()];
        let mut medians: Vec<f64> =
            (0..RESAMPLES).map(|_| drawn_median(&sorted, &mut drawn, &mut random)).collect();
        medians.sort_by(f64::total_cmp);
        let left_out = (RESAMPLES as f64 * TAIL) as usize;
        Some(Self { median, low: medians[left_out], high: medians[RESAMPLES - 1 - left_out] })
    }

    /// Applies `function`, which must not decrease, to all its values.
    #[must_use]
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self { median: function(self.median), low: function(self.low), high: function(self.high) }
    }
}

/// The median of as many values, drawn with replacement. The values are sorted, so sorting their
/// indices suffices.
fn drawn_median(sorted: &[f64], drawn: &mut [usize], random: &mut StdRng) -> f64 {
    drawn.iter_mut().for_each(|place| *place = random.random_range(0..sorted.len()));
    drawn.sort_unstable();
    let middle = drawn.len() / 2;
    match drawn.len() % 2 {
        0 => f64::midpoint(sorted[drawn[middle - 1]], sorted[drawn[middle]]),
        _ => sorted[drawn[middle]],
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}
