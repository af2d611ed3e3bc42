//! A fuzzer plays an attacker who can write to the datastore: every file of a VM and of its volumes
//! is edited, swapped, put back to an earlier state, linked, blanked, cut, extended, or removed.
//! Then the product does its everyday operations. Each operation either refuses, or keeps the
//! promises in `docs/THREAT_MODEL.md`:
//!
//! - no file has data in the clear that a guest writes or has written (`operations::Round::watch`);
//! - no plain text of the attacker's choice, and none of another volume, is read from a disk;
//! - data with tags (`--integrity`, streams) reads as some earlier content, or fails to read;
//! - no volume takes another one's place, and no old descriptor a newer one's
//!   (`operations::Volume::open`);
//! - nothing outside the datastore, and nothing behind a symbolic link, is changed;
//! - a configuration that its supervisor did not attest raises an objection;
//! - nothing panics, and every operation ends.
//!
//! Each deviation without a promise is let pass at one place, which `operations` marks with `Left`.
//!
//! `cargo test -p strongroom-hostd --test datastore_fuzz -- --nocapture` runs a few rounds and
//! prints their outcomes; `make attacks` runs 10,000. `ATTACK_ROUNDS` sets the number of rounds,
//! and `ATTACK_SEED` the first seed. A failure prints its seed: `ATTACK_ROUNDS=1 ATTACK_SEED=n`
//! repeats that round alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod attacks;
mod operations;
mod site;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use attacks::Attack;
use operations::Round;
use site::Site;

/// Longer than any round takes, even on a busy machine: a round that has not ended by then hangs.
const DEADLINE: Duration = Duration::from_secs(120);
const ROUNDS: u64 = 20;
/// The most memory that the process may use, whatever is in the datastore.
const MEMORY_MIB_MAX: u64 = 1024;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The outcomes of all rounds.
#[derive(Default)]
struct Count {
    attacks: BTreeMap<&'static str, u64>,
    outcomes: BTreeMap<String, u64>,
}

#[test]
fn whatever_the_datastores_writer_does_is_refused_or_as_the_model_says() {
    let site = Arc::new(Site::make());
    let (first, rounds) = (number("ATTACK_SEED", 1), number("ATTACK_ROUNDS", ROUNDS));
    let mut count = Count::default();
    for seed in first..first + rounds {
        let said = Arc::new(Mutex::new(Vec::new()));
        let (site, saying) = (Arc::clone(&site), Arc::clone(&said));
        let (done, ended) = channel();
        let round = std::thread::spawn(move || {
            let outcome = attack(&site, seed, &saying);
            let _ = done.send(outcome);
        });
        let heard = ended.recv_timeout(DEADLINE);
        let told = || said.lock().join("\n  ");
        match heard {
            Ok(Ok((attacks, outcomes))) => {
                round.join().unwrap();
                attacks.into_iter().for_each(|attack| *count.attacks.entry(attack).or_default() += 1);
                outcomes.into_iter().for_each(|outcome| *count.outcomes.entry(outcome).or_default() += 1);
            }
            Ok(Err(wrong)) => panic!("seed {seed}: {wrong}\n  {}", told()),
            Err(RecvTimeoutError::Timeout) => panic!("seed {seed} hangs\n  {}", told()),
            Err(RecvTimeoutError::Disconnected) => panic!("seed {seed} panics\n  {}", told()),
        }
    }
    for (what, times) in count
        .attacks
        .iter()
        .map(|(what, times)| ((*what).to_owned(), times))
        .chain(count.outcomes.iter().map(|(what, times)| (what.clone(), times)))
    {
        println!("{times:>8} {what}");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("{rounds} rounds, at most {} MiB in memory", peak_kib >> 10);
    assert!(peak_kib >> 10 < MEMORY_MIB_MAX, "{} MiB in memory", peak_kib >> 10);
    if rounds >= ROUNDS {
        let of = |what: &str| count.outcomes.get(what).copied().unwrap_or_default();
        assert!(of("a disk is read as it was") > 0 && of("a disk is written") > 0, "nothing works");
    }
}

/// The log of a round, for a person who reproduces a failure.
pub type Said = Mutex<Vec<String>>;

/// Runs one round: some attacks, and then the operations. Returns the attacks and the outcomes.
fn attack(site: &Site, seed: u64, said: &Said) -> Result<(Vec<&'static str>, Vec<String>), String> {
    let mut random = StdRng::seed_from_u64(seed);
    site.lay_out();
    let attacks = attacks::draw(site, &mut random);
    for attack in &attacks {
        attack.carry_out(site);
        said.lock().push(format!("attack: {attack:?}"));
    }
    let mut round = Round::new(site, said, &attacks);
    round.work(&mut random)?;
    Ok((attacks.iter().map(Attack::name).collect(), round.outcomes))
}
