//! Work of a known amount, done by a process of its own.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::study::{Known, Load};
use crate::processes::processor_time;
use crate::study::{Metric, Sample, Session, Subject, SubjectError};

/// What one operation is, in passes of a loop: some 100 microseconds.
const PASSES: f64 = 100_000.0;
/// Between two looks at the clock.
const OPERATIONS_PER_LOOK: u64 = 10;

/// What a process did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Operations.
    pub operations: u64,
    /// How long they took, in microseconds.
    pub elapsed_us: f64,
    /// How much processor time, in microseconds.
    pub processor_us: f64,
}

/// Does operations of so many passes for `warm_up`, and then, counted, for `duration`.
pub fn work(passes: u64, warm_up: Duration, duration: Duration) -> std::io::Result<Done> {
    spend(passes, warm_up);
    let (begin, before) = (Instant::now(), processor_time(std::process::id())?);
    let operations = spend(passes, duration);
    let processor = processor_time(std::process::id())?.saturating_sub(before);
    let us = |span: Duration| span.as_secs_f64() * 1e6;
    Ok(Done { operations, elapsed_us: us(begin.elapsed()), processor_us: us(processor) })
}

fn spend(passes: u64, duration: Duration) -> u64 {
    let (begin, mut operations) = (Instant::now(), 0);
    while begin.elapsed() < duration {
        for _ in 0..OPERATIONS_PER_LOOK {
            // Each pass needs the one before, so none is left out or done beside another.
            black_box(
                (0..passes)
                    .fold(operations, |state, pass| (state ^ pass).rotate_left(7).wrapping_mul(0x9e37_79b9)),
            );
            operations += 1;
        }
    }
    operations
}

/// A build of the work: it takes so many times as long as the first.
pub(super) struct Build {
    pub name: String,
    /// `strongroom-lab`, which has a command for it.
    pub program: PathBuf,
    pub times: f64,
    /// What each measurement is off by, as a part of it.
    pub noise: f64,
    pub random: StdRng,
}

impl Subject<Known> for Build {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, known: &Known) -> bool {
        matches!(known.load, Load::Work)
    }

    fn open(&mut self, _known: &Known) -> Result<Box<dyn Session + '_>, SubjectError> {
        // The sum of twelve is about normal, with a deviation of 1.
        let off: f64 = (0..12).map(|_| self.random.random_range(-0.5..0.5)).sum();
        let passes = PASSES * self.times * (1.0 + self.noise * off);
        Ok(Box::new(Process { program: &self.program, passes: passes.round() as u64 }))
    }
}

struct Process<'a> {
    program: &'a PathBuf,
    passes: u64,
}

impl Session for Process<'_> {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        let mut command = Command::new(self.program);
        command.args(["work", "--passes", &self.passes.to_string()]);
        command.args(["--warm-up-ms", &warm_up.as_millis().to_string()]);
        command.args(["--duration-ms", &duration.as_millis().to_string()]);
        let output = command.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("{} ended with {}: {said}", self.program.display(), output.status).into());
        }
        let done: Done = serde_json::from_slice(&output.stdout)?;
        let operations = done.operations as f64;
        let mut sample = Sample::default();
        sample.set(Metric::OperationsPerSecond, operations / (done.elapsed_us / 1e6));
        sample.set(Metric::ServerCpuUsPerOperation, done.processor_us / operations);
        Ok(sample)
    }
}
