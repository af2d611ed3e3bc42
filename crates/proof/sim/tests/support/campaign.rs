//! A campaign of power cuts: its seeds, its moments, and the broken rules that it must catch.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::fmt::Debug;
use std::time::Instant;

use rand::Rng;
use rand::rngs::StdRng;

/// Lives under a broken rule, within which it must be caught. The rarest is met in the 53rd.
const BROKEN_LIVES: u64 = 120;

/// A number from the environment.
pub fn number(name: &str, otherwise: usize) -> usize {
    let number = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number"));
    std::env::var(name).map_or(otherwise, number)
}

/// The first life's seed.
pub fn first_seed() -> u64 {
    number("POWER_CUTS_SEED", 1) as u64
}

/// Runs lives until this many cuts are done: `live` takes a seed and returns its number of cuts, or
/// the problem. Returns a summary.
pub fn until(cuts: usize, mut live: impl FnMut(u64) -> Result<usize, String>) -> String {
    let begun = Instant::now();
    let (mut done, mut seed) = (0, first_seed());
    while done < cuts {
        match live(seed) {
            Ok(cuts) => done += cuts,
            Err(what) => panic!("history seed {seed}, {what}"),
        }
        seed += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let per_second = done as f64 / seconds;
    format!(
        "seeds {} to {}, {done} cuts in {seconds:.1} s, {per_second:.0} per second",
        first_seed(),
        seed - 1
    )
}

/// Runs lives under a broken rule, until one is caught.
pub fn is_caught(rule: impl Debug, mut live: impl FnMut(u64) -> Result<usize, String>) {
    let mut cuts = 0;
    for seed in 1..=BROKEN_LIVES {
        match live(seed) {
            Ok(done) => cuts += done,
            Err(what) => return println!("{rule:?} after {cuts} cuts: history seed {seed}, {what}"),
        }
    }
    panic!("{rule:?} was not noticed in {cuts} cuts");
}

/// `count` random moments from 0 to `last`, in order.
pub fn moments(random: &mut StdRng, count: usize, last: usize) -> Vec<usize> {
    let mut moments: Vec<usize> = (0..count).map(|_| random.random_range(0..=last)).collect();
    moments.sort_unstable();
    moments
}
