//! How long guests wait while snapshots of their volumes are made at one instant.
//!
//! A measurement has volumes of its own, each served to a guest that writes at random. Windows
//! alternate: one without anything, one with a snapshot. What is reported is how much longer the
//! longest gap between two answers is in the second.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use strongroom_types::Extent;

use super::config::{SnapshotsConfig, remove_directory, shown_bytes};
use super::pairs::{Line, Pair, PairFile, quantile};
use super::windows::Watched;
use crate::first_writes::order::Shuffled;
use crate::first_writes::product::{Product, Strongroom};
use crate::first_writes::session::{BLOCK_BYTES, Session as Guest};
use crate::first_writes::writer::{Answers, Timed};
use crate::programs::{line_of, run};
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// Our volumes, whose snapshots are made at one instant.
pub const ENCRYPTED: &str = "encrypted";
/// The same without encryption.
pub const CLEAR: &str = "clear";
/// Each volume's snapshot is made by a command of its own, one after the other.
pub const ONE_BY_ONE: &str = "encrypted, one volume after the other";

/// The load before the first window, and between the windows of two pairs.
const WARM_UP: Duration = Duration::from_millis(500);
const REST: Duration = Duration::from_millis(100);

/// Volumes and the load on each.
pub struct Group {
    name: String,
    volumes: u16,
    depth: u16,
}

impl Group {
    /// A group.
    pub fn new(volumes: u16, depth: u16) -> Self {
        let plural = if volumes == 1 { "" } else { "s" };
        Self { name: format!("{volumes} volume{plural}, depth {depth}"), volumes, depth }
    }
}

impl Workload for Group {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        Metric::LongestGapMs
    }
}

/// The study. `pairs` gets the pairs of all its measurements.
pub fn study<'study>(config: &'study SnapshotsConfig, pairs: &Arc<PairFile>) -> Study<'study, Group> {
    let subject = |name: &'static str, is_encrypted, is_at_once| -> Box<dyn Subject<Group> + 'study> {
        let product = config.strongroom(name, is_encrypted);
        Box::new(Volumes { name, product, is_at_once, config, pairs: Arc::clone(pairs) })
    };
    let subjects =
        vec![subject(ENCRYPTED, true, true), subject(CLEAR, false, true), subject(ONE_BY_ONE, true, false)];
    let of =
        |volumes: &u16| config.depths.iter().map(|depth| Group::new(*volumes, *depth)).collect::<Vec<_>>();
    Study {
        name: "snapshots, gap".to_owned(),
        settings: BTreeMap::from([
            ("a volume".to_owned(), shown_bytes(config.sizes.group)),
            ("pairs of windows".to_owned(), config.pairs.to_string()),
        ]),
        subjects,
        workloads: config.volumes.iter().flat_map(of).collect(),
        pace: Pace { rounds: config.rounds, warm_up: WARM_UP, duration: config.window },
    }
}

/// Ratios are to clear volumes.
pub fn report_settings() -> ReportSettings {
    ReportSettings {
        columns: vec![Metric::ControlGapMs, Metric::OperationsPerSecond],
        ..ReportSettings::new(vec![Baseline::of(CLEAR)])
    }
}

/// Volumes of one kind, and how their snapshots are made.
struct Volumes<'study> {
    name: &'static str,
    product: Strongroom,
    is_at_once: bool,
    config: &'study SnapshotsConfig,
    pairs: Arc<PairFile>,
}

impl Subject<Group> for Volumes<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, group: &Group) -> bool {
        self.is_at_once || group.volumes > 1
    }

    fn open(&mut self, group: &Group) -> Result<Box<dyn Session + '_>, SubjectError> {
        let directory = self.config.fresh_directory("group")?;
        let mut session = Guests {
            volumes: &*self,
            workload: group.name.clone(),
            directory: directory.clone(),
            disks: Vec::new(),
            guests: Vec::new(),
            snapshots: 0,
        };
        for number in 0..group.volumes {
            let own = self.config.fresh_directory(&format!("group/{number}"))?;
            let disk = own.join("volume");
            self.product.create(&disk, self.config.sizes.group)?;
            let place = self.config.place(&own, group.depth);
            session.guests.push(Guest::open(&place, &self.product, &disk)?);
            session.disks.push(disk);
        }
        Ok(Box::new(session))
    }
}

/// Served volumes with their guests. They are ended in order, and removed.
struct Guests<'study> {
    volumes: &'study Volumes<'study>,
    workload: String,
    directory: PathBuf,
    disks: Vec<PathBuf>,
    guests: Vec<Guest<'study>>,
    /// How many snapshots were made so far.
    snapshots: usize,
}

impl Session for Guests<'_> {
    fn measure(&mut self, warm_up: Duration, window: Duration) -> Result<Sample, SubjectError> {
        let wanted = self.volumes.config.pairs;
        let mut pairs = Vec::new();
        let (mut operations, mut seconds) = (0, 0.0);
        while pairs.len() < wanted {
            let begun = Instant::now();
            let first = self.snapshots;
            // One snapshot is made before the first pair.
            let count = (wanted - pairs.len()).min(self.volumes.config.snapshots_max - 1);
            let (timed, more) = self.load(count, warm_up, window)?;
            operations += timed.iter().map(|timed| timed.operations).sum::<u64>();
            seconds += begun.elapsed().as_secs_f64();
            pairs.extend(more);
            if pairs.len() < wanted {
                self.merge(first)?;
            }
        }
        let (subject, workload) = (self.volumes.name.to_owned(), self.workload.clone());
        let mut sample = Sample::default();
        sample.set(Metric::LongestGapMs, quantile(&pairs, 0.5, &|pair| pair.snapshot_ms));
        sample.set(Metric::ControlGapMs, quantile(&pairs, 0.5, &|pair| pair.control_ms));
        sample.set(Metric::OperationsPerSecond, operations as f64 / seconds.max(f64::MIN_POSITIVE));
        self.volumes.pairs.append(&Line { subject, workload, pairs })?;
        Ok(sample)
    }
}

impl Guests<'_> {
    /// Has all guests write while `count` pairs of windows pass, and verifies what they have
    /// written, and that the same processes serve them throughout.
    fn load(
        &mut self,
        count: usize,
        warm_up: Duration,
        window: Duration,
    ) -> Result<(Vec<Timed>, Vec<Pair>), SubjectError> {
        let Self { volumes, disks, guests, snapshots, .. } = self;
        let servers = guests.iter_mut().map(Guest::processes).collect::<Result<Vec<_>, _>>()?;
        let answers: Vec<Answers> = guests.iter().map(|_| Answers::default()).collect();
        let is_over = AtomicBool::new(false);
        let pass = *snapshots as u64 + 1;
        let (timed, pairs) = thread::scope(|scope| {
            let loads: Vec<_> = (0_u64..)
                .zip(guests.iter_mut().zip(&answers))
                .map(|(seed, (guest, answers))| {
                    let is_over = &is_over;
                    scope.spawn(move || {
                        guest.set_pass(pass);
                        let mut order = endless(guest.disk_bytes(), seed);
                        guest.write_noting(
                            &mut order.by_ref().take_while(|_| !is_over.load(Ordering::Relaxed)),
                            answers,
                        )
                    })
                })
                .collect();
            let has_failed = || loads.iter().any(|load| load.is_finished());
            let watched = Watched { answers: &answers, has_failed: &has_failed, stop: &volumes.config.stop };
            let pairs = volumes.pairs(&watched, disks, snapshots, count, warm_up, window);
            is_over.store(true, Ordering::Relaxed);
            let mut timed = Vec::new();
            for load in loads {
                match load.join() {
                    // A guest's error is more specific than that its load has ended.
                    Ok(loaded) => timed.push(loaded?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok::<_, SubjectError>((timed, pairs?))
        })?;
        for (((guest, timed), before), seed) in guests.iter_mut().zip(&timed).zip(servers).zip(0..) {
            if guest.processes()? != before {
                return Err("a snapshot has replaced the processes that serve a guest".into());
            }
            let blocks = guest.disk_bytes() / BLOCK_BYTES;
            guest.verify(endless(guest.disk_bytes(), seed), timed.operations.min(blocks))?;
        }
        Ok((timed, pairs))
    }

    /// Deletes the snapshots since `first`, and merges their layers, while nobody writes.
    fn merge(&self, first: usize) -> Result<(), SubjectError> {
        let (product, numbers) = (&self.volumes.product, first..self.snapshots);
        let delete = |disk: &PathBuf| {
            numbers.clone().try_for_each(|number| product.delete_snapshot(disk, &snapshot_name(number)))
        };
        let delete = &delete;
        thread::scope(|scope| {
            let merges: Vec<_> = self.disks.iter().map(|disk| scope.spawn(move || delete(disk))).collect();
            for merge in merges {
                match merge.join() {
                    Ok(merged) => merged?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok(())
        })
    }
}

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        for guest in self.guests.drain(..) {
            if let Err(error) = guest.close() {
                eprintln!("strongroom-lab: {error}");
            }
        }
        if let Err(error) = remove_directory(&self.directory) {
            eprintln!(
                "strongroom-lab: cannot delete {}: {error}; delete it by hand",
                self.directory.display()
            );
        }
    }
}

impl Volumes<'_> {
    /// Measures pairs of windows beside the load. A window without a snapshot is as long as the
    /// last one with a snapshot, because the longest gap grows with the window.
    fn pairs(
        &self,
        watched: &Watched<'_>,
        disks: &[PathBuf],
        snapshots: &mut usize,
        count: usize,
        warm_up: Duration,
        window: Duration,
    ) -> Result<Vec<Pair>, SubjectError> {
        let mut snapshot = || {
            let begun = Instant::now();
            let told = self.snapshot(disks, *snapshots)?;
            *snapshots += 1;
            Ok::<_, SubjectError>((told, begun.elapsed()))
        };
        watched.wait(Instant::now() + warm_up)?;
        let mut lasts = watched.watch(window, &mut || snapshot().map(|_| ()))?.lasted;
        let mut pairs = Vec::new();
        for _ in 0..count {
            watched.wait(Instant::now() + REST)?;
            let control = watched.watch(lasts, &mut || Ok(()))?;
            let mut facts = (Duration::ZERO, Duration::ZERO);
            let seen = watched.watch(window, &mut || {
                facts = snapshot()?;
                Ok(())
            })?;
            lasts = seen.lasted;
            let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
            let (told, command) = facts;
            pairs.push(Pair {
                control_ms: ms(control.gap),
                snapshot_ms: ms(seen.gap),
                told_ms: ms(told),
                command_ms: ms(command),
            });
        }
        Ok(pairs)
    }

    /// Makes a snapshot of all volumes; returns the longest wait of a volume's clients by the
    /// program's own account.
    fn snapshot(&self, disks: &[PathBuf], number: usize) -> Result<Duration, SubjectError> {
        let at_once = if self.is_at_once { disks.len() } else { 1 };
        let mut longest = Duration::ZERO;
        for disks in disks.chunks(at_once.max(1)) {
            let mut command = self.product.snapshot_command(disks, &snapshot_name(number));
            let answer = run(&mut command)?;
            let made: Made = serde_json::from_slice(&answer)
                .map_err(|error| format!("{} did not answer as expected: {error}", line_of(&command)))?;
            let stalls = made.stalls();
            if stalls.len() != disks.len() {
                let (told, of) = (stalls.len(), disks.len());
                return Err(format!("{}: {told} of {of} volumes were exposed", line_of(&command)).into());
            }
            longest = stalls.into_iter().fold(longest, Duration::max);
        }
        Ok(longest)
    }
}

/// The answer of `volume snapshot create`, of one volume or of several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Made {
    Several { snapshots: Vec<MadeOne> },
    One(MadeOne),
}

#[derive(Deserialize)]
struct MadeOne {
    stall_microseconds: Option<u64>,
}

impl Made {
    /// How long the clients of each exposed volume waited.
    fn stalls(&self) -> Vec<Duration> {
        let made = match self {
            Self::Several { snapshots } => snapshots.as_slice(),
            Self::One(one) => std::slice::from_ref(one),
        };
        made.iter().filter_map(|one| one.stall_microseconds).map(Duration::from_micros).collect()
    }
}

fn snapshot_name(number: usize) -> String {
    format!("s{number}")
}

/// All blocks of a disk in random order, and again in another order.
fn endless(disk_bytes: u64, seed: u64) -> impl Iterator<Item = Extent> {
    let blocks = (disk_bytes / BLOCK_BYTES) as u32;
    (0_u64..).flat_map(move |time| Shuffled::new(blocks, BLOCK_BYTES, seed << 32 | time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_told_of_one_volume_and_of_several() {
        let stalls = |text: &str| serde_json::from_str::<Made>(text).unwrap().stalls();
        let ms = Duration::from_millis;
        assert_eq!(stalls(r#"{"path": "a", "stall_microseconds": 2000}"#), [ms(2)]);
        assert!(stalls(r#"{"path": "a", "stall_microseconds": null}"#).is_empty());
        let several = r#"{"snapshots": [{"stall_microseconds": 3000}, {"stall_microseconds": 1000}]}"#;
        assert_eq!(stalls(several), [ms(3), ms(1)]);
    }

    #[test]
    fn an_endless_order_has_all_blocks_again_and_again() {
        let order: Vec<u64> = endless(8 * BLOCK_BYTES, 3).take(16).map(|extent| extent.offset()).collect();
        let (first, second) = order.split_at(8);
        let sorted = |order: &[u64]| {
            let mut order = order.to_vec();
            order.sort_unstable();
            order
        };
        assert_eq!(sorted(first), (0..8).map(|block| block * BLOCK_BYTES).collect::<Vec<_>>());
        assert_eq!(sorted(first), sorted(second));
        assert_ne!(first, second);
    }
}
