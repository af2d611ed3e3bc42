//! The study itself: what is done in which order on one file system.
//!
//! A round does each step with each product, the next round in the opposite order, so that what
//! changes on the machine meanwhile meets all of them. Only one server runs at a time, and the file
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

/// Where nobody says how much the log holds: what the design gives a volume of 1 GiB.
pub const LOG_BYTES_DEFAULT: u64 = 16 << 20;
/// First writes go on until so many times the log's size.
pub const LOG_TIMES: u64 = 10;
/// Disks are filled by requests of this, in bytes.
const FILL_BYTES: u64 = 1 << 20;
/// What disks and file systems have beside their content, as parts of it: one in this many.
const OVERHEAD_PART: u64 = 16;

/// How much is done.
#[derive(Clone, Debug)]
pub struct StudyConfig {
    /// Of each disk.
    pub volume_bytes: u64,
    /// How much of first writes counts as "until the log is full"; by default what the log says of
    /// itself.
    pub log_bytes: Option<u64>,
    /// How much each sequential phase writes.
    pub sequential_bytes: u64,
    /// What each round does with each product.
    pub steps: Vec<Step>,
    /// Rounds.
    pub rounds: u32,
    /// Requests in flight per queue in the sequential phases.
    pub sequential_depth: u16,
    /// Where chance begins.
    pub seed: u64,
}

/// A product, and what of it is of interest.
pub struct Subject {
    /// The product.
    pub product: Box<dyn Product>,
    /// Only overwriting: there are no first writes where space is taken beforehand.
    pub only_overwriting: bool,
}

/// A study on one file system.
pub struct Study<'study> {
    /// Where.
    pub place: Place,
    /// How much.
    pub config: &'study StudyConfig,
    /// Of what.
    pub subjects: &'study [Subject],
    /// Is told what is done.
    pub progress: &'study dyn Fn(&str),
}

impl Study<'_> {
    /// Makes the disks, does all rounds, and deletes the disks.
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

    /// The products of which a disk is written everywhere beforehand: all, if any step needs that.
    fn written(&self) -> Range<usize> {
        let overwrites = self.config.steps.iter().any(|step| step.overwrites());
        0..if overwrites { self.subjects.len() } else { 0 }
    }

    fn name(&self, index: usize) -> &str {
        self.subjects[index].product.name()
    }

    /// Each disk is in a directory of its own, where a volume may have siblings.
    pub(super) fn written_disk(&self, index: usize) -> PathBuf {
        self.place.directory.join(format!("written-{index}"))
    }

    pub(super) fn fresh_disk(&self, index: usize) -> Result<PathBuf, StudyError> {
        let disk = self.place.directory.join("fresh");
        self.subjects[index].product.create(&disk, self.config.volume_bytes)?;
        self.place.sync()?;
        Ok(disk)
    }

    /// How much the log holds, and whether it says so itself.
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

    /// Makes a disk that has been written everywhere.
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

/// Of the last minute; zero where the kernel does not say.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}
