//! Tests against published values, and by simulation.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::wilcoxon::signed_rank_p;
use super::{Comparison, Interval, Verdict};

fn assert_close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected}");
}

/// Each checked by enumerating all signs, and with SciPy 1.17.1: `wilcoxon(d, method='exact')`, and
/// `PermutationMethod` for ties.
#[test]
fn p_values_are_those_of_scipy() {
    for (differences, p) in [
        (&[1.0, 2.0, 3.0, 4.0, 5.0][..], 0.0625),
        (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.03125),
        (&[1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 0.0234375),
        (&[1.83, -0.95, 0.77, 2.55, -0.31, 1.2, 0.6, -0.45, 3.1, 0.9], 0.064453125),
        (&[1.0, 1.0, -1.0, 2.0, 2.0, -3.0, 3.0, 4.0, 4.0, 4.0], 0.05859375),
        (&[0.0, 0.0, 1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0.046875),
        (&[0.0, 0.0], 1.0),
        (&[], 1.0),
    ] {
        assert_close(signed_rank_p(differences), p, 1e-12);
        let mirrored: Vec<f64> = differences.iter().map(|difference| -difference).collect();
        assert_close(signed_rank_p(&mirrored), p, 1e-12);
    }
}

/// Darwin's maize: crossed less self-fertilised, in eighths of an inch (The Effects of Cross and
/// Self Fertilisation in the Vegetable Kingdom (1876); the test's example in many books).
#[test]
fn darwins_maize_gives_its_known_p_value() {
    let differences =
        [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];
    assert_close(signed_rank_p(&differences), 0.041_259_765_625, 1e-12);
}

/// The critical values of Wilcoxon's table, 5 % two-sided: the largest smaller sum of ranks that is
/// significant.
#[test]
fn critical_values_are_those_of_the_published_table() {
    for (pairs, critical) in [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (15, 25), (20, 52), (25, 89)] {
        assert!(p_of_smaller_sum(pairs, critical) <= 0.05, "{pairs} pairs");
        assert!(p_of_smaller_sum(pairs, critical + 1) > 0.05, "{pairs} pairs");
    }
}

/// The p-value if the ranks of negative differences add up to `sum`.
fn p_of_smaller_sum(pairs: u32, sum: u32) -> f64 {
    let mut left = sum;
    let mut differences: Vec<f64> = Vec::new();
    for rank in (1..=pairs).rev() {
        let is_negative = rank <= left;
        left -= if is_negative { rank } else { 0 };
        differences.push(f64::from(rank) * if is_negative { -1.0 } else { 1.0 });
    }
    assert_eq!(left, 0);
    signed_rank_p(&differences)
}

/// SciPy 1.17.1: `bootstrap((x,), median, method='percentile', n_resamples=200000)`.
#[test]
fn intervals_are_those_of_scipy() {
    let interval = |values: &[f64]| Interval::of(values).unwrap();
    let ten = interval(&[12.1, 11.8, 12.9, 13.4, 12.2, 11.9, 12.7, 14.8, 12.4, 12.0]);
    assert_close(ten.median, 12.3, 1e-9);
    assert_close(ten.low, 12.0, 0.051);
    assert_close(ten.high, 13.05, 0.11);
    let thirty: Vec<f64> = (1..=30).map(|value| f64::from(value).powf(1.5)).collect();
    let thirty = interval(&thirty);
    assert_close(thirty.median, 61.047_375, 1e-5);
    assert_close(thirty.low, 34.05, 2.5);
    assert_close(thirty.high, 92.84, 3.5);
    let six = interval(&[3.0, 1.0, 4.0, 1.5, 9.0, 2.6]);
    assert_eq!((six.median, six.low, six.high), (2.8, 1.25, 6.5));
}

#[test]
fn few_values_are_told_from_the_lowest_to_the_highest() {
    assert_eq!(Interval::of(&[]), None);
    assert_eq!(Interval::of(&[7.0]), Some(Interval { median: 7.0, low: 7.0, high: 7.0 }));
    let five = Interval::of(&[5.0, 1.0, 2.0, 9.0, 3.0]);
    assert_eq!(five, Some(Interval { median: 3.0, low: 1.0, high: 9.0 }));
}

#[test]
fn a_verdict_knows_which_way_is_better_and_what_does_not_matter() {
    let pairs = |ratio: f64| -> Vec<(f64, f64)> {
        (0..10).map(|round| (ratio * (100.0 + f64::from(round)), 100.0 + f64::from(round) * 1.001)).collect()
    };
    let of = |ratio, more_is_better| Comparison::of(&pairs(ratio), more_is_better, 0.03).unwrap();
    assert_eq!((of(1.1, true).verdict, of(1.1, false).verdict), (Verdict::Better, Verdict::Worse));
    assert_eq!((of(0.9, true).verdict, of(0.9, false).verdict), (Verdict::Worse, Verdict::Better));
    // Significant, but below the least difference that matters.
    let small = of(1.01, true);
    assert!(small.p < 0.05 && small.verdict == Verdict::NoDifference, "{small:?}");
    assert_close(of(0.5, true).ratio.median, 0.5, 1e-3);
    assert_eq!(Comparison::of(&[(0.0, 1.0)], true, 0.03), None);
}

#[test]
fn too_few_rounds_decide_nothing() {
    let verdict = |rounds| Comparison::of(&vec![(1.0, 2.0); rounds], true, 0.03).unwrap().verdict;
    assert_eq!(verdict(2), Verdict::Undecided { rounds_more: Some(4) });
    assert_eq!(verdict(5), Verdict::Undecided { rounds_more: Some(2) });
    assert_eq!(verdict(6), Verdict::Worse);
    assert_eq!(
        Comparison::of(&[(1.0, 1.0); 4], true, 0.03).unwrap().verdict,
        Verdict::Undecided { rounds_more: Some(2) }
    );
}

/// The relative error of one measurement, log-normally distributed; and the percentage of
/// measurements with five times that error, as on a shared machine.
#[derive(Clone, Copy, Debug)]
struct Noise(f64, u32);

/// Studies of this many rounds, in which the first value is `ratio` times the second.
fn studies(count: usize, rounds: usize, ratio: f64, noise: Noise) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let mut random = StdRng::seed_from_u64(7);
    let mut pair = move || {
        // The common factor of a round is in both values.
        let common = 1000.0 * (0.2 * normal(&mut random)).exp();
        (common * ratio * off(noise, &mut random), common * off(noise, &mut random))
    };
    (0..count).map(move |_| (0..rounds).map(|_| pair()).collect())
}

/// The shares of studies by verdict.
#[derive(Debug)]
struct Verdicts {
    differing: f64,
    same: f64,
    undecided: f64,
}

fn simulate(rounds: usize, ratio: f64, noise: Noise) -> Verdicts {
    const TRIALS: usize = 600;
    let mut counts = [0_usize; 3];
    for pairs in studies(TRIALS, rounds, ratio, noise) {
        let place = match Comparison::of(&pairs, true, 0.03).unwrap().verdict {
            Verdict::Better | Verdict::Worse => 0,
            Verdict::NoDifference => 1,
            Verdict::Undecided { .. } => 2,
        };
        counts[place] += 1;
    }
    let [differing, same, undecided] = counts.map(|count| count as f64 / TRIALS as f64);
    let verdicts = Verdicts { differing, same, undecided };
    println!("{rounds} rounds, ratio {ratio}, {noise:?}: {verdicts:?}");
    verdicts
}

fn off(Noise(part, wild): Noise, random: &mut StdRng) -> f64 {
    let part = if random.random_ratio(wild, 100) { 5.0 * part } else { part };
    (part * normal(random)).exp()
}

/// A normal variate by the Box-Muller transform.
fn normal(random: &mut StdRng) -> f64 {
    let (one, other): (f64, f64) = (random.random_range(f64::EPSILON..1.0), random.random());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}

#[test]
fn equal_ones_are_rarely_told_apart() {
    // Without a least difference, only the test's own error remains.
    for rounds in [6, 10, 20] {
        const TRIALS: usize = 5000;
        let p = studies(TRIALS, rounds, 1.0, Noise(0.2, 10)).map(|pairs| {
            let logarithms: Vec<f64> = pairs.iter().map(|(one, other)| (one / other).ln()).collect();
            signed_rank_p(&logarithms)
        });
        let share = p.filter(|p| *p <= 0.05).count() as f64 / TRIALS as f64;
        println!("{rounds} rounds: {share} called different");
        assert!(share <= 0.055, "{rounds} rounds: {share}");
    }
    // A verdict requires more than that.
    let usual = simulate(10, 1.0, Noise(0.02, 10));
    assert!(usual.differing <= 0.02 && usual.same >= 0.25);
    assert!(simulate(20, 1.0, Noise(0.02, 0)).same >= 0.75);
}

#[test]
fn a_difference_of_five_in_a_hundred_is_found_in_noise_of_two() {
    let ten = simulate(10, 0.95, Noise(0.02, 0));
    assert!(ten.differing >= 0.9 && ten.same <= 0.005);
    let twenty = simulate(20, 0.95, Noise(0.02, 0));
    assert!(twenty.differing >= 0.97 && twenty.undecided <= 0.03);
    // A difference is also not missed if a tenth of the figures are outliers, or rounds are few.
    assert!(simulate(20, 0.95, Noise(0.02, 10)).differing >= 0.9);
    assert!(simulate(6, 0.95, Noise(0.02, 10)).same <= 0.02);
}

/// How often the interval contains the true value, which for few rounds is less often than its
/// nominal level.
#[test]
fn intervals_hold_the_truth_about_as_often_as_they_say() {
    let mut random = StdRng::seed_from_u64(11);
    for (rounds, at_least) in [(6, 0.88), (10, 0.91), (20, 0.92)] {
        const TRIALS: usize = 600;
        let holds = |_: &usize| {
            let values: Vec<f64> = (0..rounds).map(|_| off(Noise(0.02, 10), &mut random)).collect();
            Interval::of(&values).is_some_and(|interval| interval.low <= 1.0 && interval.high >= 1.0)
        };
        let share = (0..TRIALS).filter(holds).count() as f64 / TRIALS as f64;
        println!("{rounds} rounds: {share}");
        assert!(share >= at_least, "{rounds} rounds: {share}");
    }
}

/// Measurements of `strongroom-lab prove`: work, work that takes 5 % longer, and the same work
/// again, in twenty rounds on a machine at least half busy with other load, with a random error of
/// 2 % in each measurement. Processor time for each operation, in microseconds.
const RECORDED: [[f64; 3]; 20] = [
    [764.7, 784.4, 805.0],
    [697.5, 724.5, 682.9],
    [734.2, 721.8, 735.4],
    [723.1, 757.7, 714.6],
    [671.8, 817.9, 798.5],
    [673.6, 734.4, 729.2],
    [793.9, 845.9, 908.7],
    [690.2, 756.8, 722.0],
    [723.2, 760.0, 738.0],
    [665.7, 698.1, 711.9],
    [656.4, 672.7, 667.8],
    [621.6, 705.7, 669.2],
    [695.2, 776.9, 743.9],
    [725.6, 748.1, 703.5],
    [729.9, 753.9, 714.9],
    [696.0, 773.9, 681.0],
    [742.3, 774.9, 734.2],
    [689.8, 715.5, 643.3],
    [734.1, 753.8, 676.2],
    [684.9, 692.5, 706.9],
];

#[test]
fn recorded_work_is_told_from_slower_work_and_not_from_itself() {
    let compare = |one: usize, other: usize| {
        let pairs: Vec<(f64, f64)> = RECORDED.iter().map(|round| (round[one], round[other])).collect();
        Comparison::of(&pairs, false, 0.03).unwrap()
    };
    let slower = compare(1, 0);
    assert_eq!((slower.verdict, compare(0, 1).verdict), (Verdict::Worse, Verdict::Better));
    assert!((1.02..1.08).contains(&slower.ratio.median), "{slower:?}");
    assert_eq!(compare(1, 2).verdict, Verdict::Worse);
    assert!(matches!(compare(2, 0).verdict, Verdict::Undecided { .. }));
}
