//! What is measured in which order.
//!
//! A round measures every subject at every workload; a workload's subjects follow one another, so that what is compared
//! is measured at nearly the same time. Each second round is the mirror image of the one before (A B C, then C B A): a
//! machine that slowly becomes faster or slower favours nobody. Each pair of rounds begins with another subject, so that
//! in the end each was at each place: what one leaves behind does not always meet the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::told;
use super::{Metric, Pace, StudyError};

/// All that makes a study this one. Two runs with the same plan are one study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The study's name.
    pub study: String,
    /// What else matters and is the same in all rounds: sizes, seeds, versions of programs.
    pub settings: BTreeMap<String, String>,
    /// Who is compared.
    pub subjects: Vec<String>,
    /// At what.
    pub workloads: Vec<PlannedWorkload>,
    /// How often and how long.
    pub pace: Pace,
}

/// A workload of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorkload {
    /// Its name.
    pub name: String,
    /// By what the subjects are compared first.
    pub headline: Metric,
    /// Whether the load is to drive something to its limit.
    pub must_saturate: bool,
    /// Who can do it at all: places in [`Plan::subjects`].
    pub subjects: Vec<usize>,
}

/// One measurement to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counted from 0.
    pub round: u32,
    /// Its place in [`Plan::workloads`].
    pub workload: usize,
    /// Its place in [`Plan::subjects`].
    pub subject: usize,
    /// How many subjects were measured at this workload before, in this round.
    pub position: usize,
}

impl Plan {
    /// All measurements, in their order. More rounds only add to the end.
    pub fn steps(&self) -> Vec<Step> {
        (0..self.pace.rounds).flat_map(|round| self.round(round)).collect()
    }

    fn round(&self, round: u32) -> Vec<Step> {
        let is_mirrored = round % 2 == 1;
        let mut workloads: Vec<usize> = (0..self.workloads.len()).collect();
        if is_mirrored {
            workloads.reverse();
        }
        let order = |workload: usize| {
            let mut subjects = self.workloads[workload].subjects.clone();
            if !subjects.is_empty() {
                let first = (round / 2) as usize % subjects.len();
                subjects.rotate_left(first);
            }
            if is_mirrored {
                subjects.reverse();
            }
            let steps = subjects.into_iter().enumerate();
            steps.map(move |(position, subject)| Step { round, workload, subject, position })
        };
        workloads.into_iter().flat_map(order).collect()
    }

    /// Measurements of one round.
    pub fn measurements_per_round(&self) -> usize {
        self.workloads.iter().map(|workload| workload.subjects.len()).sum()
    }

    /// How long all of it takes, where it takes `open` for a subject to begin and to end.
    pub fn time(&self, open: Duration) -> Duration {
        let per_round = u32::try_from(self.measurements_per_round()).unwrap_or(u32::MAX);
        self.pace.time(open).saturating_mul(per_round)
    }

    /// Refuses what cannot be told apart, or is of no use.
    pub(super) fn check(&self) -> Result<(), StudyError> {
        let refuse = |what: String| Err(StudyError::Plan { study: self.study.clone(), what });
        let mut names = BTreeSet::new();
        if let Some(name) = self.subjects.iter().find(|name| !names.insert(name.as_str())) {
            return refuse(format!("two subjects are named {name}; name them apart"));
        }
        let mut names = BTreeSet::new();
        if let Some(workload) = self.workloads.iter().find(|workload| !names.insert(workload.name.as_str())) {
            return refuse(format!("two workloads are named {}; name them apart", workload.name));
        }
        if self.measurements_per_round() == 0 {
            return refuse("no subject can do any of the workloads; choose others".to_owned());
        }
        if self.pace.rounds == 0 || self.pace.duration.is_zero() {
            return refuse("nothing is measured in no time; choose at least one round".to_owned());
        }
        Ok(())
    }

    /// Whether a run of this plan goes on where `begun` stopped, or what differs. There may be more rounds than at first.
    pub(super) fn goes_on(&self, begun: &Self) -> Result<(), String> {
        let setting = |key: &&String| self.settings.get(*key) != begun.settings.get(*key);
        if self.study != begun.study {
            Err("name".to_owned())
        } else if let Some(key) = self.settings.keys().chain(begun.settings.keys()).find(setting) {
            Err(format!("setting \"{key}\""))
        } else if self.subjects != begun.subjects {
            Err("list of subjects".to_owned())
        } else if self.workloads != begun.workloads {
            Err("list of workloads".to_owned())
        } else if (self.pace.warm_up, self.pace.duration) != (begun.pace.warm_up, begun.pace.duration) {
            Err("duration of a measurement".to_owned())
        } else if self.pace.rounds < begun.pace.rounds {
            Err("number of rounds".to_owned())
        } else {
            Ok(())
        }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Pace { rounds, warm_up, duration } = self.pace;
        let measurements = self.steps().len();
        write!(
            f,
            "{}: {} subjects, {} workloads, {rounds} rounds: {measurements} measurements of {:.1} s after {:.1} s of \
             warm-up, {} and what the subjects need to start",
            self.study,
            self.subjects.len(),
            self.workloads.len(),
            duration.as_secs_f64(),
            warm_up.as_secs_f64(),
            told(self.time(Duration::ZERO)),
        )
    }
}
