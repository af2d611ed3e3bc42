//! Power cuts beneath the audit log, at every moment of its life: every image opens, holds every
//! acknowledged record, and verifies.
//!
//! The log is the product's, on a simulated directory. `cargo test -p strongroom-sim --test
//! audit_cuts -- --nocapture` prints the counts; with `--features full` it does 20,000 cuts.
//! `POWER_CUTS_SEED` is the first life's seed, otherwise 1.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

#[path = "support/campaign.rs"]
mod campaign;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_audit::storage::{Directory, LogFile};
use strongroom_audit::{
    Actor, AuditError, AuditLog, HeadSigner, Options, Outcome, PublicKey, Record, Retention, SignError,
    SignedHead, verify,
};
use strongroom_sim::{Faults, OpenHow, SimDirectory, SimFile, SimFs};

/// Power cuts in all.
const CUTS: usize = if cfg!(feature = "full") { 20_000 } else { 1_500 };
/// Cuts per life. One in eight lives continues after the cut, and is cut again.
const CUTS_PER_LIFE: usize = 60;
const GROUPS_PER_LIFE: usize = 30;
/// The retention of a log: about three files.
const KEPT: Retention = Retention { keep_bytes: Some(15_000), keep_age: None, collector: None };
/// Kills of a life's writer, and cuts after each.
const KILLS_PER_LIFE: usize = 12;
const CUTS_PER_KILL: usize = 6;

/// The promise that the directory breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// No file is synced.
    FilesNotSynced,
    /// The directory is not synced: a new file's name may be lost.
    NamesNotSynced,
    /// A sync covers an earlier state of the file.
    SyncsEverySecond,
    /// A file's removal is not synced before the next removal.
    RemovalsNotSynced,
}

/// A simulated directory in the form that the log uses.
struct Place {
    directory: SimDirectory,
    rule: Option<Rule>,
    has_removed: AtomicBool,
    /// Held during each sync of a file.
    syncs: Arc<Mutex<()>>,
}

struct OpenFile {
    file: SimFile,
    rule: Option<Rule>,
    synced: std::cell::Cell<u64>,
    syncs: Arc<Mutex<()>>,
}

impl Place {
    fn new(fs: &SimFs, rule: Option<Rule>) -> Self {
        let directory = fs.open_directory(Path::new("/")).unwrap();
        Self { directory, rule, has_removed: AtomicBool::new(false), syncs: Arc::default() }
    }
}

fn place(fs: &SimFs, rule: Option<Rule>) -> Arc<dyn Directory> {
    Arc::new(Place::new(fs, rule))
}

impl Directory for Place {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.directory.names()?)
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Box<dyn LogFile>> {
        let file = self.directory.open(name, OpenHow { write, create: write, ..OpenHow::default() })?;
        let syncs = Arc::clone(&self.syncs);
        Ok(Box::new(OpenFile { file, rule: self.rule, synced: std::cell::Cell::new(0), syncs }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(self.directory.rename(from, to)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.has_removed.store(true, Ordering::Relaxed);
        Ok(self.directory.unlink(name)?)
    }

    fn sync(&self) -> io::Result<()> {
        let has_removed = self.has_removed.swap(false, Ordering::Relaxed);
        match self.rule {
            Some(Rule::NamesNotSynced) => Ok(()),
            Some(Rule::RemovalsNotSynced) if has_removed => Ok(()),
            _ => Ok(self.directory.sync()?),
        }
    }
}

impl LogFile for OpenFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.length()?)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.file.read_at(offset, into)?)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        Ok(self.file.write_at(offset, from)?)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        Ok(self.file.set_length(length)?)
    }

    fn sync(&self) -> io::Result<()> {
        let _held = self.syncs.lock();
        self.synced.set(self.synced.get() + 1);
        let skipped = match self.rule {
            Some(Rule::FilesNotSynced) => true,
            Some(Rule::SyncsEverySecond) => self.synced.get().is_multiple_of(2),
            Some(Rule::NamesNotSynced | Rule::RemovalsNotSynced) | None => false,
        };
        if skipped { Ok(()) } else { Ok(self.file.sync()?) }
    }
}

/// One key for all lives.
#[derive(Clone)]
struct Key(Arc<strongroom_audit::HeadKey>);

// A key is only read.
impl HeadSigner for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        self.0.sign(message)
    }

    fn public_key(&self) -> PublicKey {
        self.0.public_key()
    }
}

fn key() -> Key {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
    let document =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &aws_lc_rs::rand::SystemRandom::new())
            .unwrap();
    Key(Arc::new(strongroom_audit::HeadKey::from_pkcs8(document.as_ref()).unwrap()))
}

fn open(fs: &SimFs, key: &Key, rule: Option<Rule>) -> Result<AuditLog, AuditError> {
    let head_interval = Duration::from_secs(3600);
    let options = Options { file_bytes: 6000, file_age: None, head_records: 7, head_interval };
    AuditLog::open(place(fs, rule), Box::new(key.clone()), options)
}

fn record(random: &mut StdRng) -> Record {
    let actor = Actor { role: "host".into(), name: "h".into(), ..Actor::default() };
    let length = [10, 100, 1000][random.random_range(0..3)];
    Record::new(actor, "Get", Outcome::Done).reason("r".repeat(random.random_range(0..length)))
}

/// A log's life, recorded.
struct Life {
    fs: SimFs,
    /// Moments by which a line had been acknowledged.
    answered: Vec<(usize, u64)>,
    /// Moments by which a head had been returned.
    heads: Vec<(usize, SignedHead)>,
    /// Appends that were refused.
    refused: usize,
    /// Files removed by retention.
    removed: u64,
    /// Whether there was room at all times.
    has_room: bool,
}

impl Life {
    /// Continues the log on the file system, or begins a new one.
    fn of(
        fs: SimFs,
        key: &Key,
        seed: u64,
        groups: usize,
        rule: Option<Rule>,
        faults: Faults,
    ) -> Result<Self, String> {
        fs.record();
        // A life after one without room may first have to finish that one's removals.
        let is_new = place(&fs, None).names().is_ok_and(|names| names.is_empty());
        let has_room = is_new && seed.is_multiple_of(3);
        let life = Self {
            fs: fs.clone(),
            answered: Vec::new(),
            heads: Vec::new(),
            refused: 0,
            removed: 0,
            has_room,
        };
        let log = open(&fs, key, rule).map_err(|error| error.to_string())?;
        life.lived(log, key, seed, groups, rule, faults)
    }

    /// The writer is killed at this moment, and a successor continues. The state it finds need not
    /// be durable; once it has opened the log, the lines it reports as durable are.
    fn after_kill(
        &self,
        moment: usize,
        key: &Key,
        seed: u64,
        groups: usize,
        rule: Option<Rule>,
    ) -> Result<(Self, usize), String> {
        let fs = self.fs.killed_at(moment, seed);
        fs.record();
        let (answered, heads) = self.known(moment);
        let log = open(&fs, key, rule).map_err(|error| format!("the successor: {error}"))?;
        let opened = fs.moments();
        if log.durable() < answered {
            return Err(format!("the successor finds {} lines of {answered}", log.durable()));
        }
        let answered = vec![(0, answered), (opened, log.durable())];
        let heads = heads.into_iter().map(|head| (0, head)).collect();
        let life = Self { fs, answered, heads, refused: 0, removed: 0, has_room: self.has_room };
        Ok((life.lived(log, key, seed, groups, rule, Faults::default())?, opened))
    }

    fn lived(
        mut self,
        mut log: AuditLog,
        key: &Key,
        seed: u64,
        groups: usize,
        rule: Option<Rule>,
        faults: Faults,
    ) -> Result<Self, String> {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = self.fs.clone();
        let life = &mut self;
        fs.set_faults(faults);
        for _ in 0..groups {
            // Sometimes there is no room.
            let room =
                (!life.has_room && random.random_ratio(1, 6)).then(|| random.random_range(0..8) * 4096);
            fs.set_capacity(room);
            let pending: Vec<_> =
                (0..random.random_range(1..5)).map(|_| log.append(&record(&mut random))).collect();
            let head = random.random_ratio(1, 5).then(|| log.head());
            let mut failed = false;
            for pending in pending {
                match pending.wait() {
                    Ok(receipt) => life.answered.push((fs.moments(), receipt.sequence)),
                    Err(error) => {
                        life.refused += 1;
                        failed |= !matches!(error, AuditError::Full { .. });
                    }
                }
            }
            if let Some(Ok(head)) = head.map(|head| head.wait()) {
                life.heads.push((fs.moments(), head));
            }
            if random.random_ratio(1, 4) {
                match log.retain(&KEPT) {
                    Ok(removed) => life.removed += removed,
                    Err(error) => failed |= !matches!(error, AuditError::Full { .. }),
                }
            }
            fs.set_capacity(None);
            if failed {
                drop(log);
                fs.set_faults(Faults::default());
                log = open(&fs, key, rule).map_err(|error| format!("opened again: {error}"))?;
                fs.set_faults(faults);
            }
        }
        fs.set_capacity(None);
        fs.set_faults(Faults::default());
        drop(log);
        Ok(self)
    }

    /// The lines acknowledged by this moment, and the heads returned.
    fn known(&self, moment: usize) -> (u64, Vec<SignedHead>) {
        let answered =
            self.answered.iter().filter(|(at, _)| *at <= moment + 1).map(|(_, sequence)| *sequence);
        let heads = self.heads.iter().filter(|(at, _)| *at <= moment + 1).map(|(_, head)| head.clone());
        (answered.max().unwrap_or(0), heads.collect())
    }

    /// Opens the state after a cut, and checks it against the acknowledged lines.
    fn check(&self, fs: &SimFs, key: &Key, moment: usize) -> Result<(), String> {
        let (answered, heads) = self.known(moment);
        let log = open(fs, key, None).map_err(|error| error.to_string())?;
        if log.durable() < answered {
            return Err(format!("{} lines, of which {answered} had been answered for", log.durable()));
        }
        let next =
            log.append(&record(&mut StdRng::seed_from_u64(0))).wait().map_err(|error| error.to_string())?;
        if next.sequence <= answered {
            return Err("a line has been written again".into());
        }
        drop(log);
        let directory = place(fs, None);
        let report = verify(&*directory, &[key.public_key()], &heads).map_err(|error| error.to_string())?;
        let told = self.told_to_have_gone(&*directory);
        if self.has_room && report.first_sequence > told + 1 {
            return Err(format!(
                "line {} is the first, and {told} was the last to go",
                report.first_sequence
            ));
        }
        Ok(())
    }

    /// The last removed line, according to the log itself.
    fn told_to_have_gone(&self, directory: &dyn Directory) -> u64 {
        let names = directory.names().unwrap().into_iter().filter(|name| name.ends_with(".jsonl"));
        let texts = names.map(|name| {
            let file = directory.open(&name, false).unwrap();
            let mut text = vec![0; file.length().unwrap() as usize];
            file.read_at(0, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        let told = |text: String| {
            let ends = text.split("\"last_sequence\":\"").skip(1).filter_map(|rest| rest.split('"').next());
            ends.map(|end| end.parse().unwrap()).max().unwrap_or(0)
        };
        texts.map(told).max().unwrap_or(0)
    }
}

/// A life and its cuts.
fn live(key: &Key, seed: u64, rule: Option<Rule>) -> Result<usize, String> {
    let faults = match (rule, seed % 3) {
        (None, 1) => Faults { sync_error_one_in: 12, ..Faults::default() },
        _ => Faults::default(),
    };
    let life = Life::of(SimFs::new(seed), key, seed, GROUPS_PER_LIFE, rule, faults)?;
    cut(&life, key, seed, CUTS_PER_LIFE, rule.is_none())
}

fn cut(life: &Life, key: &Key, seed: u64, cuts: usize, again: bool) -> Result<usize, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let moments = campaign::moments(&mut random, cuts, life.fs.moments() - 1);
    cut_at(life, key, &moments, random, again)
}

fn cut_at(
    life: &Life,
    key: &Key,
    moments: &[usize],
    mut random: StdRng,
    again: bool,
) -> Result<usize, String> {
    let mut done = 0;
    for moment in moments.iter().copied() {
        let cut_seed = random.random();
        let said = |what: String| format!("moment {moment}, cut seed {cut_seed}: {what}");
        life.check(&life.fs.cut_at(moment, cut_seed), key, moment).map_err(said)?;
        done += 1;
        if again && random.random_ratio(1, 8) {
            let fs = life.fs.cut_at(moment, cut_seed);
            let next = Life::of(fs, key, cut_seed, 6, None, Faults::default()).map_err(said)?;
            done += cut(&next, key, cut_seed, 4, false).map_err(|what| said(format!("and then {what}")))?;
        }
    }
    Ok(done)
}

/// A life whose writer is killed at random moments, with power cuts under each successor: half of
/// them while it opens the log, or right after.
fn live_and_kill(key: &Key, seed: u64, rule: Option<Rule>) -> Result<usize, String> {
    let life = Life::of(SimFs::new(seed), key, seed, GROUPS_PER_LIFE, None, Faults::default())?;
    let mut random = StdRng::seed_from_u64(seed);
    let mut done = 0;
    for moment in campaign::moments(&mut random, KILLS_PER_LIFE, life.fs.moments() - 1) {
        let kill_seed = random.random();
        let said = |what: String| format!("killed at moment {moment}, kill seed {kill_seed}: {what}");
        let groups = random.random_range(0..4);
        let (next, opened) = life.after_kill(moment, key, kill_seed, groups, rule).map_err(said)?;
        let mut moments = campaign::moments(&mut random, CUTS_PER_KILL, next.fs.moments() - 1);
        for moment in moments.iter_mut().step_by(2) {
            *moment = random.random_range(0..=opened.min(next.fs.moments() - 1));
        }
        moments.sort_unstable();
        done += cut_at(&next, key, &moments, StdRng::seed_from_u64(kill_seed), false).map_err(said)?;
    }
    Ok(done)
}

#[test]
fn what_is_answered_after_a_kill_outlives_a_power_cut() {
    let key = key();
    println!("{}", campaign::until(CUTS, |seed| live_and_kill(&key, seed, None)));
}

#[test]
fn an_opening_that_syncs_no_file_is_caught() {
    let key = key();
    campaign::is_caught(Rule::FilesNotSynced, |seed| live_and_kill(&key, seed, Some(Rule::FilesNotSynced)));
}

#[test]
fn an_opening_that_syncs_no_name_is_caught() {
    let key = key();
    campaign::is_caught(Rule::NamesNotSynced, |seed| live_and_kill(&key, seed, Some(Rule::NamesNotSynced)));
}

#[test]
fn every_power_cut_leaves_what_was_answered() {
    let key = key();
    println!("{}", campaign::until(CUTS, |seed| live(&key, seed, None)));
}

/// A file's first group finds no room, and the next one begins the file again: a power cut leaves
/// one of them or none, and no mix that would be taken for damage.
#[test]
fn a_file_begun_again_for_want_of_room_is_never_a_mix_of_both() {
    let key = key();
    let actor = Actor { role: "host".into(), name: "h".into(), ..Actor::default() };
    // The lines of both groups have the same lengths, and go over the edges of sectors.
    let record = |letter: &str| Record::new(actor.clone(), "Get", Outcome::Done).reason(letter.repeat(400));
    for seed in 1..=20 {
        let fs = SimFs::new(seed);
        let head_interval = Duration::from_secs(3600);
        let options = Options { file_bytes: 1, file_age: None, head_records: u64::MAX, head_interval };
        let place = Place::new(&fs, None);
        let syncs = Arc::clone(&place.syncs);
        let log = AuditLog::open(Arc::new(place), Box::new(key.clone()), options).unwrap();
        // All others come during the first one's sync, and are one group.
        let held = syncs.lock();
        let first = log.append(&record("a"));
        while fs.open_directory(Path::new("/")).unwrap().names().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let others: Vec<_> = (0..8).map(|_| log.append(&record("b"))).collect();
        fs.record();
        fs.set_capacity(Some(2 * 4096));
        drop(held);
        first.wait().unwrap();
        assert!(others.into_iter().all(|other| other.wait().is_err()), "there is no room for them");
        fs.set_capacity(None);
        let begun_again = fs.moments();
        log.append(&record("c")).wait().unwrap();
        drop(log);
        for moment in begun_again..fs.moments() {
            for cut_seed in 0..400 {
                let cut = fs.cut_at(moment, cut_seed);
                if let Err(error) = open(&cut, &key, None) {
                    panic!("seed {seed}, moment {moment}, cut seed {cut_seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn lives_remove_older_files() {
    let life = Life::of(SimFs::new(2), &key(), 2, 200, None, Faults::default()).unwrap();
    assert!(life.removed > 10, "{} removed", life.removed);
}

#[test]
fn without_room_records_are_refused_and_later_ones_are_not() {
    let life = Life::of(SimFs::new(1), &key(), 1, 400, None, Faults::default()).unwrap();
    assert!(
        life.refused > 5 && life.answered.len() > 100,
        "{} refused, {} answered",
        life.refused,
        life.answered.len()
    );
}

#[test]
fn files_that_are_not_synced_are_caught() {
    let key = key();
    campaign::is_caught(Rule::FilesNotSynced, |seed| live(&key, seed, Some(Rule::FilesNotSynced)));
}

#[test]
fn names_that_are_not_synced_are_caught() {
    let key = key();
    campaign::is_caught(Rule::NamesNotSynced, |seed| live(&key, seed, Some(Rule::NamesNotSynced)));
}

#[test]
fn removals_that_are_not_synced_are_caught() {
    let key = key();
    campaign::is_caught(Rule::RemovalsNotSynced, |seed| live(&key, seed, Some(Rule::RemovalsNotSynced)));
}

#[test]
fn a_sync_that_does_nothing_every_second_time_is_caught() {
    let key = key();
    campaign::is_caught(Rule::SyncsEverySecond, |seed| live(&key, seed, Some(Rule::SyncsEverySecond)));
}
