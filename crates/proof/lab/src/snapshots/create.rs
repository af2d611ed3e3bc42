//! How long making a snapshot of a large disk takes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::config::{SnapshotsConfig, shown_bytes};
use crate::first_writes::product::Product;
use crate::first_writes::session::Session as Guest;
use crate::programs::{option_value, run};
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// Our volume, with a guest connected.
pub const EXPOSED: &str = "strongroom, exposed to a guest";
const NOT_EXPOSED: &str = "strongroom, not exposed";
const OVERLAY: &str = "qemu-img create -b";
const INTERNAL: &str = "qemu-img snapshot";

const SNAPSHOT: &str = "timed";

/// What is timed.
pub struct Timed {
    name: String,
}

impl Workload for Timed {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        Metric::ElapsedMs
    }
}

/// The study, with its disks made.
pub fn study<'study>(config: &'study SnapshotsConfig) -> Result<Study<'study, Timed>, SubjectError> {
    let bytes = config.sizes.created;
    let mut subjects: Vec<Box<dyn Subject<Timed> + 'study>> = Vec::new();
    let mut add = |name: &'static str, way, product: Box<dyn Product>| -> Result<(), SubjectError> {
        let directory = config.fresh_directory(&format!("create-{}", subjects.len()))?;
        let disk = directory.join("disk");
        product.create(&disk, bytes)?;
        config.fill(&directory, &*product, &disk, config.sizes.created_content, &[])?;
        subjects.push(Box::new(Disk { name, way, product, disk, directory, config }));
        Ok(())
    };
    add(EXPOSED, Way::Exposed, Box::new(config.strongroom(EXPOSED, true)))?;
    add(NOT_EXPOSED, Way::Product, Box::new(config.strongroom(NOT_EXPOSED, true)))?;
    if config.has_peers {
        add(OVERLAY, Way::Product, Box::new(config.qcow2(OVERLAY)))?;
        add(INTERNAL, Way::Internal, Box::new(config.qcow2(INTERNAL)))?;
    }
    Ok(Study {
        name: "snapshots, create".to_owned(),
        settings: BTreeMap::from([("written".to_owned(), shown_bytes(config.sizes.created_content))]),
        subjects,
        workloads: vec![Timed { name: format!("a snapshot of a disk of {}", shown_bytes(bytes)) }],
        // Each measurement is one snapshot.
        pace: Pace { rounds: config.rounds, warm_up: Duration::ZERO, duration: Duration::from_secs(1) },
    })
}

/// Ratios are to a new overlay.
pub fn report_settings() -> ReportSettings {
    ReportSettings { columns: Vec::new(), ..ReportSettings::new(vec![Baseline::of(OVERLAY)]) }
}

/// How a snapshot is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the product, while it serves the disk.
    Exposed,
    /// By the product, while nobody has the disk.
    Product,
    /// Within the image.
    Internal,
}

struct Disk<'study> {
    name: &'static str,
    way: Way,
    product: Box<dyn Product>,
    disk: PathBuf,
    directory: PathBuf,
    config: &'study SnapshotsConfig,
}

impl Subject<Timed> for Disk<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &Timed) -> bool {
        true
    }

    fn open(&mut self, _: &Timed) -> Result<Box<dyn Session + '_>, SubjectError> {
        let guest = match self.way {
            Way::Exposed => {
                Some(Guest::open(&self.config.place(&self.directory, 1), &*self.product, &self.disk)?)
            }
            Way::Product | Way::Internal => None,
        };
        Ok(Box::new(Making { disk: self, guest }))
    }
}

struct Making<'study> {
    disk: &'study Disk<'study>,
    guest: Option<Guest<'study>>,
}

impl Session for Making<'_> {
    fn measure(&mut self, _: Duration, _: Duration) -> Result<Sample, SubjectError> {
        let Disk { way, product, disk, config, .. } = self.disk;
        let start = Instant::now();
        let elapsed = match way {
            Way::Internal => {
                run(&mut internal(&config.secret, disk, "-c"))?;
                let elapsed = start.elapsed();
                run(&mut internal(&config.secret, disk, "-d"))?;
                elapsed
            }
            Way::Exposed | Way::Product => {
                product.snapshot(disk, SNAPSHOT)?;
                let elapsed = start.elapsed();
                product.delete_snapshot(disk, SNAPSHOT)?;
                elapsed
            }
        };
        if let Some(mut guest) = self.guest.take() {
            // Its server has another process now.
            guest.processes()?;
            guest.close()?;
        }
        let mut sample = Sample::default();
        sample.set(Metric::ElapsedMs, elapsed.as_secs_f64() * 1e3);
        Ok(sample)
    }
}

/// Makes or deletes a snapshot within a qcow2 image with LUKS.
fn internal(secret: &Path, image: &Path, what: &str) -> Command {
    let mut command = Command::new("qemu-img");
    let secret = format!("secret,id=passphrase,file={}", option_value(secret));
    let image = option_value(image);
    let options =
        format!("driver=qcow2,encrypt.key-secret=passphrase,file.driver=file,file.filename={image}");
    command.args(["snapshot", "--object", &secret, "--image-opts", what, SNAPSHOT, &options]);
    command
}
