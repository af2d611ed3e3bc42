//! `strongroom volume check`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    Access, CheckReport, DataFacts, Finding, OpenOptions, Severity, check, describe, open,
};
use strongroom_processes::Signals;
use strongroom_worker::Progress;
use strongroom_worker::check::{CheckError, check_blocks};
use strongroom_worker::condition::{Condition, State};
use strongroom_worker::control::status_of;

use super::open::{FreshnessArguments, LockArguments};
use crate::error::CliError;
use crate::keys::{KeyArguments, VolumeKey};
use crate::output::Output;
use crate::progress::Meter;

/// The failures that the volume's server has seen. The files do not show them, and most of them
/// would be read from the page cache.
fn failures(condition: &Condition) -> Option<Finding> {
    let flush = (condition.state == State::FlushFailed).then(|| {
        "a flush failed, and what was written since the last one that succeeded may be lost".to_owned()
    });
    let errors = (condition.device_errors > 0).then(|| {
        let last = condition.last_device_error.as_deref().unwrap_or("no reason");
        format!("requests have failed ({}), of the last it was said: {last}", condition.device_errors)
    });
    let met = flush.into_iter().chain(errors).collect::<Vec<_>>().join("; ");
    (!met.is_empty()).then(|| Finding {
        severity: Severity::Error,
        message: format!(
            "since it is exposed, {met}. See to the device, end the exposure, and check with --data which blocks can be \
             read"
        ),
    })
}

/// The arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = "Can run while the volume is in use, except with --data, which only tolerates other \
readers. Nothing is changed. Without --data, checks the descriptor and the files, but not the blocks in \
them.

Exit status: 0 no errors; 1 errors were found.

Examples:
  strongroom volume check ./ds/vm1
  strongroom volume check ./ds/vm1 --data --key-file vm1.key
  strongroom volume check ./ds/vm1 --no-key")]
pub struct CheckArguments {
    /// Path of the volume
    path: PathBuf,

    #[command(flatten)]
    key: KeyArguments,

    /// Check only what needs no key: that the files exist and have the right lengths
    #[arg(long, conflicts_with = "KeyArguments")]
    no_key: bool,

    /// Also read every block. In a volume created with --integrity each block is compared with its
    /// tag; in any other volume this only shows that all blocks are readable
    #[arg(long, conflicts_with = "no_key")]
    data: bool,

    #[command(flatten)]
    freshness: FreshnessArguments,

    #[command(flatten)]
    lock: LockArguments,
}

#[derive(Serialize)]
struct Checked {
    path: PathBuf,
    /// Whether there are no errors; notices are possible.
    clean: bool,
    #[serde(flatten)]
    report: CheckReport,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_report(f, &self.path.display(), &self.report)
    }
}

/// The findings of a check of `volume`, as lines for people.
pub fn write_report(
    f: &mut fmt::Formatter<'_>,
    volume: &dyn fmt::Display,
    report: &CheckReport,
) -> fmt::Result {
    for finding in &report.findings {
        writeln!(f, "{}: {}", finding.severity, finding.message)?;
    }
    if let Some(data) = &report.data {
        writeln!(f, "{data}")?;
    }
    match report.errors() {
        // The state of unread blocks is unknown.
        0 if report.data.is_none() => write!(
            f,
            "{volume}: no errors in its descriptor and files; its blocks were not read (--data reads them)"
        ),
        0 => write!(f, "{volume}: no errors"),
        1 => write!(f, "{volume}: 1 error"),
        errors => write!(f, "{volume}: {errors} errors"),
    }
}

impl CheckArguments {
    /// Checks the volume. The exit status tells the result.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        // If the volume cannot be described, the check itself reports it.
        let described = describe(&self.path).ok();
        let encrypted = described.as_ref().filter(|volume| volume.descriptor.encryption.is_some());
        let key = match encrypted {
            Some(volume) if !self.no_key => {
                self.key.for_volume(&self.path, &volume.descriptor, self.freshness.expect_kek)?
            }
            _ => VolumeKey::Unencrypted,
        };
        let mut findings = check(&self.path, key.kek())?;
        if let Some(volume) = &described
            && let Err(error) = self.freshness.verify(&self.path, &volume.descriptor)
        {
            findings.insert(0, Finding { severity: Severity::Error, message: error.to_string() });
        }
        findings.extend(status_of(&self.path).and_then(|status| failures(&status.condition)));
        let is_sound = findings.iter().all(|finding| finding.severity != Severity::Error);
        let data = match self.data && is_sound {
            true => Some(self.read_blocks(&key, output, &mut findings)?),
            false => None,
        };
        let report = CheckReport::new(findings, data);
        let clean = report.errors() == 0;
        output.answer(&Checked { path: self.path.clone(), clean, report })?;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Reads all blocks the way a guest does.
    fn read_blocks(
        &self,
        key: &VolumeKey,
        output: &Output,
        findings: &mut Vec<Finding>,
    ) -> Result<DataFacts, CliError> {
        let options = OpenOptions {
            protection: key.protection(),
            access: Access::ReadOnly,
            lock_wait: self.lock.lock_wait,
            least_generation: self.freshness.least_generation,
        };
        let volume = open(&self.path, &options)?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let mut meter = Meter::start(output, "reading", size_bytes);
        let mut progress = Progress { stop: signals.stop_flag(), report: &mut |bytes| meter.at(bytes) };
        check_blocks(volume, findings, &mut progress).map_err(|error| match error {
            CheckError::Stack(error) => error.into(),
            CheckError::Transfer(error) => CliError::transfer(error, &self.path, "read", &self.path),
        })
    }
}
