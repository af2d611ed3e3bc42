//! `strongroom access log`.

use clap::Args;
use strongroom_api::access::{AccessEntry, AccessLogPage, AccessLogQuery};
use strongroom_api::identity::ActorName;
use strongroom_api::limits::PAGE_MAX;
use strongroom_types::unix_milliseconds_now;

use crate::api::{ApiArguments, show, time_ms, word};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::{Output, Table};

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

    /// Only entries of this user or token, or of PROVIDER:NAME
    #[arg(long, value_name = "NAME")]
    by: Option<ActorName>,

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
        let page: AccessLogPage = self.api.connect()?.query("/v1/access/log", &query)?;
        if !page.breaks.is_empty() {
            output.remark("the chain of the log is BROKEN here; `strongroom access verify` has all places:");
            page.breaks.iter().for_each(|found| output.remark(&format!("  {}", found.reason)));
        }
        let rows: Vec<_> = page.items.iter().map(row).collect();
        let head = ["NUMBER", "WHEN", "WHAT", "BY", "FROM", "MESSAGE"];
        let text = match rows.is_empty() {
            true => "there are no such entries".to_owned(),
            false => Table { head, rows }.to_string(),
        };
        show(output, page, text)
    }
}

fn row(entry: &AccessEntry) -> [String; 6] {
    let repeated = entry.repeated.map(|more| format!(" (and {more} more like it)"));
    [
        entry.id.to_string(),
        time_ms(entry.at_unix_ms),
        word(entry.kind),
        entry.by.clone(),
        entry.from.clone().unwrap_or_default(),
        format!("{}{}", entry.message, repeated.unwrap_or_default()),
    ]
}
