//! Work of a known amount, in a separate process.

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

/// One operation in passes of a loop: some 100 microseconds.
const PASSES: f64 = 100_000.0;
/// Operations between two checks of the clock.
const OPERATIONS_PER_LOOK: u64 = 10;

/// The result of a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Operations.
    pub operations: u64,
    /// How long they took, in microseconds.
    pub elapsed_us: f64,
    /// The processor time, in microseconds.
    pub processor_us: f64,
}

/// Performs operations of this many passes, uncounted for `warm_up` and then counted for
/// `duration`.
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
            // Each pass depends on the one before, so none is skipped or done in parallel.
            black_box(
                (0..passes)
                    .fold(operations, |state, pass| (state ^ pass).rotate_left(7).wrapping_mul(0x9e37_79b9)),
            );
            operations += 1;
        }
    }
    operations
}

/// A build of the work, which takes a multiple of the first one's time.
pub(super) struct Build {
    pub name: String,
    /// `strongroom-lab`, which has a command for it.
    pub program: PathBuf,
    pub times: f64,
    /// The random error of each measurement, as a fraction.
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
        // The sum of twelve is approximately normal, with a deviation of 1.
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
