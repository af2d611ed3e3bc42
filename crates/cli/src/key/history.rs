//! `strongroom key history`.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_audit::{Noted, Outcome};
use strongroom_jobs::inventory::Inventory;
use strongroom_keyserver::management::protocol::{HISTORY_MAX, HistoryAnswer};
use strongroom_keyserver::management::questions::KeyHistory;
use strongroom_types::unix_seconds;

use super::KeyNameArguments;
use super::destroy::object_id;
use crate::error::CliError;
use crate::keyserver::AdministrationArguments;
use crate::output::{Output, Table, utc};

/// The arguments of `history`.
#[derive(Debug, Args)]
#[command(
    after_help = "For a key in the embedded key server, shows everything in its audit log: its creation, \
each release, each refusal, its end. This needs an administrator's or auditor's certificate. For a key \
of another provider, shows the dates that the provider reports; its releases are in the provider's own \
log.

Examples:
  strongroom key history 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11
  strongroom key history 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --server kms1:5697 --identity ./auditor --most 1000"
)]
pub struct HistoryArguments {
    #[command(flatten)]
    key: KeyNameArguments,

    /// Number of records to show, the latest ones
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(HISTORY_MAX)))]
    most: u32,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct History {
    key: String,
    /// Whether there are no more records.
    complete: bool,
    events: Vec<Event>,
    #[serde(skip)]
    is_of_record: bool,
}

#[derive(Serialize)]
struct Event {
    time: String,
    what: String,
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Noted>,
}

impl From<Noted> for Event {
    fn from(answer: Noted) -> Self {
        let record = &answer.record;
        let (time, what, outcome) = (answer.time.clone(), record.action.clone(), Some(record.outcome));
        Self { time, what, outcome, record: Some(answer) }
    }
}

impl Event {
    fn row(&self) -> [String; 5] {
        let outcome = match self.outcome {
            Some(Outcome::Done) => "done",
            Some(Outcome::Denied) => "DENIED",
            Some(Outcome::Failed) => "failed",
            None => "-",
        };
        let record = self.record.as_ref().map(|answer| &answer.record);
        let who =
            record.map_or("-".to_owned(), |record| format!("{} ({})", record.actor.name, record.actor.role));
        let released = record.and_then(|record| record.fields.get("released"));
        let why = record.and_then(|record| record.reason.clone());
        let detail = why.or_else(|| released.map(|how| format!("released {how}")));
        [self.time.clone(), self.what.clone(), outcome.to_owned(), who, detail.unwrap_or_default()]
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["TIME", "WHAT", "OUTCOME", "WHO", "DETAIL"];
        if self.events.is_empty() {
            return write!(f, "nothing is on record of key {}", self.key);
        }
        write!(f, "{}", Table { head, rows: self.events.iter().map(Event::row).collect() })?;
        match (self.is_of_record, self.complete) {
            (true, true) => Ok(()),
            (true, false) => {
                f.write_str("\nthere is more: ask for it with --most, or look into the audit log itself")
            }
            (false, _) => f.write_str("\nthis is what the provider tells; who got the key is in its own log"),
        }
    }
}

impl HistoryArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        if self.server.is_given() {
            output.answer(&self.on_record(&self.key.key)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let inventory = Inventory::open(&self.server.home()?, &[], self.server.overseer().as_ref())?;
        let key = inventory.find(&self.key.name())?;
        let history = if inventory.is_embedded(&key.key.provider) {
            self.on_record(key.key.key.as_str())?
        } else {
            let facts = key.facts.map_err(CliError::Unsound)?;
            let dates = [
                ("created", facts.created),
                ("activated", facts.activated),
                ("taken out of use, or will be", facts.deactivates),
            ];
            let mut dates: Vec<_> =
                dates.into_iter().filter_map(|(what, time)| Some((time?, what))).collect();
            dates.sort();
            let events = dates.into_iter().map(|(time, what)| Event {
                time: utc(unix_seconds(time)),
                what: what.to_owned(),
                outcome: None,
                record: None,
            });
            History {
                key: key.key.key.to_string(),
                complete: false,
                events: events.collect(),
                is_of_record: false,
            }
        };
        output.answer(&history)?;
        Ok(ExitCode::SUCCESS)
    }

    fn on_record(&self, key: &str) -> Result<History, CliError> {
        let question = KeyHistory { key: object_id(key)?, most: self.most };
        let HistoryAnswer { events, is_complete } = self.server.administrator()?.ask(question)?;
        let events = events.into_iter().map(Event::from).collect();
        Ok(History { key: key.to_owned(), complete: is_complete, events, is_of_record: true })
    }
}
