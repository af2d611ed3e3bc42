//! Performs the measurements of a plan step by step, from where it stopped before.
//!
//! Every measurement starts and ends its subject. That takes time, but makes the spread of the
//! rounds honest: the placement of a program's memory and threads differs between starts, which ten
//! measurements of one start would hide. It also ensures that no other subject runs at the same
//! time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::told;
use super::machine::load_averages;
use super::plan::Step;
use super::{
    Measurement, Pace, Plan, PlannedWorkload, Sample, Store, StudyError, Subject, SubjectError, Workload,
};

/// How often a measurement is tried: one failure may be chance, and is reported; two are not
/// chance.
const ATTEMPTS: u32 = 2;

/// Subjects and workloads, with their measurement settings.
pub struct Study<'a, W> {
    /// Its name.
    pub name: String,
    /// Other constant settings: sizes, seeds. A study does not continue with different ones.
    pub settings: BTreeMap<String, String>,
    /// The subjects.
    pub subjects: Vec<Box<dyn Subject<W> + 'a>>,
    /// The workloads.
    pub workloads: Vec<W>,
    /// The number and duration of measurements.
    pub pace: Pace,
}

impl<W: Workload> Study<'_, W> {
    /// The plan of the measurements.
    pub fn plan(&self) -> Plan {
        let workload = |workload: &W| {
            let supports = |index: &usize| self.subjects[*index].supports(workload);
            PlannedWorkload {
                name: workload.name().to_owned(),
                headline: workload.headline(),
                must_saturate: workload.must_saturate(),
                subjects: (0..self.subjects.len()).filter(supports).collect(),
            }
        };
        Plan {
            study: self.name.clone(),
            settings: self.settings.clone(),
            subjects: self.subjects.iter().map(|subject| subject.name().to_owned()).collect(),
            workloads: self.workloads.iter().map(workload).collect(),
            pace: self.pace,
        }
    }

    /// Performs the measurements missing from the store, and saves them there. The store must have
    /// been opened with [`Self::plan`].
    pub fn run(
        &mut self,
        store: &mut Store,
        progress: &dyn Fn(&str),
        stop: &AtomicBool,
    ) -> Result<(), StudyError> {
        assert_eq!(store.plan(), &self.plan(), "a store of this study");
        let steps = store.steps_left();
        let of = store.measurements().len() + steps.len();
        if !store.measurements().is_empty() && !steps.is_empty() {
            progress(&format!("{} of {of} measurements are there already", of - steps.len()));
        }
        let started = Instant::now();
        for (done, step) in steps.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Err(StudyError::Stopped { done: store.measurements().len(), of });
            }
            let measured = self.step(step, stop);
            // A signal to end often also ends the subject, which is not its fault.
            if measured.is_err() && stop.load(Ordering::Relaxed) {
                return Err(StudyError::Stopped { done: store.measurements().len(), of });
            }
            let measurement = measured?;
            progress(&self.told(step, &measurement, started.elapsed(), done + 1, steps.len()));
            store.append(measurement)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step, stop: &AtomicBool) -> Result<Measurement, StudyError> {
        let workload = &self.workloads[step.workload];
        let subject = &mut self.subjects[step.subject];
        let mut failed_before = None;
        for attempt in 1.. {
            let started = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
            let load_averages = load_averages();
            match measure(subject.as_mut(), workload, self.pace) {
                Ok((sample, open)) => {
                    return Ok(Measurement {
                        round: step.round,
                        workload: workload.name().to_owned(),
                        subject: subject.name().to_owned(),
                        position: step.position,
                        started,
                        load_averages,
                        open_ms: open.as_secs_f64() * 1e3,
                        failed_before,
                        sample,
                    });
                }
                Err(error) if attempt == ATTEMPTS || stop.load(Ordering::Relaxed) => {
                    let (subject, workload) = (subject.name().to_owned(), workload.name().to_owned());
                    return Err(StudyError::Subject { subject, workload, error });
                }
                Err(error) => failed_before = Some(error.to_string()),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// A measurement's progress line.
    fn told(
        &self,
        step: &Step,
        measurement: &Measurement,
        elapsed: Duration,
        done: usize,
        of: usize,
    ) -> String {
        let headline = self.workloads[step.workload].headline();
        let value = measurement.sample.get(headline);
        let value = value.map_or("-".to_owned(), |value| format!("{value:.1} {}", headline.title()));
        let left = elapsed.mul_f64((of - done) as f64 / done as f64);
        let failed = measurement.failed_before.as_ref();
        let failed = failed.map(|error| format!(" (at first: {error})")).unwrap_or_default();
        format!(
            "round {} of {}, {}, {}: {value}{failed}; {} left",
            step.round + 1,
            self.pace.rounds,
            measurement.workload,
            measurement.subject,
            told(left)
        )
    }
}

fn measure<W: Workload>(
    subject: &mut (dyn Subject<W> + '_),
    workload: &W,
    pace: Pace,
) -> Result<(Sample, Duration), SubjectError> {
    let begin = Instant::now();
    let mut session = subject.open(workload)?;
    let open = begin.elapsed();
    let sample = session.measure(pace.warm_up, pace.duration)?;
    if let Some((metric, value)) = sample.0.iter().find(|(_, value)| !value.is_finite() || **value < 0.0) {
        return Err(format!("it measured {value} as {}", metric.title()).into());
    }
    if sample.get(workload.headline()).is_none() {
        return Err(
            format!("it did not measure {}, by which it is compared", workload.headline().title()).into()
        );
    }
    Ok((sample, open))
}
