//! `strongroom access retention`.

use clap::Args;
use strongroom_api::access::{AccessLogRetention, SetAccessLogRetention};
use strongroom_types::{display_bytes, parse_bytes};

use crate::api::{ApiArguments, show};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::{Output, utc};

/// A day, in seconds.
const DAY_S: u64 = 86_400;

/// The arguments of `retention`.
#[derive(Debug, Args)]
#[command(after_help = "\
Older entries are removed, which is an entry, too. When the log is full of entries that have to be kept, \
what changes something is refused, except what stops VMs, takes access away, or sets this. An alarm is \
raised before.

Examples:
  strongroom access retention
  strongroom access retention --keep 730d --room 8G")]
pub struct RetentionArguments {
    /// Keep entries for TIME, 30 days to ten years
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    keep: Option<u64>,

    /// Greatest size of the log, 1M to 64G
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    room: Option<u64>,

    #[command(flatten)]
    api: ApiArguments,
}

impl RetentionArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let (api, path) = (self.api.connect()?, "/v1/access/log/retention");
        let retention: AccessLogRetention = match (self.keep, self.room) {
            (None, None) => api.get(path)?,
            (keep_s, room_bytes) => api.patch_for(path, &SetAccessLogRetention { keep_s, room_bytes })?,
        };
        let AccessLogRetention { keep_s, room_bytes, bytes, entries, oldest_unix_ms } = &retention;
        let oldest =
            oldest_unix_ms.map_or_else(String::new, |oldest| format!(", from {} on", utc(oldest / 1000)));
        let text = format!(
            "kept     {} days\nroom     {}\npresent  {}, {entries} entries{oldest}",
            keep_s / DAY_S,
            display_bytes(*room_bytes),
            display_bytes(*bytes),
        );
        show(output, retention, text)
    }
}
