//! Statistics of a handful of rounds, without assumptions about their distribution.
//!
//! Figures of a busy machine have long tails and several peaks, so normality is not assumed: a
//! median with a bootstrap interval, ratios within the same round, and a signed-rank test with an
//! exactly counted distribution, including ties.

mod bootstrap;
#[cfg(test)]
mod tests;
mod verdict;
mod wilcoxon;

pub use bootstrap::Interval;
pub use verdict::{Comparison, Verdict};
