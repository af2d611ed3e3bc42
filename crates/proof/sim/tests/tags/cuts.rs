//! Power cuts at every moment: every flushed block verifies and reads correctly, blocks in flight
//! are adopted, and there are no false alarms.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::Access;
use strongroom_io::Disk;
use strongroom_keys::Kek;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{BLOCK_BYTES, Extent};

use super::campaign;
use super::history::{ALL_KNOWN, History, LARGE_EVERY, Life};
use super::mutations::Rule;
use super::oracle::Oracle;
use super::volume::*;

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 20_000 } else { 800 };
/// Cuts per history. One in ten continues after the cut, and is cut again.
const CUTS_PER_HISTORY: usize = 60;
const STEPS: usize = 400;

#[derive(Debug, Default)]
struct Count {
    cuts: usize,
    second_cuts: usize,
    adopted: u64,
    verified: u64,
    /// Cuts that left unsettled blocks.
    unsettled: usize,
}

/// Opens the state after a cut and reads all of it; the oracle learns the content.
fn check(kek: &Kek, fs: &SimFs, oracle: &mut Oracle, count: &mut Count) -> Result<(), String> {
    let mut volume = open_volume(fs, kek, Access::ReadWrite).map_err(|error| error.to_string())?;
    let tags = tags_over(volume.disk.clone(), &mut volume);
    let unsettled = tags.counts().unsettled_regions;
    count.unsettled += usize::from(unsettled > 0);
    let size_bytes = tags.limits().size_bytes;
    let mut queue = Queue::on(fs, &tags);
    for run in oracle.touched() {
        let read = queue.read(blocks(run.start, run.end - run.start));
        let content = read.map_err(|error| format!("blocks {run:?}: {error}"))?;
        for (block, content) in run.zip(content.chunks(BLOCK)) {
            if !oracle.allows(block, content) {
                return Err(format!("block {block} shows what it may not"));
            }
            oracle.settle(block, content);
        }
    }
    // The other blocks are absent, and read as zeroes.
    let rest = if size_bytes < 4 << 20 { 0 } else { size_bytes };
    for at in (rest..size_bytes).step_by(1 << 20) {
        let extent = Extent::between(at, (at + (1 << 20)).min(size_bytes));
        queue.read(extent).map_err(|error| error.to_string())?;
    }
    let seen = tags.counts();
    count.adopted += seen.adopted;
    count.verified += seen.verified;
    Ok(())
}

/// Checks that only unflushed blocks are adopted.
fn adopts_only_what_was_in_flight(kek: &Kek, fs: &SimFs, oracle: &Oracle) -> Result<(), String> {
    let mut volume = open_volume(fs, kek, Access::ReadOnly).map_err(|error| error.to_string())?;
    let tags = tags_over(volume.disk.clone(), &mut volume);
    let mut queue = Queue::on(fs, &tags);
    // All of a small volume, so that untouched blocks are not adopted either.
    let size_blocks = tags.limits().size_bytes / BLOCK_BYTES;
    let all = (0..size_blocks).step_by(128).map(|first| first..size_blocks.min(first + 128));
    let runs = if size_blocks <= ALL_KNOWN { all.collect() } else { oracle.touched() };
    for run in runs {
        let read = queue.read(blocks(run.start, run.end - run.start));
        read.map_err(|error| format!("blocks {run:?}, read only: {error}"))?;
    }
    let adopted = tags.counts().adopted;
    if adopted as usize > oracle.unsettled() {
        return Err(format!("{adopted} blocks do not match; {} were not flushed", oracle.unsettled()));
    }
    Ok(())
}

/// Cuts a history at random moments. An error says how to reproduce it.
fn cut(
    kek: &Kek,
    history: &History,
    seed: u64,
    cuts: usize,
    again: bool,
    count: &mut Count,
) -> Result<(), String> {
    if let Some(wrong) = history.wrong.first() {
        return Err(wrong.clone());
    }
    let mut random = StdRng::seed_from_u64(seed);
    let last = history.fs.moments() - 1;
    let mut moments = campaign::moments(&mut random, cuts, last);
    moments.extend(history.said.iter().flat_map(|at| at + 1..=at + 8).filter(|moment| *moment <= last));
    moments.sort_unstable();
    let mut oracle = history.first.clone();
    let mut events = history.events.iter().peekable();
    for moment in moments {
        while let Some((_, event)) = events.next_if(|(at, _)| *at <= moment) {
            oracle.apply(event);
        }
        let cut_seed = random.random();
        let fs = history.fs.cut_at(moment, cut_seed);
        let mut known = oracle.clone();
        let failed = |what| format!("moment {moment}, cut seed {cut_seed}: {what}");
        adopts_only_what_was_in_flight(kek, &fs, &oracle).map_err(failed)?;
        check(kek, &fs, &mut known, count).map_err(failed)?;
        count.cuts += 1;
        if again && random.random_ratio(1, 10) {
            fs.record();
            let life = StdRng::seed_from_u64(cut_seed);
            let next = Life::new(kek, fs, life, None, Faults::default(), known, 1 << 24).lived(120);
            let mut second = Count::default();
            cut(kek, &next, cut_seed, 5, false, &mut second)
                .map_err(|what| failed(format!("and then: {what}")))?;
            count.second_cuts += second.cuts;
            count.adopted += second.adopted;
        }
    }
    Ok(())
}

/// A life and its cuts; returns their number.
fn live(kek: &Kek, seed: u64, rule: Option<Rule>, count: &mut Count) -> Result<usize, String> {
    let before = count.cuts + count.second_cuts;
    let history = History::of(kek, seed, STEPS, rule, Faults::default());
    cut(kek, &history, seed, CUTS_PER_HISTORY, rule.is_none(), count)?;
    Ok(count.cuts + count.second_cuts - before)
}

#[test]
fn no_power_cut_makes_a_false_alarm() {
    let (kek, mut count) = (kek(), Count::default());
    let done = campaign::until(CUTS, |seed| live(&kek, seed, None, &mut count));
    println!("{done}: {count:?}");
    assert!(count.adopted > 0 && count.unsettled > 0 && count.unsettled < count.cuts, "{count:?}");
}

/// A disk that sometimes fails requests, with failed writes partially done: that causes no alarm,
/// before or after a cut.
#[test]
fn no_failure_makes_a_false_alarm() {
    let kek = kek();
    let mut count = Count::default();
    for seed in 1..=20 {
        let one_in = 12;
        let faults = match seed % 3 {
            0 => Faults { read_error_one_in: one_in, ..Faults::default() },
            1 => Faults { write_error_one_in: one_in, ..Faults::default() },
            _ => Faults { sync_error_one_in: one_in, write_error_one_in: one_in, ..Faults::default() },
        };
        let history = History::of(&kek, seed, STEPS, None, faults);
        if let Err(what) = cut(&kek, &history, seed, 10, false, &mut count) {
            panic!("history seed {seed}, {what}");
        }
    }
    println!("{count:?}");
    assert!(count.adopted > 0);
}

/// A datastore that fills up: writes without room for their blocks or tags fail, and no flush of
/// acknowledged writes does.
#[test]
fn a_full_datastore_fails_writes_and_no_flush() {
    let kek = kek();
    let mut count = Count::default();
    let mut refused = 0;
    for seed in 1..=20 {
        let history = History::in_room_of(&kek, seed, STEPS, (6 + seed % 20) << 12);
        refused += history.refused;
        if let Err(what) = cut(&kek, &history, seed, 10, false, &mut count) {
            panic!("history seed {seed}, {what}");
        }
    }
    println!("{refused} refused, {count:?}");
}

/// A disk that corrupts or misdirects writes, in the layer and in the sidecar: every read is
/// correct or fails. The same life without tags reads data that was never written there.
#[test]
fn a_lying_disk_is_never_believed() {
    let kek = kek();
    let (mut detected, mut believed) = (0, 0);
    for seed in 1..=30 {
        let one_in = 5;
        let faults = match seed % 2 {
            0 => Faults { corrupt_one_in: one_in, ..Faults::default() },
            _ => Faults { misdirect_one_in: one_in, ..Faults::default() },
        };
        let history = History::of(&kek, seed, 3 * STEPS, None, faults);
        assert_eq!(history.wrong, [""; 0], "history seed {seed}");
        detected += history.detected;
        believed += History::without_tags(&kek, seed, 3 * STEPS, faults).wrong.len();
    }
    println!("{detected} reads detected with tags, {believed} wrong ones believed without");
    assert!(detected > 100 && believed > 100, "{detected} and {believed}");
}

/// Runs histories under a broken rule until one is caught.
fn is_caught(rule: Rule) {
    let (kek, mut count) = (kek(), Count::default());
    campaign::is_caught(rule, |seed| live(&kek, seed, Some(rule), &mut count));
}

#[test]
fn a_mark_that_is_not_durable_is_caught() {
    is_caught(Rule::MarkNotDurable);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make power-cuts")]
fn a_mark_that_is_not_waited_for_is_caught() {
    is_caught(Rule::MarkNotAwaited);
}

#[test]
fn a_region_without_a_mark_is_caught() {
    is_caught(Rule::NoMarks);
}

#[test]
fn a_flush_that_forgets_to_sync_the_tags_is_caught() {
    is_caught(Rule::TagsNotSynced);
}

#[test]
fn a_flush_that_forgets_tags_in_memory_is_caught() {
    is_caught(Rule::TagsNotWritten);
}

#[test]
fn a_flush_that_forgets_the_data_is_caught() {
    is_caught(Rule::DataNotSynced);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make power-cuts")]
fn syncs_side_by_side_where_some_are_skipped_are_caught() {
    // In a life with more than one region, where marks are written while tags are synced.
    let (kek, mut count) = (kek(), Count::default());
    let rule = Rule::SyncsSideBySide;
    campaign::is_caught(rule, |seed| live(&kek, LARGE_EVERY * seed, Some(rule), &mut count));
}

#[test]
fn a_flush_that_does_not_say_which_tags_there_are_is_caught() {
    is_caught(Rule::PresenceNotSaid);
}

#[test]
fn a_flush_that_does_not_say_durably_which_tags_there_are_is_caught() {
    is_caught(Rule::PresenceNotDurable);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make power-cuts")]
fn a_discard_that_leaves_tags_is_caught() {
    is_caught(Rule::PresenceKeptByDiscard);
}
