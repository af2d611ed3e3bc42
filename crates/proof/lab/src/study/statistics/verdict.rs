//! Whether two subjects differ.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

use super::bootstrap::{Interval, VALUES_FOR_A_BOOTSTRAP};
use super::wilcoxon::signed_rank_p;

/// The significance level.
const SIGNIFICANCE: f64 = 0.05;

/// The verdict on a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Better, by the least difference that matters or more.
    Better,
    /// Worse, by that much.
    Worse,
    /// If there is a difference, it is smaller than the least that matters.
    NoDifference,
    /// It cannot be decided.
    Undecided {
        /// How many more rounds would decide it, if they are like the present ones; `None` if no
        /// reasonable number would.
        rounds_more: Option<u32>,
    },
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Better => write!(f, "better"),
            Self::Worse => write!(f, "worse"),
            Self::NoDifference => write!(f, "no difference found"),
            Self::Undecided { rounds_more: Some(more) } => write!(f, "undecided, {more} rounds more"),
            Self::Undecided { rounds_more: None } => write!(f, "undecided"),
        }
    }
}

/// The largest reasonable number of further rounds.
const ROUNDS_MORE_MAX: f64 = 500.0;

/// A comparison of two subjects over the same rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The number of common rounds.
    pub rounds: usize,
    /// The ratio of one to the other within a round.
    pub ratio: Interval,
    /// The probability of a ratio at least as far from 1 without a difference (Wilcoxon's
    /// signed-rank test, two-sided).
    pub p: f64,
    /// The verdict.
    pub verdict: Verdict,
}

impl Comparison {
    /// Compares, in each round, the first of a pair with the second. `least` is the least
    /// difference that matters, such as 0.03. Returns `None` if there is no round in which both are
    /// above zero.
    pub fn of(pairs: &[(f64, f64)], more_is_better: bool, least: f64) -> Option<Self> {
        let positive = pairs.iter().filter(|(one, other)| *one > 0.0 && *other > 0.0);
        let logarithms: Vec<f64> = positive.map(|(one, other)| (one / other).ln()).collect();
        let interval = Interval::of(&logarithms)?;
        let p = signed_rank_p(&logarithms);
        let rounds = logarithms.len();
        let verdict = verdict(rounds, interval, p, more_is_better, (1.0 + least).ln());
        Some(Self { rounds, ratio: interval.map(f64::exp), p, verdict })
    }
}

fn verdict(rounds: usize, logarithm: Interval, p: f64, more_is_better: bool, least: f64) -> Verdict {
    if p <= SIGNIFICANCE && logarithm.median.abs() >= least {
        let is_better = (logarithm.median > 0.0) == more_is_better;
        return if is_better { Verdict::Better } else { Verdict::Worse };
    }
    let is_small = logarithm.low >= -least && logarithm.high <= least;
    if rounds >= VALUES_FOR_A_BOOTSTRAP && is_small {
        return Verdict::NoDifference;
    }
    Verdict::Undecided { rounds_more: rounds_more(rounds, logarithm, least) }
}

/// An interval shrinks with the square root of the number of rounds. It is small enough when it
/// excludes 1, for a difference that matters, or lies within the least difference.
fn rounds_more(rounds: usize, logarithm: Interval, least: f64) -> Option<u32> {
    let size = logarithm.median.abs();
    let half = (logarithm.high - logarithm.low) / 2.0;
    let enough = if size >= least { size } else { least - size };
    let needed = (rounds as f64 * (half / enough).powi(2)).max(VALUES_FOR_A_BOOTSTRAP as f64);
    // At least one pair of rounds, and always whole pairs.
    let more = ((needed - rounds as f64) / 2.0).ceil().max(1.0) * 2.0;
    (more <= ROUNDS_MORE_MAX).then_some(more as u32)
}
