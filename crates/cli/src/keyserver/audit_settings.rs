//! Rotation and retention of a key server's audit log.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use strongroom_audit::{Options, Retention, limits};
use strongroom_types::{display_bytes, parse_bytes};

use crate::duration::parse_seconds;
use crate::error::CliError;

/// The least size of a file, in bytes: some thousand lines.
const FILE_MIN_BYTES: u64 = 1024 * 1024;

/// The word for no limit.
const NO_LIMIT: &str = "all";

/// The policy on the command line.
#[derive(Debug, Args)]
pub struct AuditArguments {
    /// Size at which a new file of the audit log is started; saved [initially: 64M]
    #[arg(long, value_name = "SIZE", value_parser = parse_file_size)]
    audit_file_size: Option<u64>,

    /// Age at which a new file of the audit log is started, or `all` for no limit; saved
    /// [initially: all]
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    audit_file_age: Option<Limit>,

    /// Size of the audit log above which its oldest files are removed, after the collector, if any,
    /// has confirmed them; `all` keeps everything; saved [initially: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    audit_keep_size: Option<Limit>,

    /// Age above which files of the audit log are removed, in the same way; saved [initially: all]
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    audit_keep_age: Option<Limit>,
}

/// A given limit, in bytes or seconds, or no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    At(u64),
    Never,
}

impl Limit {
    fn number(self) -> Option<u64> {
        match self {
            Self::At(number) => Some(number),
            Self::Never => None,
        }
    }
}

/// The policy in a server's settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_age_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    keep_age_seconds: Option<u64>,
}

impl AuditArguments {
    /// `settings`, overridden by the command line.
    pub fn over(&self, settings: AuditSettings) -> Result<AuditSettings, CliError> {
        let limit = |given: Option<Limit>, before| given.map_or(before, Limit::number);
        let settings = AuditSettings {
            file_bytes: self.audit_file_size.or(settings.file_bytes),
            file_age_seconds: limit(self.audit_file_age, settings.file_age_seconds),
            keep_bytes: limit(self.audit_keep_size, settings.keep_bytes),
            keep_age_seconds: limit(self.audit_keep_age, settings.keep_age_seconds),
        };
        let file_bytes = settings.options().file_bytes;
        match settings.keep_bytes {
            Some(keep) if keep < 2 * file_bytes => Err(CliError::Usage(format!(
                "the audit log cannot be kept within {}: its files have {}, and the last one never goes; keep twice as much, \
                 or make files smaller with --audit-file-size",
                display_bytes(keep),
                display_bytes(file_bytes)
            ))),
            _ => Ok(settings),
        }
    }
}

impl AuditSettings {
    /// Whether it has only defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The options for writing the log.
    pub fn options(&self) -> Options {
        let options = Options::default();
        Options {
            file_bytes: self.file_bytes.unwrap_or(options.file_bytes),
            file_age: self.file_age_seconds.map(Duration::from_secs),
            ..options
        }
    }

    /// The rules for removing files of the log.
    pub fn retention(&self) -> Retention {
        let keep_age = self.keep_age_seconds.map(Duration::from_secs);
        Retention { keep_bytes: self.keep_bytes, keep_age, ..Retention::default() }
    }
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    if (FILE_MIN_BYTES..=limits::FILE_MAX_BYTES).contains(&bytes) {
        Ok(bytes)
    } else {
        let [least, most] = [FILE_MIN_BYTES, limits::FILE_MAX_BYTES].map(display_bytes);
        Err(format!("a file of the audit log has {least} to {most}"))
    }
}

fn parse_size(text: &str) -> Result<Limit, String> {
    limited(text, |text| parse_bytes(text).map_err(|error| error.to_string()))
}

fn parse_age(text: &str) -> Result<Limit, String> {
    limited(text, parse_seconds).map_err(|error| format!("{error}, or {NO_LIMIT}"))
}

fn limited(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Limit, String> {
    if text == NO_LIMIT { Ok(Limit::Never) } else { parse(text).map(Limit::At) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: AuditArguments = AuditArguments {
        audit_file_size: None,
        audit_file_age: None,
        audit_keep_size: None,
        audit_keep_age: None,
    };

    #[test]
    fn a_policy_stays_until_another_one_is_given() {
        let kept = AuditArguments { audit_keep_size: Some(Limit::At(1 << 30)), ..NOTHING };
        let kept = kept.over(AuditSettings::default()).unwrap();
        assert_eq!(kept.retention().keep_bytes, Some(1 << 30));
        assert_eq!(NOTHING.over(kept).unwrap(), kept);
        let all = AuditArguments { audit_keep_size: Some(Limit::Never), ..NOTHING };
        assert!(all.over(kept).unwrap().is_default());
    }

    #[test]
    fn no_more_files_go_than_there_are_besides_the_last() {
        let little = AuditArguments { audit_keep_size: Some(Limit::At(100 << 20)), ..NOTHING };
        assert!(little.over(AuditSettings::default()).is_err());
        let smaller = AuditArguments { audit_file_size: Some(50 << 20), ..little };
        assert!(smaller.over(AuditSettings::default()).is_ok());
        assert_eq!(parse_size("all"), Ok(Limit::Never));
        assert_eq!(parse_age("90d"), Ok(Limit::At(90 * 86_400)));
        assert!(parse_file_size("1K").is_err() && parse_file_size("2G").is_err());
    }
}
