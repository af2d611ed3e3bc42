//! A study's measurements so far, in a directory: `machine.json`, `plan.json`, and a line of
//! `samples.jsonl` for each measurement.
//!
//! A line is on the disk before the next measurement begins. A killed run loses its current
//! measurement, and the next one with the same plan continues from there. Only the last line may be
//! torn by that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::plan::Step;
use super::{Machine, Plan, Sample, StudyError};

/// The measurement of one step of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The round, from 0.
    pub round: u32,
    /// The workload.
    pub workload: String,
    /// The subject.
    pub subject: String,
    /// The number of subjects measured before at this workload in this round.
    pub position: usize,
    /// When it began.
    pub started: String,
    /// The machine's load averages of 1, 5 and 15 minutes when it began.
    pub load_averages: String,
    /// How long the subject took to get ready, in milliseconds.
    pub open_ms: f64,
    /// The failure of an earlier attempt, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_before: Option<String>,
    /// The result.
    pub sample: Sample,
}

impl Measurement {
    fn is_of(&self, plan: &Plan, step: &Step) -> bool {
        self.round == step.round
            && self.position == step.position
            && plan.workloads.get(step.workload).is_some_and(|workload| workload.name == self.workload)
            && plan.subjects.get(step.subject) == Some(&self.subject)
    }
}

/// A study's directory, locked by this process until it is dropped.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    plan: Plan,
    machine: Machine,
    samples: File,
    measurements: Vec<Measurement>,
}

impl Store {
    /// Begins a study in `directory`, which it creates if necessary, or continues the existing one,
    /// which must have the same plan (possibly with fewer rounds) and the same machine.
    pub fn open(directory: &Path, plan: &Plan, machine: &Machine) -> Result<Self, StudyError> {
        plan.check()?;
        fs::create_dir_all(directory).map_err(failed("make", directory))?;
        let path = directory.join(SAMPLES);
        let (mut samples, text) = open_samples(&path)?;
        let other = |what: String| StudyError::OtherStudy { path: directory.to_owned(), what };
        let (plan_path, machine_path) = (directory.join("plan.json"), directory.join("machine.json"));
        let begun_plan = read_json::<Plan>(&plan_path)?;
        let begun_machine = read_json::<Machine>(&machine_path)?;
        match &begun_plan {
            Some(begun) => plan.goes_on(begun).map_err(other)?,
            None if text.is_empty() => {}
            None => return Err(other("plan, which is missing,".to_owned())),
        }
        if let Some(what) = begun_machine.as_ref().and_then(|begun| begun.differs(machine)) {
            return Err(other(format!("machine's {what}")));
        }
        // Text behind the last line end is an incomplete line.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let measurements = parse(&path, &text[..whole])?;
        let steps = plan.steps();
        let are_theirs = measurements.iter().zip(&steps).all(|(found, step)| found.is_of(plan, step));
        if !are_theirs || measurements.len() > steps.len() {
            return Err(other("list of measurements".to_owned()));
        }
        samples.set_len(whole as u64).map_err(failed("write", &path))?;
        // The machine first, so that a plan is never without it.
        let machine = match begun_machine {
            Some(begun) => begun,
            None => {
                write_json(&machine_path, machine)?;
                machine.clone()
            }
        };
        if begun_plan.as_ref() != Some(plan) {
            write_json(&plan_path, plan)?;
        }
        samples.seek(SeekFrom::End(0)).map_err(failed("write", &path))?;
        Ok(Self { directory: directory.to_owned(), plan: plan.clone(), machine, samples, measurements })
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The machine, as it was when the study began.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The measurements so far: a prefix of the plan's steps.
    pub fn measurements(&self) -> &[Measurement] {
        &self.measurements
    }

    /// The remaining steps.
    pub(super) fn steps_left(&self) -> Vec<Step> {
        self.plan.steps().split_off(self.measurements.len())
    }

    /// Saves the measurement of the next step.
    pub(super) fn append(&mut self, measurement: Measurement) -> Result<(), StudyError> {
        let path = self.directory.join(SAMPLES);
        let failed = |error| StudyError::File { action: "write", path, error };
        let line = serde_json::to_string(&measurement).map_err(io::Error::from);
        line.and_then(|line| {
            self.samples.write_all(format!("{line}\n").as_bytes())?;
            self.samples.sync_data()
        })
        .map_err(failed)?;
        self.measurements.push(measurement);
        Ok(())
    }
}

const SAMPLES: &str = "samples.jsonl";
/// How long a run waits for the lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Opens and locks the measurements, and reads them.
fn open_samples(path: &Path) -> Result<(File, Vec<u8>), StudyError> {
    let mut options = OpenOptions::new();
    let open = options.read(true).write(true).create(true).truncate(false).open(path);
    let mut samples = open.map_err(failed("open", path))?;
    // A program that another thread starts has the last owner's lock until it runs.
    let begun = Instant::now();
    while flock(&samples, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > LOCK_WAIT {
            return Err(StudyError::InUse { path: path.to_owned() });
        }
        std::thread::sleep(LOCK_WAIT / 100);
    }
    let mut text = Vec::new();
    samples.read_to_end(&mut text).map_err(failed("read", path))?;
    Ok((samples, text))
}

fn parse(path: &Path, text: &[u8]) -> Result<Vec<Measurement>, StudyError> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').enumerate();
    let parse = |(index, line): (usize, &[u8])| {
        let (path, line_number) = (path.to_owned(), index + 1);
        serde_json::from_slice(line).map_err(|error| StudyError::Record { path, line: line_number, error })
    };
    lines.map(parse).collect()
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StudyError> {
    match fs::read(path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(StudyError::Record { path: path.to_owned(), line: error.line(), error }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Writes a file atomically.
fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StudyError> {
    let write = || {
        let unfinished = path.with_extension("new");
        let mut file = File::create(&unfinished)?;
        file.write_all(serde_json::to_string_pretty(value)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(failed("write", path))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StudyError {
    let path = path.to_owned();
    move |error| StudyError::File { action, path, error }
}
