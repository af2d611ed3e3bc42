//! The report of a study: medians with intervals, ratios with verdicts, and notes on them.

mod saturation;
mod table;

use std::collections::BTreeMap;

use serde::Serialize;

pub use saturation::{Saturated, Usage};

use super::{Comparison, Interval, Machine, Measurement, Metric, Plan, PlannedWorkload, Store};

/// The settings of a report.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// The baselines that every subject is compared with.
    pub baselines: Vec<Baseline>,
    /// The metrics beside the headline, if they were measured.
    pub columns: Vec<Metric>,
    /// The least difference that matters.
    pub least_difference: f64,
}

impl ReportSettings {
    /// Settings with these baselines and default columns.
    pub fn new(baselines: Vec<Baseline>) -> Self {
        let columns = vec![Metric::LatencyP50Us, Metric::LatencyP99Us, Metric::ServerCpuUsPerOperation];
        Self { baselines, columns, least_difference: 0.03 }
    }
}

/// A baseline: the best of these subjects at each workload, by its headline.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// Its name in a table, such as `raw` or `the best peer`.
    pub title: String,
    /// Names of subjects. Unmeasured ones are skipped.
    pub subjects: Vec<String>,
}

impl Baseline {
    /// One subject, by its name.
    pub fn of(subject: &str) -> Self {
        Self { title: subject.to_owned(), subjects: vec![subject.to_owned()] }
    }
}

/// A study's report. As JSON it holds every raw value.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The plan of the study.
    pub plan: Plan,
    /// The machine.
    pub machine: Machine,
    /// Whether the whole plan was measured.
    pub is_complete: bool,
    /// The least difference that matters.
    pub least_difference: f64,
    /// The workloads, in the plan's order.
    pub workloads: Vec<WorkloadReport>,
    #[serde(skip)]
    columns: Vec<Metric>,
}

/// The report on one workload.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadReport {
    /// Its name.
    pub name: String,
    /// The metric by which subjects are compared first.
    pub headline: Metric,
    /// Whether the load had to saturate something.
    pub must_saturate: bool,
    /// The baselines, in the order of the settings.
    pub baselines: Vec<Chosen>,
    /// One row for each measured subject, in the plan's order.
    pub rows: Vec<Row>,
}

/// The best of a baseline's subjects.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// The baseline's title.
    pub title: String,
    /// The chosen subject.
    pub subject: String,
    /// Whether there were others to choose from.
    pub of_several: bool,
}

/// The report on one subject at one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The subject.
    pub subject: String,
    /// The measured values by round, and the median.
    pub metrics: BTreeMap<Metric, Figures>,
    /// Comparisons with each baseline other than itself.
    pub comparisons: Vec<RowComparison>,
    /// The saturated resources.
    pub saturated: Vec<Saturated>,
    /// The use of the machine.
    pub usage: Option<Usage>,
    /// Measurements that failed at first and were repeated.
    pub failed: Vec<String>,
}

/// A metric's values.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// The values, in the order of the rounds.
    pub rounds: Vec<f64>,
    /// Their median.
    #[serde(flatten)]
    pub interval: Interval,
}

/// A comparison with a baseline.
#[derive(Clone, Debug, Serialize)]
pub struct RowComparison {
    /// The baseline's index in [`WorkloadReport::baselines`].
    pub baseline: usize,
    /// The metric.
    pub metric: Metric,
    /// The result.
    #[serde(flatten)]
    pub comparison: Comparison,
}

impl Report {
    /// The report of a store's measurements, complete or not.
    pub fn of(store: &Store, settings: &ReportSettings) -> Self {
        let plan = store.plan().clone();
        let workload = |workload| workload_report(&plan, workload, store, settings);
        Self {
            workloads: plan.workloads.iter().map(workload).collect(),
            machine: store.machine().clone(),
            is_complete: store.steps_left().is_empty(),
            least_difference: settings.least_difference,
            columns: settings.columns.clone(),
            plan,
        }
    }

    /// The report on a workload.
    pub fn workload(&self, name: &str) -> Option<&WorkloadReport> {
        self.workloads.iter().find(|workload| workload.name == name)
    }
}

impl WorkloadReport {
    /// The report on a subject.
    pub fn row(&self, subject: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.subject == subject)
    }
}

impl Row {
    /// A metric's median, if it was measured.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        self.metrics.get(&metric).map(|figures| figures.interval.median)
    }

    /// The comparison with a baseline by a metric.
    pub fn comparison(&self, baseline: usize, metric: Metric) -> Option<&Comparison> {
        let mut comparisons = self.comparisons.iter();
        let found = comparisons.find(|found| found.baseline == baseline && found.metric == metric);
        found.map(|found| &found.comparison)
    }
}

/// A subject's measurements at a workload, in the order of the rounds.
type Rounds<'store> = Vec<&'store Measurement>;

fn workload_report(
    plan: &Plan,
    workload: &PlannedWorkload,
    store: &Store,
    settings: &ReportSettings,
) -> WorkloadReport {
    let rounds = |subject: &String| -> Rounds<'_> {
        let found = store.measurements().iter();
        found.filter(|found| found.workload == workload.name && found.subject == *subject).collect()
    };
    let subjects = workload.subjects.iter().map(|subject| &plan.subjects[*subject]);
    let measured: Vec<(&String, Rounds<'_>)> =
        subjects.map(|subject| (subject, rounds(subject))).filter(|(_, rounds)| !rounds.is_empty()).collect();
    let baselines: Vec<Chosen> = settings
        .baselines
        .iter()
        .filter_map(|baseline| choose(baseline, workload.headline, &measured))
        .collect();
    let row = |(subject, rounds): &(&String, Rounds<'_>)| Row {
        subject: (*subject).clone(),
        metrics: figures(rounds),
        comparisons: comparisons(subject, rounds, &baselines, &measured, workload, settings),
        saturated: saturation::saturated(rounds, store.machine().processors),
        usage: Usage::of(rounds, store.machine().processors),
        failed: rounds.iter().filter_map(|found| found.failed_before.clone()).collect(),
    };
    WorkloadReport {
        name: workload.name.clone(),
        headline: workload.headline,
        must_saturate: workload.must_saturate,
        rows: measured.iter().map(row).collect(),
        baselines,
    }
}

fn values(rounds: &[&Measurement], metric: Metric) -> Vec<f64> {
    rounds.iter().filter_map(|found| found.sample.get(metric)).collect()
}

fn figures(rounds: &[&Measurement]) -> BTreeMap<Metric, Figures> {
    let metrics = rounds.iter().flat_map(|found| found.sample.0.keys().copied());
    let mut figures = BTreeMap::new();
    for metric in metrics {
        let values = values(rounds, metric);
        if let Some(interval) = Interval::of(&values) {
            figures.entry(metric).or_insert(Figures { rounds: values, interval });
        }
    }
    figures
}

/// The best of a baseline's subjects, by the median.
fn choose(baseline: &Baseline, headline: Metric, measured: &[(&String, Rounds<'_>)]) -> Option<Chosen> {
    let of_it = measured.iter().filter(|(subject, _)| baseline.subjects.contains(subject));
    let medians = of_it.filter_map(|(subject, rounds)| {
        let median = Interval::of(&values(rounds, headline))?.median;
        Some((*subject, if headline.more_is_better() { median } else { -median }))
    });
    let (subject, _) = medians.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let (title, of_several) = (baseline.title.clone(), baseline.subjects.len() > 1);
    Some(Chosen { title, subject: subject.clone(), of_several })
}

fn comparisons(
    subject: &str,
    rounds: &[&Measurement],
    baselines: &[Chosen],
    measured: &[(&String, Rounds<'_>)],
    workload: &PlannedWorkload,
    settings: &ReportSettings,
) -> Vec<RowComparison> {
    let mut comparisons = Vec::new();
    let others = baselines.iter().enumerate().filter(|(_, chosen)| chosen.subject != subject);
    for (baseline, chosen) in others {
        let Some((_, theirs)) = measured.iter().find(|(name, _)| **name == chosen.subject) else { continue };
        let mut metrics = vec![workload.headline];
        metrics.extend(settings.columns.iter().filter(|metric| **metric != workload.headline));
        for metric in metrics {
            let pairs: Vec<(f64, f64)> =
                rounds.iter().filter_map(|ours| pair(ours, theirs, metric)).collect();
            let comparison = Comparison::of(&pairs, metric.more_is_better(), settings.least_difference);
            comparisons.extend(comparison.map(|comparison| RowComparison { baseline, metric, comparison }));
        }
    }
    comparisons
}

/// The same metric of the same round.
fn pair(ours: &Measurement, theirs: &[&Measurement], metric: Metric) -> Option<(f64, f64)> {
    let theirs = theirs.iter().find(|theirs| theirs.round == ours.round)?;
    Some((ours.sample.get(metric)?, theirs.sample.get(metric)?))
}
