//! Power cuts beneath the `file` datastore, at every moment of a volume's life: every image opens, holds what was
//! acknowledged and flushed, and shows each sector old or new.
//!
//! The stages are the product's (bytes and sectors, cipher, file volume), the file system and the disk are simulated.
//! `cargo test -p strongroom-sim --test power_cuts -- --nocapture` prints what was done; with `--features full` it does
//! 100,000 cuts. `POWER_CUTS_SEED` is the first history's seed, otherwise 1: other seeds are other lives, and the seed that a
//! failure prints is that life again.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod faults;
mod guest;
mod history;
mod image;
mod mutations;
mod oracle;

use std::path::Path;
use std::time::Instant;

use history::{Bench, History, Sort};
use image::{Knowledge, check_image};
use mutations::Rule;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::{CreateOptions, DatastoreError, create_on};
use strongroom_sim::SimFs;
use strongroom_types::VolumeSize;

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 100_000 } else { 2_000 };
/// Of each history. One in eight of them goes on after the cut, and is cut again.
const CUTS_PER_HISTORY: usize = 100;

/// The first history's seed.
fn first_seed() -> u64 {
    std::env::var("POWER_CUTS_SEED").map_or(1, |seed| seed.parse().expect("POWER_CUTS_SEED is a number"))
}

/// How long a life is.
fn steps(seed: u64) -> usize {
    [500, 120, 900][(seed % 3) as usize]
}

#[derive(Debug, Default)]
struct Count {
    cuts: usize,
    second_cuts: usize,
    absent: usize,
    first_writes: usize,
}

/// Cuts a history at random moments. An error says how to see it again.
fn cut(
    bench: &Bench,
    history: &History,
    seed: u64,
    cuts: usize,
    again: bool,
    count: &mut Count,
) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut moments: Vec<usize> = (0..cuts).map(|_| random.random_range(0..history.fs.moments())).collect();
    moments.sort_unstable();
    let mut knowledge = Knowledge::new(history);
    for moment in moments {
        let cut_seed = random.random();
        let allowed = knowledge.go_to(moment);
        let fs = history.fs.cut_at(moment, cut_seed);
        let verdict = check_image(bench, &fs, cut_seed, history.sort, allowed, &knowledge.oracle);
        let verdict = verdict.map_err(|wrong| {
            let told = knowledge.tell(wrong.sector);
            format!("moment {moment}, cut seed {cut_seed}, {:?}: {wrong}\n{told}", history.sort)
        })?;
        count.cuts += 1;
        match verdict {
            Some(verdict) => count.first_writes += verdict.first_writes,
            None => count.absent += 1,
        }
        if again && verdict.is_none() {
            create_anew(bench, &fs, history.sort)
                .map_err(|error| format!("moment {moment}, cut seed {cut_seed}, created anew: {error}"))?;
        }
        if again && verdict.is_some() && random.random_ratio(1, 8) {
            let path = allowed.paths.iter().find(|path| fs.exists(path)).unwrap();
            let next = History::after(bench, fs.clone(), path, history.sort, cut_seed, 60);
            let mut second = Count::default();
            cut(bench, &next, cut_seed, 4, false, &mut second)
                .map_err(|what| format!("moment {moment}, cut seed {cut_seed}, and then: {what}"))?;
            count.second_cuts += second.cuts;
        }
    }
    Ok(())
}

/// Whatever is left of a volume that is not there, its name is free.
fn create_anew(bench: &Bench, fs: &SimFs, sort: Sort) -> Result<(), DatastoreError> {
    let (size, protection) = (VolumeSize::new(8192).unwrap(), sort.protection(&bench.kek));
    let made = CreateOptions {
        size,
        provisioning: sort.provisioning,
        protection,
        log_bytes: None,
        integrity: false,
    };
    for name in ["/ds/vm1", "/ds/vm2"] {
        create_on(fs, Path::new(name), &made)?;
    }
    Ok(())
}

fn history(bench: &Bench, seed: u64, rule: Option<Rule>, count: &mut Count) -> Result<(), String> {
    let history = History::of(bench, seed, steps(seed), rule);
    if let Some(wrong) = history.wrong.first().filter(|_| rule.is_none()) {
        return Err(format!("history seed {seed}: {wrong}"));
    }
    cut(bench, &history, seed, CUTS_PER_HISTORY, rule.is_none(), count)
        .map_err(|what| format!("history seed {seed}, {what}"))
}

#[test]
fn every_power_cut_leaves_what_was_promised() {
    let bench = Bench::new();
    let begun = Instant::now();
    let mut count = Count::default();
    let first_seed = first_seed();
    let mut seed = first_seed;
    while count.cuts + count.second_cuts < CUTS {
        if let Err(what) = history(&bench, seed, None, &mut count) {
            panic!("{what}");
        }
        seed += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let per_second = (count.cuts + count.second_cuts) as f64 / seconds;
    println!(
        "seeds {first_seed} to {}: {count:?} in {seconds:.1} s, {per_second:.0} cuts per second",
        seed - 1
    );
    assert!(count.absent > 0 && count.first_writes > 0, "the workload has all that it should have");
}

/// Runs histories under a broken rule until one is caught.
fn is_caught(rule: Rule) {
    let bench = Bench::new();
    let mut count = Count::default();
    let caught = (1..=40).find_map(|seed| history(&bench, seed, Some(rule), &mut count).err());
    match caught {
        Some(what) => println!("{rule:?} after {} cuts: {what}", count.cuts),
        None => panic!("{rule:?} was not noticed in {} cuts", count.cuts),
    }
}

#[test]
fn a_flush_without_fdatasync_is_caught() {
    is_caught(Rule::FlushWithoutSync);
}

#[test]
fn a_durable_write_without_dsync_is_caught() {
    is_caught(Rule::DurableWriteWithoutSync);
}

#[test]
fn a_durable_zeroing_without_its_flush_is_caught() {
    is_caught(Rule::DurableZeroWithoutSync);
}

#[test]
fn a_forgotten_flush_failure_is_caught() {
    is_caught(Rule::StickyFailureForgotten);
}

#[test]
fn a_descriptor_whose_content_is_not_synced_is_caught() {
    is_caught(Rule::DescriptorNotSynced);
}

#[test]
fn a_descriptor_that_is_replaced_in_two_steps_is_caught() {
    is_caught(Rule::DescriptorRemovedFirst);
}

#[test]
fn a_directory_that_is_not_synced_is_caught() {
    is_caught(Rule::DirectoryNotSynced);
}

#[test]
fn a_layer_whose_size_is_not_synced_is_caught() {
    is_caught(Rule::LayerNotSynced);
}

#[test]
fn a_layer_that_grows_after_its_descriptor_is_caught() {
    is_caught(Rule::LayerGrownAfterDescriptor);
}

#[test]
fn a_zeroing_that_is_acknowledged_before_it_is_done_is_caught() {
    is_caught(Rule::ZeroAcknowledgedEarly);
}

#[test]
fn a_flush_that_forgets_the_layer_is_caught() {
    is_caught(Rule::FlushForgetsLayer);
}

#[test]
fn a_flush_that_forgets_the_log_is_caught() {
    is_caught(Rule::FlushForgetsLog);
}

#[test]
fn a_destage_before_the_log_is_durable_is_caught() {
    is_caught(Rule::DestagedBeforeLogIsDurable);
}

#[test]
fn a_trim_before_the_layer_is_durable_is_caught() {
    is_caught(Rule::TrimmedBeforeLayerIsDurable);
}

#[test]
fn a_tail_that_is_not_durable_is_caught() {
    is_caught(Rule::TailNotDurable);
}

#[test]
fn a_clear_that_is_not_destaged_is_caught() {
    is_caught(Rule::ClearsNotDestaged);
}
