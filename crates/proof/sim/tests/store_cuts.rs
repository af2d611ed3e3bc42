//! Power cuts beneath the metadata store, at every moment of its life: every image opens, holds all
//! acknowledged transactions, and is exactly one revision of the store.
//!
//! The engine is the product's, with redb, on a simulated file. `cargo test -p strongroom-sim
//! --test store_cuts -- --nocapture` prints the counts; with `--features full` it does 20,000 cuts.
//! `POWER_CUTS_SEED` is the first life's seed, otherwise 1.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

#[path = "support/campaign.rs"]
mod campaign;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_sim::{Faults, OpenHow, SimFile, SimFs};
use strongroom_store::{
    Engine, Entry, Is, KeyRange, Operation, Outcome, Revision, StorageBackend, Store, Transaction,
};

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 20_000 } else { 1_200 };
/// Cuts per life. One in eight lives continues after the cut, and is cut again.
const CUTS_PER_LIFE: usize = 60;
const GROUPS_PER_LIFE: usize = 25;
/// Kills of a life's process, and cuts after each.
const KILLS_PER_LIFE: usize = 12;
const CUTS_PER_KILL: usize = 6;
const FILE: &str = "store.redb";

/// The promise that the backend breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// No sync has an effect.
    NeverSyncs,
    /// Every second sync has no effect: the commit becomes durable, but not the header that names
    /// it.
    SkipsSecondSync,
    /// Every first sync has no effect: the header becomes durable before the commit it names.
    SkipsFirstSync,
}

/// A simulated file in the form that redb uses.
#[derive(Debug)]
struct Backend {
    file: SimFile,
    rule: Option<Rule>,
    syncs: AtomicU64,
}

impl Backend {
    fn open(fs: &SimFs, rule: Option<Rule>) -> Self {
        let directory = fs.open_directory(Path::new("/")).unwrap();
        let file = directory.open(FILE, OpenHow { write: true, create: true, ..OpenHow::default() }).unwrap();
        directory.sync().unwrap();
        Self { file, rule, syncs: AtomicU64::new(0) }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.length()?)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let count = self.file.read_at(offset, out)?;
        if count < out.len() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        Ok(self.file.set_length(length)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        let second = self.syncs.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        let skipped = match self.rule {
            None => false,
            Some(Rule::NeverSyncs) => true,
            Some(Rule::SkipsSecondSync) => second,
            Some(Rule::SkipsFirstSync) => !second,
        };
        if skipped { Ok(()) } else { Ok(self.file.sync()?) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Ok(self.file.write_at(offset, data)?)
    }
}

/// A store's recorded life, and its content at each revision.
struct Life {
    fs: SimFs,
    /// The store's actual and possible contents: a revision whose sync failed may be replaced by
    /// another of the same number.
    states: Vec<(Revision, Vec<Entry>)>,
    /// Moments before transactions were submitted, with the latest revision that they could create.
    asked: Vec<(usize, Revision)>,
    /// Moments by which a revision had been acknowledged.
    acknowledged: Vec<(usize, Revision)>,
}

fn content(store: &dyn Store) -> (Revision, Vec<Entry>) {
    let snapshot = store.snapshot().unwrap();
    (snapshot.revision(), snapshot.all(&KeyRange::all()).unwrap())
}

fn open(fs: &SimFs, rule: Option<Rule>) -> Result<Engine, String> {
    Engine::with_backend(Backend::open(fs, rule), "simulated").map_err(|error| error.to_string())
}

/// The state after a transaction, if it changes anything.
fn follow(state: &[Entry], transaction: &Transaction, revision: Revision) -> Option<Vec<Entry>> {
    let mut state = state.to_vec();
    let place = |state: &[Entry], key: &[u8]| state.binary_search_by(|entry| entry.key.as_slice().cmp(key));
    // All conditions here require absence.
    if transaction.conditions.iter().any(|condition| place(&state, &condition.key).is_ok()) {
        return None;
    }
    let mut changes = 0;
    for operation in &transaction.operations {
        changes += 1;
        match (operation, place(&state, operation.key())) {
            (Operation::Put { value, .. }, Ok(at)) => {
                state[at].value.clone_from(value);
                state[at].mod_revision = revision;
                state[at].version += 1;
            }
            (Operation::Put { key, value, .. }, Err(at)) => {
                let (key, value) = (key.clone(), value.clone());
                let entry = Entry {
                    key,
                    value,
                    create_revision: revision,
                    mod_revision: revision,
                    version: 1,
                    lease: None,
                };
                state.insert(at, entry);
            }
            (Operation::Delete { .. }, Ok(at)) => drop(state.remove(at)),
            (Operation::Delete { .. }, Err(_)) => changes -= 1,
        }
    }
    (changes > 0).then_some(state)
}

fn transaction(random: &mut StdRng) -> Transaction {
    let mut transaction = Transaction::new();
    let mut key = random.random_range(0..8);
    for _ in 0..random.random_range(1..5) {
        let name = format!("key/{key:02}");
        key += random.random_range(1..4);
        transaction = match random.random_range(0..8) {
            0..2 => transaction.delete(name),
            2 => transaction.when(name.clone(), Is::Absent).put(name, "only if absent"),
            _ => {
                let length = [20, 300, 3000, 20_000][random.random_range(0..4)];
                transaction.put(name, vec![random.random(); random.random_range(0..length)])
            }
        };
    }
    transaction
}

impl Life {
    /// Continues the store on the file system, or begins a new one.
    fn of(fs: SimFs, seed: u64, groups: usize, rule: Option<Rule>, faults: Faults) -> Result<Self, String> {
        drop(open(&fs, None)?);
        fs.record();
        let engine = open(&fs, rule)?;
        let state = content(&engine);
        let life =
            Self { fs: fs.clone(), asked: Vec::new(), acknowledged: vec![(0, state.0)], states: vec![state] };
        life.lived(engine, seed, groups, rule, faults)
    }

    /// The store's process is killed at this moment, and a successor continues. The state it finds
    /// need not be durable; once it has opened the store, the state it shows is.
    fn after_kill(
        &self,
        moment: usize,
        seed: u64,
        groups: usize,
        rule: Option<Rule>,
    ) -> Result<Self, String> {
        let fs = self.fs.killed_at(moment, seed);
        fs.record();
        let (least, most) = self.allowed(moment);
        let engine = open(&fs, rule)?;
        let opened = fs.moments();
        let state = content(&engine);
        if state.0 < least || state.0 > most || !self.states.contains(&state) {
            return Err(format!("the successor finds revision {}, of {least} to {most}", state.0));
        }
        let mut states = self.states.clone();
        // States of the other future no longer apply.
        states.retain(|(revision, _)| *revision <= state.0);
        states.push(state.clone());
        let asked = vec![(0, most)];
        let acknowledged = vec![(0, least), (opened, state.0)];
        Self { fs, states, asked, acknowledged }.lived(engine, seed, groups, rule, Faults::default())
    }

    fn lived(
        mut self,
        mut engine: Engine,
        seed: u64,
        groups: usize,
        rule: Option<Rule>,
        faults: Faults,
    ) -> Result<Self, String> {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = self.fs.clone();
        let life = &mut self;
        for _ in 0..groups {
            fs.set_faults(faults);
            let is_whole = life.do_group(&engine, &mut random);
            fs.set_faults(Faults::default());
            if !is_whole {
                drop(engine);
                engine = open(&fs, rule)?;
            }
            let state = content(&engine);
            if !life.states.contains(&state) {
                return Err(format!("revision {} was never made", state.0));
            }
            life.acknowledged.push((fs.moments(), state.0));
            life.states.push(state);
        }
        // The orderly close is cut as well.
        drop(engine);
        Ok(self)
    }

    /// Submits some transactions at once, and waits for all. Returns whether each was acknowledged.
    fn do_group(&mut self, engine: &Engine, random: &mut StdRng) -> bool {
        let count = random.random_range(1..4_u64);
        let (mut latest, mut state) = self.states.last().cloned().unwrap();
        self.asked.push((self.fs.moments(), Revision(latest.0 + count)));
        let transactions: Vec<_> = (0..count).map(|_| transaction(random)).collect();
        let pending: Vec<_> =
            transactions.iter().map(|transaction| engine.submit(transaction.clone())).collect();
        let mut is_whole = true;
        for (pending, transaction) in pending.into_iter().zip(&transactions) {
            let next = latest.next();
            let done = follow(&state, transaction, next);
            match pending.wait() {
                Ok(Outcome::Committed(revision)) => {
                    assert_eq!(revision == next, done.is_some(), "the oracle is right")
                }
                Ok(Outcome::Conflict(_)) => assert!(done.is_none(), "the oracle is right"),
                Err(_) => is_whole = false,
            }
            if let Some(done) = done {
                (latest, state) = (next, done);
                self.states.push((latest, state.clone()));
            }
        }
        is_whole
    }

    /// The revisions that a cut at this moment may leave.
    fn allowed(&self, moment: usize) -> (Revision, Revision) {
        let acknowledged = self.acknowledged.iter().filter(|(at, _)| *at <= moment + 1);
        let least = acknowledged.map(|(_, revision)| *revision).max().unwrap_or(Revision::ZERO);
        let most = self.asked.iter().filter(|(at, _)| *at <= moment).map(|(_, revision)| *revision).max();
        (least, most.unwrap_or(least).max(least))
    }

    /// Opens the state after a cut, and checks it against the acknowledged transactions.
    fn check(&self, fs: &SimFs, moment: usize) -> Result<(), String> {
        let engine =
            Engine::with_backend(Backend::open(fs, None), "cut").map_err(|error| error.to_string())?;
        let (revision, found) = content(&engine);
        let (least, most) = self.allowed(moment);
        if revision < least || revision > most {
            return Err(format!("revision {revision}, which should be within {least} and {most}"));
        }
        if !self.states.contains(&(revision, found)) {
            return Err(format!("revision {revision} is not what it was"));
        }
        let next =
            engine.commit(Transaction::new().put("after", "the cut")).map_err(|error| error.to_string())?;
        let went_on = next == Outcome::Committed(revision.next());
        if went_on { Ok(()) } else { Err(format!("after revision {revision} came {next:?}")) }
    }
}

/// A life and its cuts. In every third life syncs fail at times, and the store is reopened.
fn live(seed: u64, rule: Option<Rule>) -> Result<usize, String> {
    let faults = match (rule, seed % 3) {
        (None, 1) => Faults { sync_error_one_in: 12, ..Faults::default() },
        _ => Faults::default(),
    };
    let life = Life::of(SimFs::new(seed), seed, GROUPS_PER_LIFE, rule, faults)?;
    cut(&life, seed, CUTS_PER_LIFE, rule.is_none())
}

fn cut(life: &Life, seed: u64, cuts: usize, again: bool) -> Result<usize, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let moments = campaign::moments(&mut random, cuts, life.fs.moments() - 1);
    cut_at(life, &moments, random, again)
}

fn cut_at(life: &Life, moments: &[usize], mut random: StdRng, again: bool) -> Result<usize, String> {
    let mut done = 0;
    for moment in moments.iter().copied() {
        let cut_seed = random.random();
        let said = |what: String| format!("moment {moment}, cut seed {cut_seed}: {what}");
        let check = || life.check(&life.fs.cut_at(moment, cut_seed), moment);
        let image = std::panic::catch_unwind(AssertUnwindSafe(check));
        image.unwrap_or_else(|_| Err("redb asserts".into())).map_err(said)?;
        done += 1;
        if again && random.random_ratio(1, 8) {
            let next = Life::of(life.fs.cut_at(moment, cut_seed), cut_seed, 5, None, Faults::default())
                .map_err(said)?;
            done += cut(&next, cut_seed, 4, false).map_err(|what| said(format!("and then {what}")))?;
        }
    }
    Ok(done)
}

/// A life whose process is killed at random moments, with power cuts under each successor: half of
/// them while it opens the store, or right after.
fn live_and_kill(seed: u64, rule: Option<Rule>) -> Result<usize, String> {
    let life = Life::of(SimFs::new(seed), seed, GROUPS_PER_LIFE, None, Faults::default())?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut done = 0;
    for moment in campaign::moments(&mut random, KILLS_PER_LIFE, life.fs.moments() - 1) {
        let kill_seed = random.random();
        let said = |what: String| format!("killed at moment {moment}, kill seed {kill_seed}: {what}");
        let groups = random.random_range(0..4);
        let next = life.after_kill(moment, kill_seed, groups, rule).map_err(said)?;
        let (opened, _) = next.acknowledged[1];
        let mut moments = campaign::moments(&mut random, CUTS_PER_KILL, next.fs.moments() - 1);
        for moment in moments.iter_mut().step_by(2) {
            *moment = random.random_range(0..=opened.min(next.fs.moments() - 1));
        }
        moments.sort_unstable();
        done += cut_at(&next, &moments, StdRng::seed_from_u64(kill_seed), false).map_err(said)?;
    }
    Ok(done)
}

#[test]
fn what_is_acknowledged_after_a_kill_outlives_a_power_cut() {
    println!("{}", campaign::until(CUTS, |seed| live_and_kill(seed, None)));
}

#[test]
fn an_opening_whose_syncs_do_nothing_is_caught() {
    campaign::is_caught(Rule::NeverSyncs, |seed| live_and_kill(seed, Some(Rule::NeverSyncs)));
}

#[test]
fn every_power_cut_leaves_what_was_acknowledged() {
    println!("{}", campaign::until(CUTS, |seed| live(seed, None)));
}

#[test]
fn a_backend_that_never_syncs_is_caught() {
    campaign::is_caught(Rule::NeverSyncs, |seed| live(seed, Some(Rule::NeverSyncs)));
}

#[test]
fn a_backend_that_skips_the_second_sync_is_caught() {
    campaign::is_caught(Rule::SkipsSecondSync, |seed| live(seed, Some(Rule::SkipsSecondSync)));
}

#[test]
fn a_backend_that_skips_the_first_sync_is_caught() {
    campaign::is_caught(Rule::SkipsFirstSync, |seed| live(seed, Some(Rule::SkipsFirstSync)));
}
