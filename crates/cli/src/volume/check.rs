//! `strongroom volume check`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{DatastoreError, Finding, Severity, check, describe};

use super::open::FreshnessArguments;
use crate::error::CliError;
use crate::keys::{KeyArguments, VolumeKey};
use crate::output::Output;

/// Which volume, and how thoroughly.
#[derive(Debug, Args)]
#[command(after_help = "May run while the volume is in use. Exit status: 0 no errors, 1 errors were found.

Examples:
  strongroom volume check ./ds/vm1
  strongroom volume check ./ds/vm1 --no-key")]
pub struct CheckArguments {
    /// The volume
    path: PathBuf,

    #[command(flatten)]
    key: KeyArguments,

    /// Check what can be checked without the key: that the files are there and as long as they should be
    #[arg(long, conflicts_with = "KeyArguments")]
    no_key: bool,

    #[command(flatten)]
    freshness: FreshnessArguments,
}

#[derive(Serialize)]
struct Checked {
    path: PathBuf,
    /// No errors; notices are possible.
    clean: bool,
    findings: Vec<FindingFacts>,
}

#[derive(Serialize)]
struct FindingFacts {
    severity: &'static str,
    message: String,
}

impl From<Finding> for FindingFacts {
    fn from(finding: Finding) -> Self {
        let severity = match finding.severity {
            Severity::Notice => "notice",
            Severity::Error => "error",
        };
        Self { severity, message: finding.message }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{}: {}", finding.severity, finding.message)?;
        }
        let errors = self.findings.iter().filter(|finding| finding.severity == "error").count();
        match errors {
            0 => write!(f, "{}: no errors", self.path.display()),
            1 => write!(f, "{}: 1 error", self.path.display()),
            _ => write!(f, "{}: {errors} errors", self.path.display()),
        }
    }
}

impl CheckArguments {
    /// Checks the volume; the exit status says what was found.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        // What cannot be described is described by the check itself.
        let described = describe(&self.path).ok();
        let encrypted = described.as_ref().filter(|volume| volume.descriptor.encryption.is_some());
        let key = match encrypted {
            Some(volume) if !self.no_key => self.key.for_volume(&self.path, &volume.descriptor)?,
            _ => VolumeKey::Unencrypted,
        };
        let mut findings = check(&self.path, key.kek())?;
        if let Some(volume) = &described {
            let (found, least) = (volume.descriptor.generation, self.freshness.least_generation);
            if found < least {
                let error = DatastoreError::RolledBack { path: self.path.clone(), found, least };
                findings.insert(0, Finding { severity: Severity::Error, message: error.to_string() });
            }
        }
        let clean = findings.iter().all(|finding| finding.severity != Severity::Error);
        let findings = findings.into_iter().map(FindingFacts::from).collect();
        output.answer(&Checked { path: self.path.clone(), clean, findings })?;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
