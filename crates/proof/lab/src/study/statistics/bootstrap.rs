//! A median, and between what it lies.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Of how many samples drawn anew the interval is taken.
const RESAMPLES: usize = 4000;
/// What is left out of it at each end, of all resamples: it is an interval of 95 %.
const TAIL: f64 = 0.025;
/// With fewer values, drawing anew says less than the values themselves.
pub(super) const VALUES_FOR_A_BOOTSTRAP: usize = 6;
/// Chance begins here, so that a report is the same whenever it is made.
const SEED: u64 = 0x5eed_0f1a_b000;

/// A median and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Half of the values are below.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Of these values; nothing if there are none. The interval is the percentile bootstrap's of 95
    /// % for the median, and from the lowest to the highest value where there are fewer than 6.
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

    /// The same, of every end's `function`, which must not fall.
    #[must_use]
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        Self { median: function(self.median), low: function(self.low), high: function(self.high) }
    }
}

/// The median of as many values drawn with return. The values are sorted, so it is enough to sort
/// their places.
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
