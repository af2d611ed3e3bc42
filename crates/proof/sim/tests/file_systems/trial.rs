//! Tests a file system: volumes live on it, and each life is cut at many moments.

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use super::broken::Rule;
use super::campaign::moments;
use super::cut::{Fate, Replay};
use super::file_system::FileSystem;
use super::image::Image;
use super::knowledge::{Bench, Knowledge};
use super::life::{History, Life};
use super::recorder::Recorder;
use super::survey::survey;
use super::write_log::Entry;

const LIFE_STEPS: [usize; 3] = [1200, 300, 2000];
const SHORT_LIFE_STEPS: usize = 250;
/// Cuts per life. One in eight lives continues after the cut, and is cut again.
const CUTS_PER_LIFE: usize = 50;
const CUTS_PER_SECOND_LIFE: usize = 6;
const SECOND_LIFE_STEPS: usize = 60;
/// One in this many images is checked by `volume check`, and by the file system's own check.
const CHECKED_ONE_IN: u64 = 8;
const EXAMINED_ONE_IN: u64 = 16;
/// The number of requests before a cut in a report.
const REQUESTS_TOLD: usize = 24;

/// The counts of a trial.
#[derive(Debug, Default)]
pub struct Count {
    /// Prefixes of one life: the first request, the first two, and so on.
    prefixes: usize,
    pub cuts: usize,
    /// Cuts of volumes that had continued after a cut.
    pub second_cuts: usize,
    /// Cuts that left no volume, rightly.
    absent: usize,
    /// Images examined by the file system's own check.
    examined: usize,
    /// Blocks that were written once, and were whole or absent.
    first_writes: usize,
    /// Requests to the devices.
    requests: usize,
    flushes: usize,
}

pub struct Trial {
    file_system: &'static FileSystem,
    bench: Bench,
    fresh: Image,
    place: TempDir,
    pub count: Count,
}

/// A recorded life: the device's requests, and the guest's observations.
struct Recording<'a> {
    first: &'a Image,
    entries: &'a [Entry],
    history: &'a History,
}

/// A cut of a recording, with the knowledge at its moment.
struct Cut<'a> {
    image: Image,
    moment: usize,
    seed: u64,
    recording: &'a Recording<'a>,
}

impl Trial {
    pub fn new(file_system: &'static FileSystem) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("mounted")).unwrap();
        let fresh = file_system.make(place.path());
        Self { file_system, bench: Bench::new(), fresh, place, count: Count::default() }
    }

    /// A volume's short life, replayed prefix by prefix. An error states the problem and its
    /// history.
    pub fn live_prefix_by_prefix(&mut self, seed: u64) -> Result<(), String> {
        let (history, entries) = self.record(seed, SHORT_LIFE_STEPS, None)?;
        let first = self.fresh.clone();
        let recording = Recording { first: &first, entries: &entries, history: &history };
        let mut replay = self.replay(&recording, None);
        let mut knowledge = Knowledge::new(&history.account);
        let mut random = StdRng::seed_from_u64(seed);
        for moment in 0..=entries.len() {
            let image = replay.cut(moment, Fate::All, &mut random);
            let cut = Cut { image, moment, seed: random.random(), recording: &recording };
            self.count.prefixes += 1;
            self.look(&cut, &mut knowledge).map_err(|what| self.explain(&cut, Fate::All, &what, None))?;
        }
        Ok(())
    }

    /// A volume's life, cut at random moments.
    pub fn live(&mut self, seed: u64, rule: Option<Rule>) -> Result<(), String> {
        let (history, entries) = self.record(seed, LIFE_STEPS[(seed % 3) as usize], rule)?;
        let first = self.fresh.clone();
        let recording = Recording { first: &first, entries: &entries, history: &history };
        self.cut(&recording, seed, rule).map_err(|what| format!("seed {seed}, {what}"))
    }

    fn record(
        &mut self,
        seed: u64,
        steps: usize,
        rule: Option<Rule>,
    ) -> Result<(History, Vec<Entry>), String> {
        let recorder = Recorder::start(self.file_system, &self.fresh)?;
        let history = Life::of(&self.bench, &recorder, seed, steps, rule);
        let entries = recorder.finish();
        self.count.requests += entries.len();
        self.count.flushes += entries.iter().filter(|entry| entry.flushes).count();
        Ok((history, entries))
    }

    fn cut(&mut self, recording: &Recording<'_>, seed: u64, rule: Option<Rule>) -> Result<(), String> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cuts = self.replay(recording, rule);
        let mut knowledge = Knowledge::new(&recording.history.account);
        for moment in moments(&mut random, CUTS_PER_LIFE, recording.entries.len()) {
            let (fate, seed) = (Fate::draw(&mut random), random.random());
            let image = cuts.cut(moment, fate, &mut StdRng::seed_from_u64(seed));
            let cut = Cut { image, moment, seed, recording };
            let goes_on = rule.is_none() && random.random_ratio(1, 8);
            let ended = self.look(&cut, &mut knowledge).and_then(|()| match goes_on {
                true => self.go_on(&cut, &mut knowledge),
                false => Ok(()),
            });
            self.count.cuts += 1;
            ended.map_err(|what| self.explain(&cut, fate, &what, rule))?;
        }
        Ok(())
    }

    fn replay<'a>(&self, recording: &Recording<'a>, rule: Option<Rule>) -> Replay<'a> {
        let mut replay = Replay::new(recording.first, recording.entries, self.file_system.stays_whole);
        replay.forgets_flushes = usize::from(rule == Some(Rule::DeviceForgetsFlush));
        replay
    }

    /// Mounts an image and checks it against the knowledge.
    fn look(&mut self, cut: &Cut<'_>, knowledge: &mut Knowledge<'_>) -> Result<(), String> {
        let (device, at) = (self.place.path().join("device"), self.place.path().join("mounted"));
        cut.image.write_to(&device).unwrap();
        let mounted = self.file_system.mount(&device, &at)?;
        let allowed = knowledge.go_to(cut.moment);
        let checks = cut.seed.is_multiple_of(CHECKED_ONE_IN);
        let sort = cut.recording.history.sort;
        let found = survey(&self.bench, mounted.path(), sort, allowed, knowledge, checks)?;
        drop(mounted);
        match found {
            Some((_, verdict)) => self.count.first_writes += verdict.first_writes,
            None => self.count.absent += 1,
        }
        if cut.seed.is_multiple_of(EXAMINED_ONE_IN) {
            self.count.examined += 1;
            self.file_system.examine(&device)?;
        }
        Ok(())
    }

    /// Continues the life after the cut, from the mount on, and cuts it again, including while the
    /// file system and the volume recover.
    fn go_on(&mut self, cut: &Cut<'_>, knowledge: &mut Knowledge<'_>) -> Result<(), String> {
        let recorder = Recorder::start(self.file_system, &cut.image)?;
        let allowed = knowledge.go_to(cut.moment);
        let sort = cut.recording.history.sort;
        let found = survey(&self.bench, recorder.path(), sort, allowed, knowledge, false)?;
        let Some((found, _)) = found else { return Ok(()) };
        let history = Life::after(&self.bench, &recorder, cut.seed, SECOND_LIFE_STEPS, sort, &found);
        let entries = recorder.finish();
        let recording = Recording { first: &cut.image, entries: &entries, history: &history };
        let mut random = StdRng::seed_from_u64(cut.seed);
        let mut cuts = self.replay(&recording, None);
        let mut knowledge = Knowledge::new(&history.account);
        for moment in moments(&mut random, CUTS_PER_SECOND_LIFE, entries.len()) {
            let (fate, seed) = (Fate::draw(&mut random), random.random());
            let image = cuts.cut(moment, fate, &mut StdRng::seed_from_u64(seed));
            let second = Cut { image, moment, seed, recording: &recording };
            let ended = self.look(&second, &mut knowledge);
            self.count.second_cuts += 1;
            ended.map_err(|what| format!("and then {}", self.explain(&second, fate, &what, None)))?;
        }
        Ok(())
    }

    /// Describes a failed cut for a person, and where its image is kept.
    fn explain(&self, cut: &Cut<'_>, fate: Fate, what: &str, rule: Option<Rule>) -> String {
        let kept = if rule.is_none() { self.keep(cut) } else { None };
        let kept = kept.map_or(String::new(), |kept| format!(", kept as {}", kept.display()));
        let sort = cut.recording.history.sort;
        let since = cut.moment.saturating_sub(REQUESTS_TOLD);
        let requests = cut.recording.entries[since..cut.moment].iter().zip(since..);
        let requests: String =
            requests.map(|(entry, number)| format!("  request {number}: {entry}\n")).collect();
        format!("after request {}, {fate:?}, {sort:?}{kept}: {what}\n{requests}", cut.moment)
    }

    fn keep(&self, cut: &Cut<'_>) -> Option<PathBuf> {
        let place = std::env::var_os("POWER_CUTS_KEEP")?;
        let path = Path::new(&place).join(format!("{}-{}.img", self.file_system.name, cut.seed));
        cut.image.write_to(&path).ok().map(|()| path)
    }
}
