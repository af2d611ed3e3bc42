//! The order of measurements.
//!
//! A round measures every subject at every workload; a workload's subjects follow one another, so
//! that they are compared at nearly the same time. Every second round is the mirror image of the
//! one before (A B C, then C B A), so that slow drift of the machine favours no subject. Each pair
//! of rounds begins with another subject, so that each subject is measured at each position, and
//! after-effects do not always hit the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::told;
use super::{Metric, Pace, StudyError};

/// The identity of a study. Two runs with the same plan are one study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The study's name.
    pub study: String,
    /// Other constant settings: sizes, seeds, versions of programs.
    pub settings: BTreeMap<String, String>,
    /// The subjects.
    pub subjects: Vec<String>,
    /// The workloads.
    pub workloads: Vec<PlannedWorkload>,
    /// The number and duration of measurements.
    pub pace: Pace,
}

/// A workload of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorkload {
    /// Its name.
    pub name: String,
    /// The metric by which subjects are compared first.
    pub headline: Metric,
    /// Whether the load must saturate something.
    pub must_saturate: bool,
    /// The subjects that support it: indices into [`Plan::subjects`].
    pub subjects: Vec<usize>,
}

/// One measurement to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The round, from 0.
    pub round: u32,
    /// Its index in [`Plan::workloads`].
    pub workload: usize,
    /// Its index in [`Plan::subjects`].
    pub subject: usize,
    /// The number of subjects measured before at this workload in this round.
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

    /// The total time, with `open` for a subject's start and end.
    pub fn time(&self, open: Duration) -> Duration {
        let per_round = u32::try_from(self.measurements_per_round()).unwrap_or(u32::MAX);
        self.pace.time(open).saturating_mul(per_round)
    }

    /// Refuses ambiguous or useless plans.
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

    /// Checks that a run of this plan can continue `begun`; the error is the difference. The number
    /// of rounds may grow.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(subjects: usize, workloads: usize, rounds: u32) -> Plan {
        let second = Duration::from_secs(1);
        Plan {
            study: "a study".to_owned(),
            settings: BTreeMap::from([("size".to_owned(), "1 GiB".to_owned())]),
            subjects: (0..subjects).map(|index| format!("subject {index}")).collect(),
            workloads: (0..workloads)
                .map(|index| PlannedWorkload {
                    name: format!("workload {index}"),
                    headline: Metric::OperationsPerSecond,
                    must_saturate: false,
                    subjects: (0..subjects).collect(),
                })
                .collect(),
            pace: Pace { rounds, warm_up: second, duration: second },
        }
    }

    fn subjects_of(steps: &[Step], round: u32) -> Vec<usize> {
        steps.iter().filter(|step| step.round == round).map(|step| step.subject).collect()
    }

    #[test]
    fn two_subjects_go_a_b_b_a() {
        let steps = plan(2, 1, 4).steps();
        let order: Vec<usize> = steps.iter().map(|step| step.subject).collect();
        assert_eq!(order, [0, 1, 1, 0, 1, 0, 0, 1]);
        let steps = plan(3, 1, 6).steps();
        let rounds: Vec<Vec<usize>> = (0..6).map(|round| subjects_of(&steps, round)).collect();
        assert_eq!(rounds, [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]]);
    }

    proptest! {
        #[test]
        fn nobody_is_favoured(subjects in 1_usize..9, workloads in 1_usize..5, pairs in 1_u32..12) {
            let plan = plan(subjects, workloads, pairs * 2);
            let steps = plan.steps();
            prop_assert_eq!(steps.len(), plan.measurements_per_round() * plan.pace.rounds as usize);
            for workload in 0..workloads {
                let of = |subject| steps.iter().filter(move |step| (step.workload, step.subject) == (workload, subject));
                for pair in 0..pairs {
                    // The mean position within each pair of rounds is the middle.
                    for subject in 0..subjects {
                        let both = of(subject).filter(|step| step.round / 2 == pair);
                        prop_assert_eq!(both.map(|step| step.position).sum::<usize>(), subjects - 1);
                    }
                }
                // In as many pairs of rounds as subjects, each subject was at each position twice.
                for subject in 0..subjects {
                    for place in 0..subjects {
                        let cycle = of(subject).filter(|step| step.round / 2 < subjects as u32);
                        let count = cycle.filter(|step| step.position == place).count();
                        prop_assert!(pairs < subjects as u32 || count == 2, "{} times at {}", count, place);
                    }
                }
            }
        }

        #[test]
        fn a_round_is_the_mirror_image_of_the_one_before(subjects in 1_usize..9, workloads in 1_usize..5, pair in 0_u32..9) {
            let steps = plan(subjects, workloads, pair * 2 + 2).steps();
            let round = |round| -> Vec<(usize, usize)> {
                let of = steps.iter().filter(|step| step.round == round);
                of.map(|step| (step.workload, step.subject)).collect()
            };
            let mut second = round(pair * 2 + 1);
            second.reverse();
            prop_assert_eq!(round(pair * 2), second);
        }

        #[test]
        fn more_rounds_only_add_to_the_end(subjects in 1_usize..6, rounds in 1_u32..9, more in 1_u32..9) {
            let (fewer, all) = (plan(subjects, 2, rounds).steps(), plan(subjects, 2, rounds + more).steps());
            prop_assert_eq!(&all[..fewer.len()], &fewer[..]);
        }
    }

    #[test]
    fn who_cannot_do_it_is_left_out() {
        let mut plan = plan(3, 2, 2);
        plan.workloads[1].subjects = vec![0, 2];
        assert_eq!(plan.measurements_per_round(), 5);
        assert!(plan.steps().iter().all(|step| (step.workload, step.subject) != (1, 1)));
        assert_eq!(
            plan.to_string(),
            "a study: 3 subjects, 2 workloads, 2 rounds: 10 measurements of 1.0 s after 1.0 s of warm-up, 20 s and what \
             the subjects need to start"
        );
        plan.workloads.iter_mut().for_each(|workload| workload.subjects.clear());
        assert!(plan.steps().is_empty());
        let text = plan.check().unwrap_err().to_string();
        assert_eq!(text, "study a study: no subject can do any of the workloads; choose others");
    }

    #[test]
    fn names_are_told_apart() {
        let mut twice = plan(2, 2, 2);
        twice.subjects[1] = twice.subjects[0].clone();
        assert!(twice.check().unwrap_err().to_string().contains("two subjects are named subject 0"));
        let mut twice = plan(2, 2, 2);
        twice.workloads[1] = twice.workloads[0].clone();
        assert!(twice.check().unwrap_err().to_string().contains("two workloads are named workload 0"));
        assert!(plan(2, 2, 0).check().is_err() && plan(2, 2, 1).check().is_ok());
    }

    #[test]
    fn a_study_goes_on_only_as_it_was_and_with_more_rounds() {
        let begun = plan(2, 2, 4);
        assert_eq!(begun.goes_on(&begun), Ok(()));
        assert_eq!(plan(2, 2, 6).goes_on(&begun), Ok(()));
        assert_eq!(plan(2, 2, 2).goes_on(&begun), Err("number of rounds".to_owned()));
        assert_eq!(plan(3, 2, 4).goes_on(&begun), Err("list of subjects".to_owned()));
        assert_eq!(plan(2, 3, 4).goes_on(&begun), Err("list of workloads".to_owned()));
        let mut other = begun.clone();
        other.settings.insert("size".to_owned(), "2 GiB".to_owned());
        assert_eq!(other.goes_on(&begun), Err("setting \"size\"".to_owned()));
        let mut other = begun.clone();
        other.pace.duration *= 2;
        assert_eq!(other.goes_on(&begun), Err("duration of a measurement".to_owned()));
    }
}
