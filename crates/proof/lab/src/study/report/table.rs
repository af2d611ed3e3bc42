//! A report in Markdown, for documents.

use std::fmt::{self, Display, Formatter};

use super::super::pace::ROUNDS_FOR_A_VERDICT;
use super::super::{Comparison, Interval, Metric, Verdict};
use super::saturation::SATURATED_SHARE;
use super::{Report, Row, WorkloadReport};
use crate::markdown::{figure, write_table};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (machine, pace) = (&self.machine, self.plan.pace);
        let day = machine.date.split('T').next().unwrap_or_default();
        writeln!(
            f,
            "{} x {}, Linux {}, {day}; {} interleaved rounds of {:.1} s after {:.1} s of warm-up; load average {} at \
             the beginning. Medians, in brackets {}; ratios within a round.\n",
            machine.processors,
            machine.processor,
            machine.kernel,
            pace.rounds,
            pace.duration.as_secs_f64(),
            pace.warm_up.as_secs_f64(),
            machine.load_averages.split(' ').next().unwrap_or_default(),
            if pace.rounds < ROUNDS_FOR_A_VERDICT {
                "the lowest and the highest"
            } else {
                "intervals of 95 %"
            },
        )?;
        if !self.is_complete {
            writeln!(f, "**Not complete**: not all rounds are measured yet.\n")?;
        }
        self.workloads.iter().filter(|workload| !workload.rows.is_empty()).try_for_each(|workload| {
            writeln!(f, "### {}\n", workload.name)?;
            write_table(f, &self.head(workload), &self.rows(workload))?;
            workload.notes().iter().try_for_each(|note| writeln!(f, "\n{note}"))?;
            writeln!(f)
        })
    }
}

impl Report {
    /// The columns that were measured.
    fn columns(&self, workload: &WorkloadReport) -> Vec<Metric> {
        let is_measured = |metric: &&Metric| {
            **metric != workload.headline && workload.rows.iter().any(|row| row.metrics.contains_key(metric))
        };
        self.columns.iter().filter(is_measured).copied().collect()
    }

    fn head(&self, workload: &WorkloadReport) -> Vec<String> {
        let mut head = vec![String::new(), workload.headline.title().to_owned()];
        head.extend(workload.baselines.iter().map(|chosen| match chosen.of_several {
            true => format!("of {}, {}", chosen.title, chosen.subject),
            false => format!("of {}", chosen.title),
        }));
        head.extend(self.columns(workload).into_iter().map(|metric| metric.title().to_owned()));
        if workload.must_saturate {
            head.push("at its limit".to_owned());
        }
        if workload.rows.iter().any(|row| row.usage.is_some()) {
            head.push("others on the machine".to_owned());
        }
        head
    }

    fn rows(&self, workload: &WorkloadReport) -> Vec<Vec<String>> {
        let is_watched = workload.rows.iter().any(|row| row.usage.is_some());
        let row = |row: &Row| {
            let headline = row.metrics.get(&workload.headline);
            let mut cells = vec![
                row.subject.clone(),
                headline.map_or("-".to_owned(), |found| shown(found.interval, figure)),
            ];
            for (index, chosen) in workload.baselines.iter().enumerate() {
                cells.push(match row.comparison(index, workload.headline) {
                    _ if chosen.subject == row.subject => "1.00".to_owned(),
                    Some(comparison) => compared(comparison),
                    None => "-".to_owned(),
                });
            }
            let median = |metric| row.median(metric).map_or("-".to_owned(), |value| told(metric, value));
            cells.extend(self.columns(workload).into_iter().map(median));
            if workload.must_saturate {
                cells.push(limits(row));
            }
            if is_watched {
                cells.push(others(row));
            }
            cells
        };
        workload.rows.iter().map(row).collect()
    }
}

impl WorkloadReport {
    /// The notes on the report.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for row in self.rows.iter().filter(|row| !row.failed.is_empty()) {
            let (subject, count) = (&row.subject, row.failed.len());
            notes.push(format!(
                "{subject}: {count} of its measurements failed at first: {}",
                row.failed.join("; ")
            ));
        }
        notes
    }
}

/// The median, with its interval if there is more than one round.
fn shown(interval: Interval, number: impl Fn(f64) -> String) -> String {
    let Interval { median, low, high } = interval;
    match low == high {
        true => number(median),
        false => format!("{} ({} to {})", number(median), number(low), number(high)),
    }
}

fn compared(comparison: &Comparison) -> String {
    // Tables compare speed.
    let verdict = match comparison.verdict {
        Verdict::Better => "faster".to_owned(),
        Verdict::Worse => "slower".to_owned(),
        verdict => verdict.to_string(),
    };
    format!("{}, {verdict}", shown(comparison.ratio, |ratio| format!("{ratio:.2}")))
}

fn told(metric: Metric, value: f64) -> String {
    match metric {
        Metric::MachineBusyShare | Metric::StolenShare | Metric::DiskBusyShare => percent(value),
        _ => figure(value),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn limits(row: &Row) -> String {
    if row.saturated.is_empty() {
        let is_taken = row.median(Metric::MachineBusyShare).is_some_and(|share| share >= SATURATED_SHARE);
        return if is_taken { "**others had the machine**" } else { "**load did not saturate**" }.to_owned();
    }
    row.saturated.iter().map(|what| what.name()).collect::<Vec<_>>().join(", ")
}

fn others(row: &Row) -> String {
    match &row.usage {
        None => "-".to_owned(),
        Some(usage) if usage.foreign_rounds == 0 => percent(usage.foreign_share),
        Some(usage) => {
            let (share, rounds) = (percent(usage.foreign_share), usage.foreign_rounds);
            format!("{share}, over 10 % in {rounds} rounds")
        }
    }
}
