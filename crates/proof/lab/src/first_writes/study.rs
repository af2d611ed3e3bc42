//! The study itself: the order of the work on one file system.
//!
//! A round performs each step with each product, and the next round does so in reverse order, so
//! that changes of the machine affect all of them. Only one server runs at a time, and the file
//! system is synced before each step.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use rustix::fs::{statfs, statvfs};
use strongroom_types::Extent;

use super::error::StudyError;
use super::order::sequential;
use super::product::Product;
use super::result::{FileSystemResult, SubjectResult};
use super::session::{BLOCK_BYTES, Place, Session};
use super::steps::Step;

/// The assumed log capacity if none is reported: the design's for a volume of 1 GiB.
pub const LOG_BYTES_DEFAULT: u64 = 16 << 20;
/// First writes continue up to this many times the log's size.
pub const LOG_TIMES: u64 = 10;
/// The size of the requests that fill disks, in bytes.
const FILL_BYTES: u64 = 1 << 20;
/// The overhead of disks and file systems: one part in this many of the content.
const OVERHEAD_PART: u64 = 16;

/// The configuration of a study.
#[derive(Clone, Debug)]
pub struct StudyConfig {
    /// The size of each disk.
    pub volume_bytes: u64,
    /// The amount of first writes that counts as "until the log is full"; by default the reported
    /// capacity.
    pub log_bytes: Option<u64>,
    /// The bytes that each sequential phase writes.
    pub sequential_bytes: u64,
    /// The steps of each round with each product.
    pub steps: Vec<Step>,
    /// Rounds.
    pub rounds: u32,
    /// Requests in flight per queue in the sequential phases.
    pub sequential_depth: u16,
    /// The seed.
    pub seed: u64,
}

/// A product in the study.
pub struct Subject {
    /// The product.
    pub product: Box<dyn Product>,
    /// Whether to measure only overwriting, because a preallocated disk has no first writes.
    pub only_overwriting: bool,
}

/// A study on one file system.
pub struct Study<'study> {
    /// The environment.
    pub place: Place,
    /// The configuration.
    pub config: &'study StudyConfig,
    /// The products.
    pub subjects: &'study [Subject],
    /// Receives progress messages.
    pub progress: &'study dyn Fn(&str),
}

impl Study<'_> {
    /// Makes the disks, performs all rounds, and deletes the disks.
    pub fn run(&self) -> Result<FileSystemResult, StudyError> {
        let file_system = self.file_system()?;
        let load_before = load_average();
        let (log_bytes, log_told) = self.log_bytes()?;
        self.check_sizes(log_bytes)?;
        for index in self.written() {
            (self.progress)(&format!("{file_system}: writing all of a disk of {}", self.name(index)));
            self.fill(index)?;
        }
        let mut results: Vec<SubjectResult> =
            self.subjects.iter().map(|subject| SubjectResult::new(subject.product.name())).collect();
        for round in 0..self.config.rounds {
            let steps = |index| self.config.steps.iter().map(move |step| (index, *step));
            let mut order: Vec<_> = (0..self.subjects.len()).flat_map(steps).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for (index, step) in order {
                self.place.sync()?;
                let seed = self.config.seed.wrapping_add(u64::from(round));
                self.step(index, step, log_bytes, seed, &mut results[index])?;
            }
            let of = self.config.rounds;
            (self.progress)(&format!("{file_system}: round {} of {of} is done", round + 1));
        }
        for index in self.written() {
            self.subjects[index].product.delete(&self.written_disk(index))?;
        }
        let load_averages = [load_before, load_average()];
        Ok(FileSystemResult { file_system, log_bytes, log_told, load_averages, subjects: results })
    }

    /// The products that need a fully written disk: all, if any step needs one.
    fn written(&self) -> Range<usize> {
        let overwrites = self.config.steps.iter().any(|step| step.overwrites());
        0..if overwrites { self.subjects.len() } else { 0 }
    }

    fn name(&self, index: usize) -> &str {
        self.subjects[index].product.name()
    }

    /// The path of a disk, in a directory of its own, where a volume may have siblings.
    pub(super) fn written_disk(&self, index: usize) -> PathBuf {
        self.place.directory.join(format!("written-{index}"))
    }

    pub(super) fn fresh_disk(&self, index: usize) -> Result<PathBuf, StudyError> {
        let disk = self.place.directory.join("fresh");
        self.subjects[index].product.create(&disk, self.config.volume_bytes)?;
        self.place.sync()?;
        Ok(disk)
    }

    /// The log's capacity, and whether it was reported.
    fn log_bytes(&self) -> Result<(u64, bool), StudyError> {
        if let Some(log_bytes) = self.config.log_bytes {
            return Ok((log_bytes, false));
        }
        let disk = self.fresh_disk(0)?;
        let log = self.subjects[0].product.log(&disk)?;
        self.subjects[0].product.delete(&disk)?;
        Ok(log.map_or((LOG_BYTES_DEFAULT, false), |log| (log.size_bytes / BLOCK_BYTES * BLOCK_BYTES, true)))
    }

    fn check_sizes(&self, log_bytes: u64) -> Result<(), StudyError> {
        let StudyConfig { volume_bytes, sequential_bytes, .. } = *self.config;
        let least = (log_bytes * LOG_TIMES).max(sequential_bytes * 2);
        if volume_bytes < least {
            let text =
                format!("a volume of {volume_bytes} bytes is too small; it needs {least} bytes at least");
            return Err(StudyError::Sizes(text));
        }
        let path = &self.place.directory;
        let space = statvfs(path).map_err(|errno| StudyError::File {
            action: "ask for the space of",
            path: path.clone(),
            error: errno.into(),
        })?;
        let disks = self.written().len() as u64 + 1;
        let needed = volume_bytes * disks;
        let needed = needed + needed / OVERHEAD_PART;
        let free = space.f_bavail * space.f_frsize;
        if free < needed {
            let path = path.display();
            let text =
                format!("{path} has {free} bytes free and {needed} are needed; choose smaller volumes");
            return Err(StudyError::Sizes(text));
        }
        Ok(())
    }

    /// Makes a fully written disk.
    fn fill(&self, index: usize) -> Result<(), StudyError> {
        let product = &*self.subjects[index].product;
        let disk = self.written_disk(index);
        product.create(&disk, self.config.volume_bytes)?;
        let mut session = Session::open(&self.place, product, &disk)?;
        let all = Extent::between(0, session.disk_bytes());
        session.write(&mut sequential(all, FILL_BYTES), u64::MAX)?;
        session.settle()?;
        session.close().map(drop)
    }

    fn file_system(&self) -> Result<String, StudyError> {
        let path = &self.place.directory;
        let failed = |error| StudyError::File { action: "measure in", path: path.clone(), error };
        // Numbers of statfs(2).
        let name = match statfs(path).map_err(|errno| failed(errno.into()))?.f_type {
            0xEF53 => "ext4".to_owned(),
            0x5846_5342 => "XFS".to_owned(),
            0x9123_683E => "btrfs".to_owned(),
            0x0102_1994 => "tmpfs".to_owned(),
            other => format!("file system {other:#x}"),
        };
        Ok(name)
    }
}

/// The load average of the last minute; zero if the kernel does not report it.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}
