//! The speed of a guest while a job reads the layers of its volume, four snapshots deep, beside the
//! same layers at rest: its data keys are renewed, or it moves to another directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::chains::{GuestWorkload, serve};
use super::config::{SnapshotsConfig, shown_bytes};
use super::merge::{READS, WRITES};
use crate::datapath::guest_load::Moment;
use crate::datapath::subjects::GuestSession;
use crate::first_writes::product::{Product, Strongroom};
use crate::study::{Baseline, Disk, ReportSettings, Sample, Session, Study, Subject, SubjectError};

/// The layers at rest.
pub const RESTING: &str = "without a job";

/// Snapshots, one on each written layer.
const SNAPSHOTS: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// What a move says that has copied all but what the guest writes.
const WAITS: &str = "end its exposure now";
/// The time for the job to begin: the top's layer is completed first.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the volume's directory is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// What is done with the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// They are rewritten under new data keys.
    Renewal,
    /// They are copied to another directory.
    Move,
}

impl Job {
    /// The subject in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Renewal => "while data keys are renewed",
            Self::Move => "while the volume moves",
        }
    }

    fn study(self) -> &'static str {
        match self {
            Self::Renewal => "snapshots, re-encryption",
            Self::Move => "snapshots, move",
        }
    }

    fn command(self, config: &SnapshotsConfig, disk: &Path) -> Command {
        let mut command = Command::new(&config.program);
        command.arg("volume");
        match self {
            Self::Renewal => command.args(["rekey", "--data"]),
            Self::Move => command.arg("move").arg("--to").arg(destination(disk)),
        };
        command.arg(disk).arg("--key-file").arg(&config.secret);
        command.arg("--home").arg(disk.with_extension("home"));
        command
    }

    /// Where its first new layer appears.
    fn writes_in(self, disk: &Path) -> Result<Option<PathBuf>, SubjectError> {
        match self {
            Self::Renewal => Ok(Some(disk.to_owned())),
            // A hidden directory until all of it is there.
            Self::Move => {
                let entries = std::fs::read_dir(destination(disk))?;
                Ok(entries.collect::<Result<Vec<_>, _>>()?.first().map(std::fs::DirEntry::path))
            }
        }
    }
}

/// The directory that a volume moves to.
fn destination(disk: &Path) -> PathBuf {
    disk.with_extension("moved")
}

/// The study.
pub fn study<'study>(
    job: Job,
    config: &'study SnapshotsConfig,
) -> Result<Study<'study, GuestWorkload>, SubjectError> {
    let device = Disk::under(&config.scratch)?;
    let subject = |job: Option<Job>| -> Box<dyn Subject<GuestWorkload> + 'study> {
        let name = job.map_or(RESTING, Job::name);
        let product = config.strongroom(name, true);
        Box::new(Layers { name, product, job, device: device.clone(), config })
    };
    let of_each = shown_bytes(layer_bytes(config));
    Ok(Study {
        name: job.study().to_owned(),
        settings: BTreeMap::from([(format!("each of {} layers", SNAPSHOTS.len()), of_each)]),
        subjects: vec![subject(None), subject(Some(job))],
        workloads: vec![GuestWorkload::random(READS, 100), GuestWorkload::random(WRITES, 0)],
        pace: config.pace(),
    })
}

/// Ratios are to the layers at rest.
pub fn report_settings() -> ReportSettings {
    ReportSettings::new(vec![Baseline::of(RESTING)])
}

fn layer_bytes(config: &SnapshotsConfig) -> u64 {
    config.sizes.merge / 2
}

/// A volume of four fully written layers, each with a snapshot, below an empty one.
struct Layers<'study> {
    name: &'static str,
    product: Strongroom,
    job: Option<Job>,
    device: Option<Disk>,
    config: &'study SnapshotsConfig,
}

impl Subject<GuestWorkload> for Layers<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &GuestWorkload) -> bool {
        true
    }

    fn open(&mut self, workload: &GuestWorkload) -> Result<Box<dyn Session + '_>, SubjectError> {
        let Self { name, product, config, device, .. } = &*self;
        let directory = config.fresh_directory("reencrypt")?;
        let disk = directory.join("volume");
        product.create(&disk, layer_bytes(config))?;
        config.fill(&directory, product, &disk, u64::MAX, &SNAPSHOTS)?;
        let guest = serve(name, product, &disk, &directory, workload, device.as_ref(), config)?;
        Ok(Box::new(Loaded { layers: &*self, guest, disk }))
    }
}

struct Loaded<'study> {
    layers: &'study Layers<'study>,
    guest: GuestSession<'study>,
    disk: PathBuf,
}

impl Session for Loaded<'_> {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        let Self { layers, guest, disk } = self;
        let Some(job) = layers.job else { return guest.measure(warm_up, duration) };
        // The job begins and is looked at under load: without it, it has the machine to itself.
        let (mut begun, mut at_end) = (Err("the guest was never warm".into()), Ok(()));
        let measured = guest.measure_beside(warm_up, duration, &mut |moment| match moment {
            Moment::Warm => begun = Running::begin(job, layers.config, disk),
            Moment::Ending => {
                if let Ok(running) = &mut begun {
                    at_end = running.expect_work();
                }
            }
        });
        let running = begun?;
        let sample = measured?;
        at_end?;
        drop(running);
        Ok(sample)
    }
}

/// The command of a job, which is killed when this is dropped.
struct Running {
    process: Child,
    told: PathBuf,
}

impl Running {
    /// Starts it, and waits until blocks are moved: a new layer has content.
    fn begin(job: Job, config: &SnapshotsConfig, disk: &Path) -> Result<Self, SubjectError> {
        if job == Job::Move {
            std::fs::create_dir(destination(disk))?;
        }
        // A new top comes first.
        let expected = match job {
            Job::Renewal => layers_of(disk)? + 2,
            Job::Move => 1,
        };
        let told = disk.with_extension("log");
        let log = File::create(&told)?;
        let mut command = job.command(config, disk);
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut running = Self { process, told };
        let until = Instant::now() + BEGIN_TIMEOUT;
        loop {
            running.expect_work()?;
            if let Some(place) = job.writes_in(disk)?
                && layers_of(&place)? >= expected
            {
                return Ok(running);
            }
            if Instant::now() > until {
                return Err(format!("no layer was written within {BEGIN_TIMEOUT:?}").into());
            }
            thread::sleep(LOOK_PERIOD);
        }
    }

    /// Fails if it has nothing left to do, as a move that waits for the end of the exposure.
    fn expect_work(&mut self) -> Result<(), SubjectError> {
        let told = std::fs::read_to_string(&self.told)?;
        let waits = told.contains(WAITS);
        match self.process.try_wait()? {
            None if !waits => Ok(()),
            _ => {
                let told = told.trim();
                Err(format!("nothing was left to do before the end ({told}); choose larger layers").into())
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already needs no more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The number of layers' files of a volume.
fn layers_of(disk: &Path) -> Result<usize, SubjectError> {
    let entries = std::fs::read_dir(disk)?.collect::<Result<Vec<_>, _>>()?;
    let is_layer = |entry: &&std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with("layer-");
    Ok(entries.iter().filter(is_layer).count())
}
