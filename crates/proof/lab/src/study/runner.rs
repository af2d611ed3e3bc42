//! Measures what a plan says, step by step, from wherever it stopped before.
//!
//! Every measurement has a subject of its own, started for it and ended after it. That takes time,
//! and it is why the spread of the rounds is honest: where a program's memory and threads happen to
//! lie differs from start to start, and a single start measured ten times would hide it. It also
//! leaves nobody else running beside the one that is measured.

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

/// How often a measurement is tried: what fails once may be chance, and is told; what fails twice
/// is not.
const ATTEMPTS: u32 = 2;

/// Subjects and workloads, and how they are measured.
pub struct Study<'a, W> {
    /// Its name.
    pub name: String,
    /// What else matters and is the same in all rounds: sizes, seeds. A study does not go on with
    /// others.
    pub settings: BTreeMap<String, String>,
    /// Who is compared.
    pub subjects: Vec<Box<dyn Subject<W> + 'a>>,
    /// At what.
    pub workloads: Vec<W>,
    /// How often and how long.
    pub pace: Pace,
}

impl<W: Workload> Study<'_, W> {
    /// What is to be measured.
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

    /// Measures what is not in the store yet, and keeps it there. The store must have been opened
    /// with [`Self::plan`].
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
            // Who is asked to end often ends what is measured as well, and that is no fault of the
            // subject.
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

    /// What a person sees of a measurement.
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
