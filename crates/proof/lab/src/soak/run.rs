//! A whole soak, from making its volumes to checking for leftovers.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::conductor::{Conductor, Happened};
use super::error::SoakError;
use super::flat::{Limits, judge};
use super::gate::Gate;
use super::guest::Guest;
use super::kind::Kind;
use super::meter::{Sample, processes, watch};
use super::report::{Done, SoakReport};
use super::schedule::Schedule;
use super::small_disk::SmallDisk;
use super::tools::{LOOK_PERIOD, birth_of};
use super::volume::Volume;
use crate::vhost_user::verify::Report;

/// Guests that make load at the same time: a soak runs for an hour beside other work.
const GUESTS_AT_ONCE: usize = 2;
/// The time for processes to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration of a soak.
#[derive(Clone, Debug)]
pub struct SoakConfig {
    /// The strongroom program.
    pub program: PathBuf,
    /// The directory in which the soak makes its own one.
    pub directory: PathBuf,
    /// The kinds of volumes.
    pub kinds: Vec<Kind>,
    /// The duration of the load.
    pub duration: Duration,
    /// The seed, which determines everything except the order and timing of answers.
    pub seed: u64,
    /// Requests a second over all volumes.
    pub rate: f64,
    /// The mean time between two events.
    pub event_period: Duration,
    /// The time between two samples of the processes.
    pub sample_period: Duration,
    /// The file for the samples, by line; by default in the directory.
    pub samples: Option<PathBuf>,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

/// Runs the soak. Violations are in the report; an error means that it could not be started or
/// ended.
pub fn run(config: &SoakConfig, progress: &(dyn Fn(&str) + Sync)) -> Result<SoakReport, SoakError> {
    let directory = config.directory.join(format!("soak-{}", std::process::id()));
    fs::create_dir_all(&directory).map_err(|error| SoakError::file("make", &directory, error))?;
    let samples_path = config.samples.clone().unwrap_or_else(|| directory.join("samples.jsonl"));
    let mut report = SoakReport {
        seed: config.seed,
        seconds: 0.0,
        asked_seconds: config.duration.as_secs_f64(),
        rate: config.rate,
        done: Vec::new(),
        happened: Happened::default(),
        checked: Vec::new(),
        limits: Limits::for_seconds(config.duration.as_secs_f64()),
        processes: Vec::new(),
        violations: Vec::new(),
        kept: None,
        samples: samples_path.clone(),
    };
    let done = Soak { config, directory: &directory, samples_path: &samples_path, progress }.run(&mut report);
    if let Err(error) = done {
        report.violations.push(error.to_string());
    }
    if report.is_clean() {
        fs::remove_dir_all(&directory).map_err(|error| SoakError::file("delete", &directory, error))?;
    } else {
        report.kept = Some(directory);
    }
    Ok(report)
}

struct Soak<'soak> {
    config: &'soak SoakConfig,
    directory: &'soak Path,
    samples_path: &'soak Path,
    progress: &'soak (dyn Fn(&str) + Sync),
}

impl Soak<'_> {
    fn run(&self, report: &mut SoakReport) -> Result<(), SoakError> {
        let (mut volumes, small) = self.make_volumes()?;
        volumes.iter_mut().try_for_each(Volume::expose)?;
        let watched = volumes.iter().map(|volume| (volume.kind(), volume.supervisor())).collect();
        let file = File::create(self.samples_path);
        let file = file.map_err(|error| SoakError::file("make", self.samples_path, error))?;
        let watch_stop = AtomicBool::new(false);
        let (ended, samples) = thread::scope(|scope| {
            let watching =
                scope.spawn(|| watch(&watched, self.config.sample_period, BufWriter::new(file), &watch_stop));
            let ended = self.load(volumes, small, report);
            watch_stop.store(true, Ordering::Relaxed);
            (ended, watching.join())
        });
        let samples = match samples {
            Ok(Ok(samples)) => samples,
            Ok(Err(error)) => return Err(SoakError::file("write", self.samples_path, error)),
            Err(panic) => std::panic::resume_unwind(panic),
        };
        report.processes = judge(&samples, &report.limits);
        for verdict in &report.processes {
            let of = format!("{} of volume {}", role_name(verdict.role), verdict.volume);
            report.violations.extend(verdict.wrong.iter().map(|wrong| format!("{of}: {wrong}")));
        }
        let (volumes, small) = ended?;
        self.end(volumes, report);
        report.violations.extend(left_processes(&samples));
        drop(small);
        Ok(())
    }

    fn make_volumes(&self) -> Result<(Vec<Volume>, Option<SmallDisk>), SoakError> {
        let place = self.directory.join("datastore");
        let below = self.directory.join("small");
        for path in [&place, &below] {
            fs::create_dir(path).map_err(|error| SoakError::file("make", path, error))?;
        }
        let is_small = self.config.kinds.contains(&Kind::Small);
        let small = is_small.then(|| SmallDisk::new(&below)).transpose()?;
        let make = |kind: &Kind| {
            let create =
                |datastore: &Path| Volume::create(*kind, &self.config.program, self.directory, datastore);
            match &small {
                Some(small) if *kind == Kind::Small => {
                    Ok(create(&small.place().join("datastore"))?.within(small))
                }
                _ => create(&place),
            }
        };
        let volumes = self.config.kinds.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        Ok((volumes, small))
    }

    /// Applies load and events until the time is over or a violation occurs; then reads everything.
    fn load(
        &self,
        volumes: Vec<Volume>,
        small: Option<SmallDisk>,
        report: &mut SoakReport,
    ) -> Result<(Vec<Volume>, Option<SmallDisk>), SoakError> {
        let config = self.config;
        let (gate, stop) = (Gate::new(GUESTS_AT_ONCE), AtomicBool::new(false));
        let rate = config.rate / config.kinds.len().max(1) as f64;
        thread::scope(|scope| {
            let mut loads: Vec<(Kind, ScopedJoinHandle<'_, Result<Report, SoakError>>)> = Vec::new();
            let mut subjects = Vec::new();
            let mut begun = Ok(());
            for (volume, number) in volumes.into_iter().zip(1..) {
                let seed = config.seed.wrapping_mul(1000) + number;
                let kind = volume.kind();
                match Guest::connect(kind, &volume.socket(), seed, rate, &gate, &stop) {
                    Ok((guest, handle)) => {
                        loads.push((kind, scope.spawn(|| guest.run())));
                        subjects.push((volume, handle));
                    }
                    Err(error) => {
                        begun = Err(error);
                        break;
                    }
                }
            }
            let start = Instant::now();
            let (progress, happened) = (self.progress, Happened::default());
            let mut conductor = Conductor { subjects, small, stop: &config.stop, progress, happened, start };
            let schedule = Schedule::new(config.seed, &config.kinds, config.event_period);
            let conducted = begun.and_then(|()| conductor.conduct(schedule, start + config.duration));
            report.seconds = start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            (self.progress)("the load ends; everything is read");
            let mut failed = Vec::new();
            for (kind, load) in loads {
                let bytes = |(volume, _): &(Volume, _)| (volume.kind() == kind).then(|| volume.bytes());
                match load.join() {
                    Ok(Ok(done)) => {
                        let bytes = conductor.subjects.iter().find_map(bytes).unwrap_or_default();
                        report.done.push(Done::new(kind.name(), bytes, &done));
                    }
                    Ok(Err(error)) => failed.push(error.to_string()),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            report.happened = conductor.happened;
            // The load itself reports its end, with more detail.
            let is_told = matches!(conducted, Err(SoakError::NoLoad(_))) && !failed.is_empty();
            report.violations.extend(failed);
            if !is_told {
                conducted?;
            }
            Ok((conductor.subjects.into_iter().map(|(volume, _)| volume).collect(), conductor.small))
        })
    }

    /// Closes, checks and deletes every volume.
    fn end(&self, volumes: Vec<Volume>, report: &mut SoakReport) {
        for mut volume in volumes {
            let name = volume.kind().name();
            (self.progress)(&format!("volume {name} is closed, checked and deleted"));
            let mut ended = || {
                volume.close()?;
                volume.check()?;
                // Failed volumes are kept.
                if report.violations.is_empty() { volume.delete() } else { Ok(Vec::new()) }
            };
            match ended() {
                Ok(left) => {
                    report.violations.extend(left.iter().map(|left| format!("left of {name}: {left}")))
                }
                Err(error) => report.violations.push(error.to_string()),
            }
            report.checked.push(name.to_owned());
        }
    }
}

fn role_name(role: super::meter::Role) -> &'static str {
    match role {
        super::meter::Role::Supervisor => "supervisor",
        super::meter::Role::Worker => "worker",
    }
}

/// Sampled processes that still exist.
fn left_processes(samples: &[Sample]) -> Vec<String> {
    let until = Instant::now() + END_TIMEOUT;
    loop {
        let seen = processes(samples);
        let left: Vec<_> = seen.iter().filter(|((pid, birth), _)| birth_of(*pid) == Some(*birth)).collect();
        if left.is_empty() || Instant::now() > until {
            let tell = |((pid, _), role): &(&(u32, u64), &super::meter::Role)| {
                format!("process {pid}, a {}, is left", role_name(**role))
            };
            return left.iter().map(tell).collect();
        }
        thread::sleep(LOOK_PERIOD);
    }
}
