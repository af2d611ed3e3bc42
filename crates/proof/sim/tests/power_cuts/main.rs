//! Power cuts beneath the `file` datastore, at every moment of a volume's life: every image opens,
//! holds all acknowledged and flushed data, and shows each sector old or new.
//!
//! The stages are the product's (bytes and sectors, cipher, file volume); the file system and the
//! disk are simulated. `cargo test -p strongroom-sim --test power_cuts -- --nocapture` prints the
//! counts; with `--features full` it does 100,000 cuts. `POWER_CUTS_SEED` is the first history's
//! seed, otherwise 1: other seeds give other lives, and the seed in a failure's message repeats
//! that life.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod broken_queue;
#[path = "../support/campaign.rs"]
mod campaign;
mod clones;
mod faults;
mod guest;
mod history;
mod image;
#[path = "../../../../data-path/datastore/tests/support/interposed.rs"]
mod interposed;
mod kills;
mod knowledge;
mod mutations;
mod oracle;

use history::History;
use image::{Found, check_image};
use knowledge::{Bench, Knowledge, NAMES, Sort};
use mutations::Rule;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::{DatastoreError, create_on};
use strongroom_sim::SimFs;

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 100_000 } else { 2_000 };
/// Cuts per history. One in eight continues after the cut, and is cut again.
const CUTS_PER_HISTORY: usize = 100;

/// The number of steps of a life.
fn steps(seed: u64) -> usize {
    [500, 120, 900][(seed % 3) as usize]
}

#[derive(Debug, Default)]
struct Count {
    cuts: usize,
    second_cuts: usize,
    absent: usize,
    first_writes: usize,
    /// Cuts that left a volume of several layers.
    layered: usize,
    /// The number of new top layers on volumes in use.
    changes_over: usize,
}

/// Moments after the addition of a layer in which guests first flush over it.
const AFTER_ADDITION: usize = 60;

/// Random moments of a history, in order; one in four is during the brief addition of a layer, or
/// shortly after it.
fn moments(random: &mut StdRng, history: &History, count: usize) -> Vec<usize> {
    let last = history.fs.moments() - 1;
    let mut moments = campaign::moments(random, count, last);
    if !history.additions.is_empty() {
        for moment in moments.iter_mut().step_by(4) {
            let addition = &history.additions[random.random_range(0..history.additions.len())];
            let end = addition.end() + if random.random() { AFTER_ADDITION } else { 0 };
            *moment = random.random_range(*addition.start()..=end.min(last));
        }
        moments.sort_unstable();
    }
    moments
}

/// Cuts a history at random moments. An error says how to reproduce it.
fn cut(
    bench: &Bench,
    history: &History,
    seed: u64,
    cuts: usize,
    again: bool,
    count: &mut Count,
) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let moments = moments(&mut random, history, cuts);
    cut_at(bench, history, &moments, random, again, count)
}

/// Cuts a history at these moments, which are in order.
fn cut_at(
    bench: &Bench,
    history: &History,
    moments: &[usize],
    mut random: StdRng,
    again: bool,
    count: &mut Count,
) -> Result<(), String> {
    let mut knowledge = Knowledge::new(&history.account);
    for moment in moments.iter().copied() {
        let cut_seed = random.random();
        let allowed = knowledge.go_to(moment);
        let fs = history.fs.cut_at(moment, cut_seed);
        let found = check_image(bench, &fs, cut_seed, history.sort, allowed, &knowledge);
        let found = found
            .map_err(|wrong| format!("moment {moment}, cut seed {cut_seed}, {:?}: {wrong}", history.sort))?;
        count.cuts += 1;
        match found {
            Some(Found { layers, verdict, .. }) => {
                count.first_writes += verdict.first_writes;
                count.layered += usize::from(layers > 1);
            }
            None => count.absent += 1,
        }
        if again && found.is_none() {
            create_anew(bench, &fs, history.sort)
                .map_err(|error| format!("moment {moment}, cut seed {cut_seed}, created anew: {error}"))?;
        }
        if let Some(Found { name, .. }) = found
            && again
            && random.random_ratio(1, 8)
        {
            let next = History::after(bench, fs.clone(), name, history.sort, cut_seed, 60);
            let mut second = Count::default();
            cut(bench, &next, cut_seed, 4, false, &mut second)
                .map_err(|what| format!("moment {moment}, cut seed {cut_seed}, and then: {what}"))?;
            count.second_cuts += second.cuts;
        }
    }
    Ok(())
}

/// The name of an absent volume is free, whatever its leftovers.
fn create_anew(bench: &Bench, fs: &SimFs, sort: Sort) -> Result<(), DatastoreError> {
    for name in NAMES {
        create_on(fs, &history::path(name), &bench.create_options(sort, 8192))?;
    }
    Ok(())
}

/// A life and its cuts; returns their number.
fn live(bench: &Bench, seed: u64, rule: Option<Rule>, count: &mut Count) -> Result<usize, String> {
    let before = count.cuts + count.second_cuts;
    let history = History::of(bench, seed, steps(seed), rule);
    if let Some(wrong) = history.wrong.first().filter(|_| rule.is_none()) {
        return Err(wrong.clone());
    }
    count.changes_over += history.changes_over;
    cut(bench, &history, seed, CUTS_PER_HISTORY, rule.is_none(), count)?;
    Ok(count.cuts + count.second_cuts - before)
}

#[test]
fn every_power_cut_leaves_what_was_promised() {
    let bench = Bench::new();
    let mut count = Count::default();
    let done = campaign::until(CUTS, |seed| live(&bench, seed, None, &mut count));
    println!("{done}: {count:?}");
    assert!(
        count.absent > 0 && count.first_writes > 0 && count.layered > 0 && count.changes_over > 0,
        "the workload has all that it should have"
    );
}

/// Runs lives under a broken rule until one is caught.
fn is_caught(rule: Rule) {
    let (bench, mut count) = (Bench::new(), Count::default());
    campaign::is_caught(rule, |seed| live(&bench, seed, Some(rule), &mut count));
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
fn a_flush_that_forgets_the_layer_below_the_top_is_caught() {
    is_caught(Rule::FlushForgetsLowerLayer);
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

#[test]
fn syncs_side_by_side_where_some_are_skipped_are_caught() {
    is_caught(Rule::SyncsSideBySide);
}

#[test]
fn a_discard_before_its_record_is_durable_is_caught() {
    is_caught(Rule::DiscardRecordNotDurable);
}

#[test]
fn a_forgotten_record_of_a_discard_is_caught() {
    is_caught(Rule::DiscardRecordForgotten);
}

#[test]
fn records_of_discards_that_overwrite_each_other_are_caught() {
    is_caught(Rule::DiscardRecordsOverwrite);
}

#[test]
fn a_read_that_stops_at_the_top_layer_is_caught() {
    is_caught(Rule::ReadStopsAtTop);
}

#[test]
fn a_layer_on_one_that_is_not_durable_is_caught() {
    is_caught(Rule::OldTopNotSynced);
}

#[test]
fn a_layer_that_is_named_before_it_is_durable_is_caught() {
    is_caught(Rule::NewTopNotSynced);
}

#[test]
fn a_log_that_goes_before_the_descriptor_that_needs_none_is_caught() {
    is_caught(Rule::LogRemovedEarly);
}
