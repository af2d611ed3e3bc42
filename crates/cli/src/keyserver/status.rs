//! `strongroom keyserver status`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_keyserver::backup::BackupStatus;
use strongroom_keyserver::management::protocol::{CollectorAnswer, StatusAnswer};
use strongroom_keyserver::management::questions::Status;

use strongroom_types::display_bytes;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The arguments of `status`.
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
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let status = self.server.administrator()?.ask(Status {})?;
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
    status.backup == BackupStatus::Unbacked
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
        match backup {
            BackupStatus::Backed { last, changes_since } => {
                let made = utc(last.created_unix_seconds);
                writeln!(f, "backup     {made}, {changes_since} changes since")?;
            }
            BackupStatus::Unbacked => writeln!(f, "backup     none")?,
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
