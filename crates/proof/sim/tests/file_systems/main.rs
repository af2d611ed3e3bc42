//! Power cuts beneath ext4, XFS and btrfs themselves.
//!
//! A volume lives on a real file system, whose device records every request. The device is then cut
//! at any moment: it holds everything before the last flush, and any part of the rest, torn at 512
//! bytes. The file system is mounted again, which replays its journal, and the volume is checked
//! against the acknowledged requests.
//!
//! A slice on ext4 runs with all other tests where possible (`slice`): a cut right after each
//! acknowledgement, and then a hundred random cuts. `scripts/test-power-cuts` runs everything: it
//! needs root for the mounts, and the programs that the script names. `POWER_CUTS` is the number of
//! cuts for each file system, and `POWER_CUTS_SEED` the first seed. A seed repeats the same
//! requests and cuts, but the kernel's threads run in their own order; so a wrong image is kept in
//! `POWER_CUTS_KEEP`.
//!
//! The guest, the oracle and the knowledge of a life are those of the simulated power cuts,
//! `tests/power_cuts`. From the bottom up: `write_log` reads a device's requests, `image` is its
//! content, `cut` the content after a cut; `file_system` makes and mounts file systems, and
//! `recorder` records one; `life` is the life of a volume, `survey` checks the state after a cut,
//! and `trial` repeats this; `promises` tests acknowledgements one by one. `first_writes` and
//! `syncs` test the promises of the file systems alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod broken;
#[path = "../support/campaign.rs"]
mod campaign;
mod cut;
mod file_system;
mod first_writes;
mod full;
#[path = "../power_cuts/guest.rs"]
mod guest;
mod image;
#[path = "../../../../data-path/datastore/tests/support/interposed.rs"]
mod interposed;
#[path = "../power_cuts/knowledge.rs"]
mod knowledge;
mod life;
#[path = "../power_cuts/oracle.rs"]
mod oracle;
mod promises;
mod recorder;
mod slice;
mod survey;
mod syncs;
mod trial;
mod write_log;

use std::time::Instant;

use broken::Rule;
use campaign::{first_seed, number};
use file_system::{BTRFS, EXT4, FileSystem, XFS};
use trial::Trial;

/// Lives under a broken rule, within which it must be caught.
const BROKEN_LIVES: u64 = 20;

/// Cuts for each file system.
fn cuts() -> usize {
    number("POWER_CUTS", 300)
}

fn every_power_cut_leaves_what_was_promised(file_system: &'static FileSystem) {
    let begun = Instant::now();
    let mut trial = Trial::new(file_system);
    let mut seed = first_seed();
    let wrong = |what: String| -> () { panic!("{}: {what}", file_system.name) };
    trial.live_prefix_by_prefix(seed).unwrap_or_else(wrong);
    while trial.count.cuts + trial.count.second_cuts < cuts() {
        trial.live(seed, None).unwrap_or_else(wrong);
        seed += 1;
    }
    let (count, seconds) = (&trial.count, begun.elapsed().as_secs_f64());
    let seeds = format!("seeds {} to {}", first_seed(), seed - 1);
    println!("{}, {seeds}: {count:?} in {seconds:.1} s", file_system.name);
}

/// Breaks a rule in life after life until a test detects it.
fn is_caught(rule: Rule) {
    let file_systems = match rule {
        // On btrfs a durable write is a write and a sync, so this rule does not apply.
        Rule::DurableWriteWithoutSync => &[&EXT4, &XFS][..],
        Rule::FlushWithoutSync | Rule::DeviceForgetsFlush => &[&EXT4, &XFS, &BTRFS],
    };
    for file_system in file_systems {
        let mut trial = Trial::new(file_system);
        let caught = (1..=BROKEN_LIVES).find_map(|seed| trial.live(seed, Some(rule)).err());
        match caught {
            Some(what) => println!("{rule:?}, {}, after {} cuts: {what}", file_system.name, trial.count.cuts),
            None => panic!("{rule:?} on {} was not noticed in {} cuts", file_system.name, trial.count.cuts),
        }
    }
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn every_power_cut_leaves_what_was_promised_on_ext4() {
    every_power_cut_leaves_what_was_promised(&EXT4);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn every_power_cut_leaves_what_was_promised_on_xfs() {
    every_power_cut_leaves_what_was_promised(&XFS);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn every_power_cut_leaves_what_was_promised_on_btrfs() {
    every_power_cut_leaves_what_was_promised(&BTRFS);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn a_flush_without_fdatasync_is_caught() {
    is_caught(Rule::FlushWithoutSync);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn a_durable_write_without_dsync_is_caught() {
    is_caught(Rule::DurableWriteWithoutSync);
}

#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn a_device_that_forgets_a_flush_is_caught() {
    is_caught(Rule::DeviceForgetsFlush);
}
