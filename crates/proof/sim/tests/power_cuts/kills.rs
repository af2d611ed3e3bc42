//! A volume's process is killed, a successor opens it and acknowledges requests that depend on the
//! state it finds, and only then the power is cut. The successor must make visible but non-durable
//! state durable before it acknowledges anything that depends on it. Cuts alone, however many, do
//! not test that.

use std::ops::RangeInclusive;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::{ListedVolume, list_on};
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, Extent};

use super::history::{DATASTORE, History, Successor};
use super::knowledge::{Bench, Knowledge, NAMES};
use super::mutations::Rule;
use super::{Count, campaign, cut_at, steps};

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 50_000 } else { 5_000 };
/// Kills per history.
const KILLS: usize = 24;
/// Cuts after each kill. Most successors live briefly, because losses show soon after the opening.
const CUTS_PER_KILL: usize = 8;
const STEPS_MAX: usize = 60;

/// The volume that a successor finds. `None` if there is none, or none is whole.
fn visible(fs: &SimFs) -> Option<&'static str> {
    let listed = list_on(fs, std::path::Path::new(DATASTORE)).ok()?;
    listed.into_iter().find_map(|found| match found {
        ListedVolume::Volume(volume) => NAMES.into_iter().find(|name| volume.path.ends_with(name)),
        ListedVolume::Broken { .. } => None,
    })
}

/// Random moments of a history, in order. A quarter are during changes of names or sizes, a quarter
/// during writes of the metadata of a log or of discards, and one while both superblocks of a log
/// are in flight.
fn kills(random: &mut StdRng, history: &History) -> Vec<usize> {
    let spans: Vec<_> = history.additions.iter().chain(&history.changes).cloned().collect();
    among(random, KILLS, &history.fs, &spans)
}

/// The same after a kill; here the successor's opening counts as a change.
fn cuts(random: &mut StdRng, next: &History) -> Vec<usize> {
    let mut spans = next.changes.clone();
    spans.push(0..=next.opened);
    among(random, CUTS_PER_KILL, &next.fs, &spans)
}

fn among(random: &mut StdRng, count: usize, fs: &SimFs, spans: &[RangeInclusive<usize>]) -> Vec<usize> {
    let [even, odd] =
        [0, BLOCK_BYTES].map(|at| fs.moments_unsettled("log-", Extent::between(at, at + BLOCK_BYTES)));
    let discards = fs.moments_unsettled("discards-", Extent::between(0, u64::MAX));
    let both: Vec<_> = even.iter().filter(|moment| odd.contains(moment)).copied().collect();
    let unsettled = [even, odd, discards].concat();
    let mut moments = campaign::moments(random, count, fs.moments() - 1);
    for (number, moment) in moments.iter_mut().enumerate() {
        let among = match number % 4 {
            0 if !spans.is_empty() => {
                let span = spans[random.random_range(0..spans.len())].clone();
                *moment = random.random_range(span);
                continue;
            }
            1 => &unsettled,
            2 => &both,
            _ => continue,
        };
        if !among.is_empty() {
            *moment = among[random.random_range(0..among.len())];
        }
    }
    moments.sort_unstable();
    moments
}

/// A life whose process is killed at random moments, with power cuts under each successor.
fn live(bench: &Bench, seed: u64, rule: Option<Rule>, count: &mut Count) -> Result<usize, String> {
    let before = count.cuts;
    let history = History::of(bench, seed, steps(seed), None);
    let mut random = StdRng::seed_from_u64(seed);
    let mut knowledge = Knowledge::new(&history.account);
    for moment in kills(&mut random, &history) {
        let kill_seed = random.random();
        let allowed = knowledge.go_to(moment);
        let fs = history.fs.killed_at(moment, kill_seed);
        let said =
            |what: String| format!("moment {moment}, kill seed {kill_seed}, {:?}: {what}", history.sort);
        let Some(name) = visible(&fs) else {
            let may_be_absent = allowed.absent || allowed.remains;
            if may_be_absent { continue } else { return Err(said("the volume is gone".to_owned())) }
        };
        // Every other successor only opens and closes it.
        let steps = if random.random() { 0 } else { random.random_range(0..=STEPS_MAX) };
        let successor = Successor { sort: history.sort, seed: kill_seed, steps, rule };
        let next =
            History::after_kill(bench, fs, name, &knowledge.oracle, allowed, successor).map_err(said)?;
        if let Some(wrong) = next.wrong.first() {
            return Err(said(wrong.clone()));
        }
        let moments = cuts(&mut random, &next);
        cut_at(bench, &next, &moments, StdRng::seed_from_u64(kill_seed), false, count).map_err(said)?;
    }
    Ok(count.cuts - before)
}

#[test]
fn what_is_acknowledged_after_a_kill_outlives_a_power_cut() {
    let (bench, mut count) = (Bench::new(), Count::default());
    let done = campaign::until(CUTS, |seed| live(&bench, seed, None, &mut count));
    println!("{done}: {count:?}");
    assert!(count.first_writes > 0 && count.layered > 0, "the workload has all that it should have");
}

/// Runs lives with a successor that breaks a rule until one is caught.
fn is_caught(rule: Rule) {
    let (bench, mut count) = (Bench::new(), Count::default());
    campaign::is_caught(rule, |seed| live(&bench, seed, Some(rule), &mut count));
}

#[test]
fn an_open_that_skips_the_directorys_sync_is_caught() {
    is_caught(Rule::OpenedWithoutDirectorySync);
}

#[test]
fn an_open_that_skips_the_datastores_sync_is_caught() {
    is_caught(Rule::OpenedWithoutDatastoreSync);
}

#[test]
fn an_open_that_relies_on_a_found_log_is_caught() {
    is_caught(Rule::FoundLogNotSynced);
}

#[test]
fn an_open_that_relies_on_a_closed_log_is_caught() {
    is_caught(Rule::ClosedLogNotSynced);
}

#[test]
fn an_open_that_relies_on_a_found_record_of_discards_is_caught() {
    is_caught(Rule::FoundDiscardsNotSynced);
}
