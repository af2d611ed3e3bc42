//! `strongroom vm snapshot schedule`: the snapshots that are made and deleted automatically.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::task::Task;
use strongroom_api::vm::{
    RunOutcome, ScheduledRule, ScheduledRun, SetSnapshotSchedule, SnapshotRule, SnapshotSchedule,
};
use strongroom_types::display_seconds;

use super::quiesce::QuiesceArguments;
use crate::api::{Api, ApiArguments, segment};
use crate::duration::{display_time_of_day, parse_seconds, parse_time_of_day};
use crate::error::CliError;
use crate::output::{Output, Table, utc};

/// The arguments of `vm snapshot schedule`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --every it shows the rules: when the next snapshot of each is due, and what came of the last. With --every and \
--keep it sets the rule of that period; a VM has one of each. A snapshot is named after its rule and the time at which it was due, as in \
hourly-2026-11-26T08-17Z. Each VM has an offset of its own, so that not all begin at once. When a snapshot is made, the oldest ones of its \
rule beyond --keep are deleted, and no others. If one fails or is missed, nothing is deleted, and an alarm says so until the next one is \
made. A VM that was off since the last one is skipped.

With --quiesce, the guest agent freezes the file systems of a guest that runs meanwhile (`strongroom vm snapshot create --help`); if it \
does not, the snapshot fails.

The rules of a VM keep at most 26 snapshots together. The snapshots of a rule that is removed stay.

Examples:
  strongroom vm snapshot schedule web1 --every 1h --keep 18
  strongroom vm snapshot schedule web1 --every 1d --at 02:00 --keep 7 --quiesce
  strongroom vm snapshot schedule web1
  strongroom vm snapshot schedule web1 --every 1h --none"
)]
pub struct ScheduleArguments {
    /// Name or id of the VM
    vm: String,

    /// The time from one snapshot to the next, 5m to 366d
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    every: Option<u32>,

    /// How many snapshots of this rule are kept
    #[arg(long, value_name = "N", requires = "every")]
    keep: Option<u32>,

    /// Time of the day at which they are made, UTC; for periods of whole days
    #[arg(long, value_name = "HH:MM", requires = "keep", value_parser = parse_time_of_day)]
    at: Option<u32>,

    /// Remove the rule of --every, or all rules; their snapshots stay
    #[arg(long, conflicts_with_all = ["keep", "at", "quiesce"])]
    none: bool,

    #[command(flatten)]
    quiesce: QuiesceArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// Parses a period, in seconds.
pub fn parse_period(text: &str) -> Result<u32, String> {
    u32::try_from(parse_seconds(text)?).map_err(|_| format!("'{text}' is too long"))
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(SnapshotSchedule);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = &self.0.rules;
        if rules.is_empty() {
            return f.write_str("no snapshots are made automatically");
        }
        let row = |rule: &ScheduledRule| {
            let every = display_seconds(rule.rule.every_s.into());
            let at = rule.rule.at_minutes.map_or_else(String::new, display_time_of_day);
            let (kept, keep) = (rule.kept, rule.rule.keep);
            [
                rule.name.clone(),
                every,
                at,
                format!("{kept} of {keep}"),
                if rule.rule.quiesce_within_s.is_some() { "yes".to_owned() } else { String::new() },
                next_of(rule),
                last_of(rule.last.as_ref()),
            ]
        };
        let head = ["RULE", "EVERY", "AT", "KEPT", "QUIESCED", "NEXT", "LAST"];
        write!(f, "{}", Table { head, rows: rules.iter().map(row).collect() })
    }
}

fn next_of(rule: &ScheduledRule) -> String {
    let next = utc(rule.next_unix_seconds);
    rule.waits.as_ref().map_or_else(|| next.clone(), |why| format!("{next}, waits: {why}"))
}

fn last_of(last: Option<&ScheduledRun>) -> String {
    let Some(ScheduledRun { due_unix_seconds, outcome }) = last else { return "none yet".to_owned() };
    let due = utc(*due_unix_seconds);
    match outcome {
        RunOutcome::Made { snapshot } => snapshot.to_string(),
        RunOutcome::Skipped {} => format!("{due}: skipped, the VM was off since the one before"),
        RunOutcome::Missed { times: 1, reason } => format!("{due}: missed: {reason}"),
        RunOutcome::Missed { times, reason } => format!("{due}: missed {times} times: {reason}"),
        RunOutcome::Failed { reason } => format!("{due}: failed: {reason}"),
    }
}

#[derive(Serialize)]
struct Set {
    #[serde(flatten)]
    task: Task,
    #[serde(skip)]
    said: String,
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl ScheduleArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let schedule: SnapshotSchedule = api.get(&self.path())?;
        if self.none {
            return self.remove(&api, output, &schedule);
        }
        match (self.every, self.keep) {
            (None, _) => output.answer(&Shown(schedule)),
            (Some(every_s), Some(keep)) => {
                let quiesce_within_s = self.quiesce.within();
                let rule = SnapshotRule { every_s, at_minutes: self.at, keep, quiesce_within_s };
                let said = format!("{} snapshots of {} are made, and {keep} kept", rule.name(), self.vm);
                let others = others(&schedule, Some(every_s));
                self.set(&api, output, &schedule, others.chain([rule]).collect(), said)
            }
            (Some(every_s), None) => Err(CliError::Usage(format!(
                "say how many are kept, as in --every {} --keep 7, or --none to make no more",
                display_seconds(every_s.into())
            ))),
        }
    }

    fn remove(&self, api: &Api, output: &Output, schedule: &SnapshotSchedule) -> Result<(), CliError> {
        let rules: Vec<_> = others(schedule, self.every).collect();
        if rules.len() == schedule.rules.len() {
            return Err(CliError::Usage(format!(
                "VM {0} has no such rule; `strongroom vm snapshot schedule {0}` shows what there is",
                self.vm
            )));
        }
        let said = format!("removed from the schedule of {}; the snapshots stay", self.vm);
        self.set(api, output, schedule, rules, said)
    }

    fn path(&self) -> String {
        format!("/v1/vms/{}/snapshot-schedule", segment(&self.vm))
    }

    fn set(
        &self,
        api: &Api,
        output: &Output,
        read: &SnapshotSchedule,
        rules: Vec<SnapshotRule>,
        said: String,
    ) -> Result<(), CliError> {
        let wish = SetSnapshotSchedule { rules };
        // The task is done with the answer.
        let task = api.patch_version(&self.path(), &wish, read.version)?;
        output.answer(&Set { task, said })
    }
}

/// The rules of other periods; none if no period is given.
fn others(schedule: &SnapshotSchedule, every_s: Option<u32>) -> impl Iterator<Item = SnapshotRule> {
    let rules = schedule.rules.iter().map(|known| known.rule.clone());
    rules.filter(move |rule| every_s.is_some_and(|every_s| rule.every_s != every_s))
}
