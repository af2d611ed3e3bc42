//! Checks that the resources of processes stay flat.
//!
//! A process grows at first, as it touches its buffers and fills its caches. So each is judged
//! after a warm-up, by the medians of the first and the last quarter of the rest of its life, which
//! single peaks do not affect. Two kinds of growth are measured:
//!
//! - **within a life**, except for one step: the worst of a few lives, the median of many. That
//!   finds a leak of 2 KiB a second in a process that lives for an hour, and one of some 8 KiB a
//!   second in workers that are replaced every few minutes.
//! - **over successors**: their resources at the same age, the first quarter against the last. That
//!   finds growth in state that is passed from one to the next.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::meter::{Role, Sample};

/// The limits, with their reasons.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// The part of a process's life that is not judged. Workers have touched all of their buffers
    /// and their guest's rings within seconds of load, supervisors all of their code in the first
    /// round of events.
    pub warm_up_seconds: f64,
    /// A worker's one-time step: when a front end reconnects, its session and queues run on fresh
    /// threads, which touch their stacks and an arena of the allocator. Afterwards memory stays
    /// there. An hour of five kinds of volumes showed 0.8 to 2.2 MiB, between the 12th second of a
    /// life and the 320th.
    pub step_bytes: (f64, f64),
    /// The allowance within a life beside that, if few are judged: rarely there is a second step.
    pub allowance_bytes: f64,
    /// The allowance within the median life of four or more.
    pub median_allowance_bytes: f64,
    /// The additional rate within a life: a quarter of the smallest leak that must be found in an
    /// hour, 2 KiB a second.
    pub rate_bytes: f64,
    /// The mean growth of I/O buffers within a life: each thread's pool takes and returns chunks of
    /// 2 MiB depending on request sizes, so it varies by a few of them at any time.
    pub allowance_pool_bytes: f64,
    /// Descriptors within a life: a sample may include a command's connection and a key's pipe, one
    /// of each.
    pub allowance_descriptors: f64,
    /// Threads within a life: io_uring's workers come and go with the load, and count as the
    /// process's.
    pub allowance_threads: f64,
    /// The allowance over successors at the same age, because their load differs.
    pub successor_bytes: f64,
    /// The same for descriptors, whose initial number must not grow.
    pub successor_descriptors: f64,
}

impl Limits {
    /// The limits for a soak of this many seconds.
    pub fn for_seconds(seconds: f64) -> Self {
        Self {
            warm_up_seconds: (seconds / 20.0).clamp(2.0, 60.0),
            step_bytes: (600.0 * 1024.0, 2.5 * 1024.0 * 1024.0),
            allowance_bytes: 2.5 * 1024.0 * 1024.0,
            median_allowance_bytes: 512.0 * 1024.0,
            rate_bytes: 512.0,
            allowance_pool_bytes: 8.0 * 1024.0 * 1024.0,
            allowance_descriptors: 2.0,
            allowance_threads: 8.0,
            successor_bytes: 2.5 * 1024.0 * 1024.0,
            successor_descriptors: 1.0,
        }
    }
}

/// Fewer samples of a life after the warm-up are not judged.
const SAMPLES_MIN: usize = 8;
/// On a busy machine, a quarter of less than this may consist of one command with its descriptors.
const JUDGED_SECONDS_MIN: f64 = 60.0;
/// A step is measured between the medians of this many samples on each side.
const STEP_SAMPLES: usize = 3;
/// With so many lives, a step in a few does not affect the median.
const MEDIAN_LIVES_MIN: usize = 4;
/// Fewer successors are not judged.
const LIVES_MIN: usize = 8;

/// The verdict on the processes of one role of one volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The volume.
    pub volume: String,
    /// The role.
    pub role: Role,
    /// The number of processes.
    pub processes: usize,
    /// The number that lived long enough to be judged.
    pub judged: usize,
    /// Their total life in seconds, including the warm-up.
    pub lived_seconds: f64,
    /// Private memory after the warm-up of the first process, and at the end of the last.
    pub anonymous_bytes: (f64, f64),
    /// As above, without buffers for I/O.
    pub beside_pools_bytes: (f64, f64),
    /// As above: the process's share of all that it uses.
    pub proportional_bytes: (f64, f64),
    /// Descriptors, at the same two times.
    pub descriptors: (f64, f64),
    /// Threads, at the same two times.
    pub threads: (f64, f64),
    /// The mean growth of buffers within a life.
    pub growth_pool_bytes: f64,
    /// The growth of other memory, except a step, within the worst of a few lives or the median of
    /// many.
    pub growth_bytes: f64,
    /// The allowed growth.
    pub allowed_bytes: f64,
    /// The largest growth of descriptors within a life.
    pub growth_descriptors: f64,
    /// The growth from the first to the last successors at the same age; `None` if there were too
    /// few.
    pub successor_growth_bytes: Option<f64>,
    /// The same for descriptors.
    pub successor_growth_descriptors: Option<f64>,
    /// The violations; empty if everything is flat.
    pub wrong: Vec<String>,
}

type Life<'samples> = Vec<&'samples Sample>;

/// Judges all processes.
pub fn judge(samples: &[Sample], limits: &Limits) -> Vec<Verdict> {
    let mut groups: BTreeMap<(String, Role), Vec<Life<'_>>> = BTreeMap::new();
    for sample in samples {
        let lives = groups.entry((sample.volume.clone(), sample.role)).or_default();
        let who = |life: &Life<'_>| life.first().map(|first| (first.pid, first.birth_ticks));
        match lives.iter_mut().rev().find(|life| who(life) == Some((sample.pid, sample.birth_ticks))) {
            Some(life) => life.push(sample),
            None => lives.push(vec![sample]),
        }
    }
    groups.into_iter().map(|((volume, role), lives)| verdict(volume, role, &lives, limits)).collect()
}

fn verdict(volume: String, role: Role, lives: &[Life<'_>], limits: &Limits) -> Verdict {
    let grown: Vec<Life<'_>> = lives.iter().map(|life| after(life, limits.warm_up_seconds)).collect();
    let judged: Vec<&Life<'_>> = grown
        .iter()
        .filter(|life| life.len() >= SAMPLES_MIN && span_seconds(life) >= JUDGED_SECONDS_MIN)
        .collect();
    let (mut growths, mut times) = (Vec::new(), Vec::new());
    let mut growth_pool_bytes = 0.0;
    let (mut growth_descriptors, mut growth_threads) = (0.0_f64, 0.0_f64);
    for life in &judged {
        growths.push(growth_beside_a_step(life, limits.step_bytes.0..=limits.step_bytes.1));
        growth_pool_bytes += growth(life, pools) / judged.len() as f64;
        times.push(growth(life, |sample| sample.seconds));
        growth_descriptors = growth_descriptors.max(low_growth(life, descriptors));
        growth_threads = growth_threads.max(low_growth(life, |sample| sample.threads as f64));
    }
    // The worst of a few, the median of many.
    let is_many = judged.len() >= MEDIAN_LIVES_MIN;
    let typical = |values: Vec<f64>| match is_many {
        true => median(values),
        false => values.into_iter().reduce(f64::max).unwrap_or_default(),
    };
    let allowance = if is_many { limits.median_allowance_bytes } else { limits.allowance_bytes };
    let growth_bytes = typical(growths);
    let allowed_bytes = allowance + limits.rate_bytes * typical(times);
    let successor_growth_bytes = over_successors(lives, limits, memory);
    let successor_growth_descriptors = over_successors(lives, limits, descriptors);
    let mut wrong = Vec::new();
    let mut judge = |what: &str, growth: Option<f64>, allowed: f64| {
        if let Some(growth) = growth.filter(|growth| *growth > allowed) {
            wrong.push(format!("{what} grew by {growth:.0}, and {allowed:.0} are allowed"));
        }
    };
    judge("memory within a life, in bytes,", Some(growth_bytes), allowed_bytes);
    judge("buffers within a life, in bytes,", Some(growth_pool_bytes), limits.allowance_pool_bytes);
    judge("descriptors within a life", Some(growth_descriptors), limits.allowance_descriptors);
    judge("threads within a life", Some(growth_threads), limits.allowance_threads);
    judge("memory over successors, in bytes,", successor_growth_bytes, limits.successor_bytes);
    judge("descriptors over successors", successor_growth_descriptors, limits.successor_descriptors);
    let first = grown.iter().find(|life| !life.is_empty()).or(lives.first());
    let last = grown.iter().rev().find(|life| !life.is_empty()).or(lives.last());
    let ends = |of: fn(&Sample) -> f64| {
        let first = first.map_or(0.0, |life| quarters(life, of).0);
        (first, last.map_or(0.0, |life| quarters(life, of).1))
    };
    let lived = |life: &Life<'_>| life.last().map_or(0.0, |last| last.seconds - life[0].seconds);
    Verdict {
        volume,
        role,
        processes: lives.len(),
        judged: judged.len(),
        lived_seconds: lives.iter().map(lived).sum(),
        anonymous_bytes: ends(|sample| sample.anonymous_bytes as f64),
        beside_pools_bytes: ends(memory),
        proportional_bytes: ends(|sample| sample.proportional_bytes as f64),
        descriptors: ends(descriptors),
        threads: ends(|sample| sample.threads as f64),
        growth_pool_bytes,
        growth_bytes,
        allowed_bytes,
        growth_descriptors,
        successor_growth_bytes,
        successor_growth_descriptors,
        wrong,
    }
}

/// Memory without the buffers, if these are known.
fn memory(sample: &Sample) -> f64 {
    sample.anonymous_bytes as f64 - pools(sample)
}

fn pools(sample: &Sample) -> f64 {
    sample.huge_bytes.unwrap_or(sample.anonymous_bytes) as f64
}

fn descriptors(sample: &Sample) -> f64 {
    sample.descriptors.unwrap_or_default() as f64
}

/// From the first sample to the last.
fn span_seconds(life: &Life<'_>) -> f64 {
    life.first().zip(life.last()).map_or(0.0, |(first, last)| last.seconds - first.seconds)
}

/// A life from this age on.
fn after<'samples>(life: &Life<'samples>, seconds: f64) -> Life<'samples> {
    let start = life.first().map_or(0.0, |first| first.seconds + seconds);
    life.iter().copied().filter(|sample| sample.seconds >= start).collect()
}

fn growth(life: &Life<'_>, of: impl Fn(&Sample) -> f64) -> f64 {
    let (first, last) = quarters(life, of);
    last - first
}

/// The growth of memory, without its largest step of an allowed height.
fn growth_beside_a_step(life: &Life<'_>, allowed_bytes: RangeInclusive<f64>) -> f64 {
    let mut values: Vec<f64> = life.iter().map(|sample| memory(sample)).collect();
    // Measured by medians, so that a peak is not a step.
    let height = |at: usize| {
        let level = |part: &[f64]| median(part.to_vec());
        level(&values[at..at + STEP_SAMPLES]) - level(&values[at - STEP_SAMPLES..at])
    };
    let places = STEP_SAMPLES..(values.len() + 1).saturating_sub(STEP_SAMPLES);
    let steps = places.map(|at| (at, height(at))).filter(|(_, height)| allowed_bytes.contains(height));
    if let Some((at, height)) = steps.max_by(|one, other| one.1.total_cmp(&other.1)) {
        values[at..].iter_mut().for_each(|value| *value -= height);
    }
    let (first, last) = quarters_of(&values);
    last - first
}

/// The growth from the minimum of the first quarter to that of the last, which ignores temporary
/// use.
fn low_growth(life: &[&Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let quarter = life.len().div_ceil(4);
    let least = |part: &[&Sample]| part.iter().map(|sample| of(sample)).reduce(f64::min).unwrap_or_default();
    least(&life[life.len() - quarter..]) - least(&life[..quarter])
}

/// The medians of the first and the last quarter.
fn quarters(life: &[&Sample], of: impl Fn(&Sample) -> f64) -> (f64, f64) {
    quarters_of(&life.iter().map(|sample| of(sample)).collect::<Vec<_>>())
}

fn quarters_of(values: &[f64]) -> (f64, f64) {
    let quarter = values.len().div_ceil(4);
    (median(values[..quarter].to_vec()), median(values[values.len() - quarter..].to_vec()))
}

/// The growth at the age of the warm-up: the median of the last quarter of lives that reached it,
/// minus that of the first.
fn over_successors(lives: &[Life<'_>], limits: &Limits, of: fn(&Sample) -> f64) -> Option<f64> {
    let at_age = |life: &Life<'_>| after(life, limits.warm_up_seconds).first().map(|sample| of(sample));
    let values: Vec<f64> = lives.iter().filter_map(at_age).collect();
    if values.len() < LIVES_MIN {
        return None;
    }
    let quarter = values.len() / 4;
    Some(median(values[values.len() - quarter..].to_vec()) - median(values[..quarter].to_vec()))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Supervisor => "supervisor",
            Role::Worker => "worker",
        };
        let mib = |bytes: f64| bytes / (1 << 20) as f64;
        let pair = |(first, last): (f64, f64)| format!("{:.2} -> {:.2}", mib(first), mib(last));
        let count = |(first, last): (f64, f64)| format!("{first:.0} -> {last:.0}");
        write!(
            f,
            "{:<9}{:<11}{:>4}{:>7}{:>10.0}  {:<17}{:<15}{:<17}{:<12}{:<11}{:>7.2}/{:<7.2}{}",
            self.volume,
            role,
            self.processes,
            self.judged,
            self.lived_seconds,
            pair(self.anonymous_bytes),
            pair(self.beside_pools_bytes),
            pair(self.proportional_bytes),
            count(self.descriptors),
            count(self.threads),
            mib(self.growth_bytes),
            mib(self.allowed_bytes),
            if self.wrong.is_empty() { "flat" } else { "NOT FLAT" }
        )
    }
}

#[cfg(test)]
#[path = "flat_tests.rs"]
mod tests;
