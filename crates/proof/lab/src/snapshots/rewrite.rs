//! How fast a volume that nobody uses is rewritten under new data keys, beside a raw copy of its
//! blocks, and beside `qemu-img convert` from LUKS to LUKS.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::config::{SnapshotsConfig, shown_bytes};
use crate::first_writes::product::Product;
use crate::programs::{option_value, run};
use crate::qemu_img::{self, KEY_HASH};
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// Ours.
pub const OURS: &str = "strongroom, rekey --data";
const RAW: &str = "a raw copy";
const LUKS: &str = "qemu-img convert, LUKS to LUKS";

/// How often a conversion is tried.
const ATTEMPTS: u32 = 10;

/// What is timed.
pub struct Timed {
    name: String,
}

impl Workload for Timed {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        Metric::MegabytesPerSecond
    }
}

/// The study, with its disks made: one of ours, which is rewritten and copied, and an image.
pub fn study<'study>(config: &'study SnapshotsConfig) -> Result<Study<'study, Timed>, SubjectError> {
    let bytes = config.sizes.merge;
    let directory = config.fresh_directory("rewrite")?;
    let volume = directory.join("volume");
    let product = config.strongroom(OURS, true);
    product.create(&volume, bytes)?;
    config.fill(&directory, &product, &volume, bytes, &[])?;
    let mut subjects: Vec<Box<dyn Subject<Timed> + 'study>> = Vec::new();
    let mut add = |name: &'static str, way| {
        let (volume, directory) = (volume.clone(), directory.clone());
        subjects.push(Box::new(Rewriting { name, way, volume, directory, config }));
    };
    add(RAW, Way::Raw);
    add(OURS, Way::Ours);
    if config.has_peers {
        let image = directory.join("image");
        // Content as incompressible as ours: the ciphertext itself.
        let mut convert = Command::new("qemu-img");
        let target = luks_target(&config.secret);
        convert.args(["convert", "-f", "raw", "-O", "luks", "-t", "none", "-T", "none"]);
        convert.args(target.iter().map(String::as_str)).arg(layer_of(&volume)?).arg(&image);
        qemu_img::create(&mut convert)?;
        add(LUKS, Way::Luks);
    }
    Ok(Study {
        name: "snapshots, rewriting".to_owned(),
        settings: BTreeMap::new(),
        subjects,
        workloads: vec![Timed { name: format!("{}, all of it written", shown_bytes(bytes)) }],
        // Each measurement is one rewriting.
        pace: Pace { rounds: config.rounds, warm_up: Duration::ZERO, duration: Duration::from_secs(1) },
    })
}

/// Ratios are to a raw copy, and to the other product.
pub fn report_settings() -> ReportSettings {
    let baselines = vec![Baseline::of(RAW), Baseline::of(LUKS)];
    ReportSettings { columns: Vec::new(), ..ReportSettings::new(baselines) }
}

/// How the blocks are rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Raw,
    Ours,
    Luks,
}

struct Rewriting<'study> {
    name: &'static str,
    way: Way,
    volume: PathBuf,
    directory: PathBuf,
    config: &'study SnapshotsConfig,
}

impl Subject<Timed> for Rewriting<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &Timed) -> bool {
        true
    }

    fn open(&mut self, _: &Timed) -> Result<Box<dyn Session + '_>, SubjectError> {
        Ok(Box::new(Measured(self)))
    }
}

struct Measured<'study>(&'study Rewriting<'study>);

impl Session for Measured<'_> {
    fn measure(&mut self, _: Duration, _: Duration) -> Result<Sample, SubjectError> {
        let Rewriting { way, volume, directory, config, .. } = self.0;
        let copy = directory.join("copy");
        let mut command = match way {
            // As the others do: past the page cache, and durable at the end.
            Way::Raw => {
                let mut command = Command::new("dd");
                command.args(["bs=1M", "iflag=direct", "oflag=direct", "conv=fsync", "status=none"]);
                command.arg(format!("if={}", layer_of(volume)?.display()));
                command.arg(format!("of={}", copy.display()));
                command
            }
            Way::Ours => {
                let mut command = Command::new(&config.program);
                command.args(["volume", "rekey", "--data"]).arg(volume);
                command.arg("--key-file").arg(&config.secret).arg("--home").arg(directory.join("home"));
                command
            }
            Way::Luks => {
                let mut command = Command::new("qemu-img");
                command.args(["convert", "--image-opts", "-O", "luks", "-t", "none", "-T", "none"]);
                command.args(luks_target(&config.secret));
                let image = option_value(&directory.join("image"));
                command
                    .arg(format!("driver=luks,key-secret=passphrase,file.driver=file,file.filename={image}"));
                command.arg(&copy);
                command
            }
        };
        let mut start = Instant::now();
        let mut done = run(&mut command);
        if *way == Way::Luks {
            // Its key derivation may fail at first (`qemu_img::create`), which is not part of it.
            for _ in 1..ATTEMPTS {
                if done.is_ok() {
                    break;
                }
                start = Instant::now();
                done = run(&mut command);
            }
        }
        done?;
        let elapsed = start.elapsed();
        match fs::remove_file(&copy) {
            Err(error) if *way != Way::Ours => return Err(error.into()),
            _ => {}
        }
        let mut sample = Sample::default();
        sample.set(Metric::MegabytesPerSecond, config.sizes.merge as f64 / 1e6 / elapsed.as_secs_f64());
        Ok(sample)
    }
}

/// The options of a new image with LUKS, whose key derivation takes no time worth measuring.
fn luks_target(secret: &Path) -> [String; 4] {
    let object = format!("secret,id=passphrase,file={}", option_value(secret));
    let options = format!("key-secret=passphrase,iter-time=10,{KEY_HASH}");
    ["--object".to_owned(), object, "-o".to_owned(), options]
}

/// The file of the only layer of a volume.
fn layer_of(volume: &Path) -> Result<PathBuf, SubjectError> {
    let entries = fs::read_dir(volume)?.collect::<Result<Vec<_>, _>>()?;
    let is_layer = |entry: &&fs::DirEntry| entry.file_name().to_string_lossy().starts_with("layer-");
    let layer = entries.iter().find(is_layer).ok_or("the volume has no layer")?;
    Ok(layer.path())
}
