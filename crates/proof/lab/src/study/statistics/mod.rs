//! What a handful of rounds says, without assuming how they are distributed.
//!
//! Figures of a busy machine have long tails and several peaks, so nothing here takes them for
//! normal: a median with a bootstrap interval, ratios of what was measured in the same round, and a
//! signed-rank test whose distribution is counted out, ties included.

mod bootstrap;
#[cfg(test)]
mod tests;
mod verdict;
mod wilcoxon;

pub use bootstrap::Interval;
pub use verdict::{Comparison, Verdict};
