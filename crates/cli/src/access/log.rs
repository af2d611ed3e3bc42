//! `strongroom access log`.

use clap::Args;
use strongroom_api::access::{AccessEntry, AccessLogQuery};
use strongroom_api::limits::PAGE_MAX;
use strongroom_api::{Name, Page};
use strongroom_types::unix_milliseconds_now;

use crate::api::{ApiArguments, table, time_ms, word};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::Output;

/// The default limit of the list.
const MOST: u32 = 50;

/// The arguments of `log`.
#[derive(Debug, Args)]
#[command(after_help = "The newest entries are listed, oldest first. That the log was read is an entry, too.

Examples:
  strongroom access log
  strongroom access log --since 7d --by ada
  strongroom access log --after 0 --most 1000 --json")]
pub struct LogArguments {
    /// Only entries of the last TIME: 90m, 24h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    since: Option<u64>,

    /// Only entries of this user or token
    #[arg(long, value_name = "NAME")]
    by: Option<Name>,

    /// Only entries after number N, the oldest of them first
    #[arg(long, value_name = "N")]
    after: Option<u64>,

    /// Greatest number of entries
    #[arg(long, value_name = "N", default_value_t = MOST, value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE_MAX)))]
    most: u32,

    #[command(flatten)]
    api: ApiArguments,
}

impl LogArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let now_unix_seconds = unix_milliseconds_now() / 1000;
        let query = AccessLogQuery {
            after: self.after,
            limit: Some(self.most),
            since_unix_seconds: self.since.map(|since| now_unix_seconds.saturating_sub(since)),
            by: self.by.clone(),
        };
        let entries: Page<AccessEntry> = self.api.connect()?.query("/v1/access/log", &query)?;
        let head = ["NUMBER", "WHEN", "WHAT", "BY", "FROM", "MESSAGE"];
        table(output, entries, head, "there are no such entries", |entry| {
            let repeated = entry.repeated.map(|more| format!(" (and {more} more like it)"));
            [
                entry.id.to_string(),
                time_ms(entry.at_unix_ms),
                word(entry.kind),
                entry.by.clone(),
                entry.from.clone().unwrap_or_default(),
                format!("{}{}", entry.message, repeated.unwrap_or_default()),
            ]
        })
    }
}
