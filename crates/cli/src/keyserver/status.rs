//! `strongroom keyserver status`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keyserver::management::protocol::{CollectorAnswer, Question, StatusAnswer};

use strongroom_types::display_bytes;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::{Output, utc};

/// Which key server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver status")]
pub struct StatusArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(StatusAnswer);

impl StatusArguments {
    /// Shows it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let status: StatusAnswer = self.server.administrator()?.ask(&Question::Status)?;
        for warning in &status.warnings {
            output.remark(&format!("Warning: {warning}"));
        }
        if is_unbacked(&status) {
            output.remark(
                "Warning: unbacked: there is no backup. If this machine is lost, so is every key, and all that they protect",
            );
        }
        output.answer(&Shown(status))
    }
}

fn is_unbacked(status: &StatusAnswer) -> bool {
    status.backup["backup"] == "unbacked"
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StatusAnswer {
            root_protection,
            root_by,
            authority,
            clients,
            backup,
            audit_sequence,
            audit_first_sequence,
            audit_bytes,
            collector,
            ..
        } = &self.0;
        writeln!(f, "root key   {root_protection} ({root_by})")?;
        writeln!(f, "authority  {authority}")?;
        writeln!(f, "clients    {clients}")?;
        match backup["last"]["created_unix_seconds"].as_u64() {
            Some(made) => {
                writeln!(f, "backup     {}, {} changes since", utc(made), backup["changes_since"])?;
            }
            None => writeln!(f, "backup     none")?,
        }
        write!(f, "audit log  {audit_sequence} lines, {}", display_bytes(*audit_bytes))?;
        if *audit_first_sequence > 1 {
            write!(f, " from line {audit_first_sequence} on")?;
        }
        match collector {
            None => Ok(()),
            Some(CollectorAnswer { confirmed_sequence, trouble: None, .. }) => {
                write!(f, ", {confirmed_sequence} confirmed by the collector")
            }
            Some(CollectorAnswer { confirmed_sequence, trouble: Some(trouble), .. }) => {
                write!(f, ", {confirmed_sequence} confirmed by the collector, now in trouble: {trouble}")
            }
        }
    }
}
