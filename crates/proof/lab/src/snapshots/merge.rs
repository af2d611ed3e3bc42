//! The speed of a guest while layers below its own are merged in the background, beside the same
//! layers at rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::chains::{GuestWorkload, serve};
use super::config::{SnapshotsConfig, shown_bytes};
use crate::datapath::guest_load::Moment;
use crate::datapath::subjects::GuestSession;
use crate::first_writes::product::{Product, Strongroom};
use crate::programs::run;
use crate::study::{Baseline, Disk, ReportSettings, Sample, Session, Study, Subject, SubjectError};

/// The layers at rest.
pub const RESTING: &str = "without a merge";
/// Two of them are merged.
pub const MERGING: &str = "while layers are merged";
/// Reads.
pub const READS: &str = "4 KiB random read, depth 32";
/// Writes.
pub const WRITES: &str = "4 KiB random write, depth 32";

/// Snapshots between the three layers.
const LOWER: &str = "lower";
const UPPER: &str = "upper";
/// The time for a merge to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the program is asked how far a merge is.
const ASK_PERIOD: Duration = Duration::from_millis(20);

/// The study.
pub fn study<'study>(config: &'study SnapshotsConfig) -> Result<Study<'study, GuestWorkload>, SubjectError> {
    let device = Disk::under(&config.scratch)?;
    let subject = |name: &'static str, is_merged| -> Box<dyn Subject<GuestWorkload> + 'study> {
        let product = config.strongroom(name, true);
        Box::new(Layers { name, product, is_merged, device: device.clone(), config })
    };
    Ok(Study {
        name: "snapshots, merge".to_owned(),
        settings: BTreeMap::from([("each layer".to_owned(), shown_bytes(config.sizes.merge))]),
        subjects: vec![subject(RESTING, false), subject(MERGING, true)],
        workloads: vec![GuestWorkload::random(READS, 100), GuestWorkload::random(WRITES, 0)],
        pace: config.pace(),
    })
}

/// Ratios are to the layers at rest.
pub fn report_settings() -> ReportSettings {
    ReportSettings::new(vec![Baseline::of(RESTING)])
}

/// A volume of two fully written layers below an empty one.
struct Layers<'study> {
    name: &'static str,
    product: Strongroom,
    is_merged: bool,
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
        let directory = config.fresh_directory("merge")?;
        let disk = directory.join("volume");
        product.create(&disk, config.sizes.merge)?;
        config.fill(&directory, product, &disk, u64::MAX, &[LOWER, UPPER])?;
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
        if !layers.is_merged {
            return guest.measure(warm_up, duration);
        }
        // The merge begins and is looked at under load: without it, it has the machine to itself.
        let (mut begun, mut at_end) = (Ok(()), Ok(None));
        let measured = guest.measure_beside(warm_up, duration, &mut |moment| match moment {
            Moment::Warm => begun = layers.begin_merge(disk),
            Moment::Ending => at_end = layers.product.merge(disk),
        });
        begun?;
        let sample = measured?;
        match at_end? {
            Some(merge) if merge.state == "running" => Ok(sample),
            Some(merge) => Err(format!("the merge does not go on: it is {}", merge.state).into()),
            None => Err("the layers were merged before the measurement was over; choose larger ones".into()),
        }
    }
}

impl Layers<'_> {
    /// Deletes the snapshot between the two lower layers, and waits until blocks are moved.
    fn begin_merge(&self, disk: &Path) -> Result<(), SubjectError> {
        let mut command = Command::new(&self.product.program);
        command.args(["volume", "snapshot", "delete"]).arg(disk).arg(LOWER);
        run(&mut command)?;
        let until = Instant::now() + BEGIN_TIMEOUT;
        loop {
            match self.product.merge(disk)? {
                Some(merge) if merge.copied_bytes > 0 => return Ok(()),
                Some(merge) if merge.state == "failed" => return Err("the merge has failed".into()),
                _ if Instant::now() > until => {
                    return Err(format!("no block was merged within {BEGIN_TIMEOUT:?}").into());
                }
                _ => thread::sleep(ASK_PERIOD),
            }
        }
    }
}
