//! `strongroom access verify` and `head`: the chain of the access log.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_api::access::{AccessLogHead, AccessLogReport, VerifyAccessLog};
use strongroom_files::FileError;

use crate::api::{ApiArguments, show};
use crate::error::CliError;
use crate::output::Output;

/// The exit status if the log is broken.
const BROKEN_STATUS: u8 = 1;

/// The arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
The control plane verifies its log and says what it finds. Someone who can write to its store can rewrite \
the whole log, and only a head that is kept elsewhere detects that: save one with 'access head', or find \
those in the key server's audit log (action 'access log head', written when the log has changed).

Exit status: 0 the log is intact; 1 it is not, or it could not be read.

Examples:
  strongroom access head --json > access-head.json
  strongroom access verify --head access-head.json")]
pub struct VerifyArguments {
    /// Head that was saved from 'access head'; repeatable
    #[arg(long = "head", value_name = "FILE")]
    heads: Vec<PathBuf>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `head`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom access head --json > access-head.json")]
pub struct HeadArguments {
    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Verified(AccessLogReport);

impl VerifyArguments {
    pub(super) fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let heads = self.heads.iter().map(|path| read_head(path)).collect::<Result<_, _>>()?;
        let wish = VerifyAccessLog { heads };
        let report: AccessLogReport = self.api.connect()?.post_for("/v1/access/log/verifications", &wish)?;
        let status = if report.whole { ExitCode::SUCCESS } else { ExitCode::from(BROKEN_STATUS) };
        output.answer(&Verified(report))?;
        Ok(status)
    }
}

impl HeadArguments {
    pub(super) fn run(&self, output: &Output) -> Result<(), CliError> {
        let head: AccessLogHead = self.api.connect()?.get("/v1/access/log/head")?;
        let text = serde_json::to_string(&head).map_err(|error| CliError::Output(error.into()))?;
        show(output, head, text)
    }
}

fn read_head(path: &Path) -> Result<AccessLogHead, CliError> {
    let bytes = std::fs::read(path)
        .map_err(|error| CliError::File(FileError { action: "read", path: path.to_owned(), error }))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| CliError::Usage(format!("{} is no head of an access log: {error}", path.display())))
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessLogReport {
            whole,
            first_id,
            head,
            entries,
            unchained,
            kept_heads_met,
            kept_heads_before,
            breaks,
            anchored,
        } = &self.0;
        writeln!(f, "access log: {}", if *whole { "whole" } else { "NOT whole" })?;
        for found in breaks {
            writeln!(f, "  {}", found.reason)?;
        }
        writeln!(f, "  entries  {first_id} to {}; {entries} in all", head.id)?;
        if *unchained > 0 {
            writeln!(f, "           the first {unchained} are of earlier releases, which had no chain")?;
        }
        match anchored {
            Some(anchored) => writeln!(f, "  anchored through entry {} on the audit log", anchored.id)?,
            None => writeln!(f, "  anchored not yet on the audit log")?,
        }
        write!(
            f,
            "  kept     {kept_heads_met} heads agree, {kept_heads_before} are of entries that were removed"
        )
    }
}
