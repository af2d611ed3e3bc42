//! The speed of a guest while the data keys of its volume are renewed, four snapshots deep, beside
//! the same layers at rest.

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
pub const RESTING: &str = "without a re-encryption";
/// They are rewritten.
pub const REWRITTEN: &str = "while data keys are renewed";

/// Snapshots, one on each written layer.
const SNAPSHOTS: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// The time for the job to begin: the top's layer is completed first.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(120);
/// How often the volume's directory is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The study.
pub fn study<'study>(config: &'study SnapshotsConfig) -> Result<Study<'study, GuestWorkload>, SubjectError> {
    let device = Disk::under(&config.scratch)?;
    let subject = |name: &'static str, is_rewritten| -> Box<dyn Subject<GuestWorkload> + 'study> {
        let product = config.strongroom(name, true);
        Box::new(Layers { name, product, is_rewritten, device: device.clone(), config })
    };
    let of_each = shown_bytes(layer_bytes(config));
    Ok(Study {
        name: "snapshots, re-encryption".to_owned(),
        settings: BTreeMap::from([(format!("each of {} layers", SNAPSHOTS.len()), of_each)]),
        subjects: vec![subject(RESTING, false), subject(REWRITTEN, true)],
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
    is_rewritten: bool,
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
        if !layers.is_rewritten {
            return guest.measure(warm_up, duration);
        }
        // The job begins and is looked at under load: without it, it has the machine to itself.
        let (mut begun, mut at_end) = (Err("the guest was never warm".into()), Ok(()));
        let measured = guest.measure_beside(warm_up, duration, &mut |moment| match moment {
            Moment::Warm => begun = Job::begin(layers.config, disk),
            Moment::Ending => {
                if let Ok(job) = &mut begun {
                    at_end = job.expect_running();
                }
            }
        });
        let job = begun?;
        let sample = measured?;
        at_end?;
        drop(job);
        Ok(sample)
    }
}

/// `volume rekey --data`, which is killed when this is dropped.
struct Job {
    process: Child,
    told: PathBuf,
}

impl Job {
    /// Starts it, and waits until blocks are moved: a new layer has content.
    fn begin(config: &SnapshotsConfig, disk: &Path) -> Result<Self, SubjectError> {
        let before = layers_of(disk)?;
        let told = disk.with_extension("rekey.log");
        let log = File::create(&told)?;
        let mut command = Command::new(&config.program);
        command.args(["volume", "rekey", "--data"]).arg(disk).arg("--key-file").arg(&config.secret);
        command.arg("--home").arg(disk.with_extension("home"));
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut job = Self { process, told };
        let until = Instant::now() + BEGIN_TIMEOUT;
        // The new top comes first.
        while layers_of(disk)? < before + 2 {
            job.expect_running()?;
            if Instant::now() > until {
                return Err(format!("no layer was rewritten within {BEGIN_TIMEOUT:?}").into());
            }
            thread::sleep(LOOK_PERIOD);
        }
        Ok(job)
    }

    fn expect_running(&mut self) -> Result<(), SubjectError> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let told = std::fs::read_to_string(&self.told).unwrap_or_default();
                Err(format!(
                    "the re-encryption ended before the measurement was over ({status}; {}); choose larger layers",
                    told.trim()
                )
                .into())
            }
        }
    }
}

impl Drop for Job {
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
