//! Wilcoxon's signed-rank test, with its exact distribution.
//!
//! Under the hypothesis that pairs do not differ, every difference is as likely to be positive as
//! negative, whatever its size. So the probability of each sum of ranks is counted over all signs,
//! which is exact for any number of pairs, and with ties too: equal differences share the mean of
//! their ranks. Pairs that do not differ at all are left out, as Wilcoxon did. (Frank Wilcoxon,
//! Individual Comparisons by Ranking Methods, Biometrics Bulletin 1 (1945).)

/// The two-sided p-value for differences around zero; 1 if all are zero.
pub(super) fn signed_rank_p(differences: &[f64]) -> f64 {
    let mut differing: Vec<f64> =
        differences.iter().copied().filter(|difference| *difference != 0.0).collect();
    differing.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let ranks = doubled_ranks(&differing);
    let signed = differing.iter().zip(&ranks);
    let positive: usize = signed.filter(|(difference, _)| **difference > 0.0).map(|(_, rank)| rank).sum();
    let probabilities = distribution(&ranks);
    let at_most: f64 = probabilities[..=positive].iter().sum();
    let at_least: f64 = probabilities[positive..].iter().sum();
    (2.0 * at_most.min(at_least)).min(1.0)
}

/// Twice the rank of each value, sorted by size; whole even if equal values share the mean of their
/// ranks.
fn doubled_ranks(sorted: &[f64]) -> Vec<usize> {
    let mut ranks = Vec::with_capacity(sorted.len());
    for equal in sorted.chunk_by(|one, other| one.abs() == other.abs()) {
        let first = ranks.len() + 1;
        let last = ranks.len() + equal.len();
        ranks.resize(last, first + last);
    }
    ranks
}

/// The probability of each sum of these ranks, if each is included by a coin toss.
fn distribution(ranks: &[usize]) -> Vec<f64> {
    let mut probabilities = vec![0.0; ranks.iter().sum::<usize>() + 1];
    probabilities[0] = 1.0;
    for rank in ranks {
        for sum in (0..probabilities.len()).rev() {
            let with = sum.checked_sub(*rank).map_or(0.0, |without| probabilities[without]);
            probabilities[sum] = 0.5 * (probabilities[sum] + with);
        }
    }
    probabilities
}
