//! `strongroom doctor`: checks whether this machine is fit for encrypted VMs, and remains so. The
//! checks are in `strongroom_doctor`; this file collects and words their results.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_api::Page;
use strongroom_api::alarm::Alarm;
use strongroom_doctor::{
    Asked, Certificate, Configuration, Diagnosis, Installation, KeyServer, KeyServerAnswer, examine,
};
use strongroom_hostd::checks::{Finding, Verdict};
use strongroom_keyserver::management::questions::{BrokeredKeys, Status};
use strongroom_types::counted;

use crate::api::ApiArguments;
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::keyserver::{Administrator, ClientFiles, ServerSettings};
use crate::output::Output;
use crate::serve::{Places, ServeConfig};

/// The arguments of `doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Checks this machine (ways in which memory reaches a disk, the kernel, QEMU and other \
programs) and its configuration, and asks a running `serve` for its status and alarms. It changes nothing, and \
works before the first `serve`; some checks need root.

It also looks for cold-start loops: a VM that waits for a key that is available only when that VM runs. \
If a VM provides a key provider in a way that cannot be detected, declare it in the configuration file: \
provides-keys = VM=PROVIDER

Exit status: 0 nothing is refused; 1 something is: `refused` lines say what, and why.

Examples:
  strongroom doctor
  strongroom doctor --json | jq -r '.findings[] | select(.verdict != \"ok\") | .next_step'"
)]
pub struct DoctorArguments {
    /// Run directory, as given to `serve --run`
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,

    /// Configuration file of `serve` [default: /etc/strongroom/strongroom.conf, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Answer(Diagnosis);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(Diagnosis { verdict, findings, .. }) = self;
        let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
        for finding in findings {
            let Finding { check, verdict, found, why, next_step } = finding;
            writeln!(f, "{:8} {check:width$}  {found}", word(*verdict))?;
            for (what, text) in [("why", why), ("next", next_step)] {
                if let Some(text) = text {
                    writeln!(f, "{:8} {:width$}  {what}: {text}", "", "")?;
                }
            }
        }
        let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (refused, warnings) = (count(Verdict::Refused), count(Verdict::Warning));
        match verdict {
            Verdict::Ok => write!(f, "\nThis machine is fit for encrypted VMs."),
            Verdict::Warning => {
                let warnings = counted(warnings, "warning");
                write!(f, "\nThis machine is fit for encrypted VMs, with {warnings}.")
            }
            Verdict::Refused => {
                let (errors, warnings) = (counted(refused, "error"), counted(warnings, "warning"));
                write!(f, "\nThis machine is not fit for encrypted VMs: {errors}, {warnings}.")
            }
        }
    }
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::Refused => "refused",
    }
}

/// How to reach this machine's key server and control plane.
struct Inquiry<'a> {
    arguments: &'a DoctorArguments,
    places: &'a Places,
}

impl DoctorArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let places = Places::of(&self.home, self.run.as_deref())?;
        let installation = Installation { home: &places.home, hostd: &places.hostd, run: &places.run };
        let diagnosis = examine(installation, &Inquiry { arguments: self, places: &places });
        let verdict = diagnosis.verdict;
        output.answer(&Answer(diagnosis))?;
        Ok(if verdict == Verdict::Refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

impl Asked for Inquiry<'_> {
    fn configuration(&self) -> Result<Configuration, String> {
        let ServeConfig { crypto_safe, provides_keys, .. } =
            ServeConfig::read(self.arguments.config.as_deref()).map_err(|error| error.to_string())?;
        Ok(Configuration { crypto_safe, provides_keys })
    }

    fn key_server(&self) -> Option<KeyServer> {
        let directory = self.places.home.join("keyserver");
        let settings = ServerSettings::read(&directory).ok()?;
        let files = ClientFiles::in_directory(&directory.join("admin"));
        let asked = || {
            let administrator = Administrator::new(settings.administration(&directory)?, &files)?;
            let status = administrator.ask(Status {})?;
            let brokered = administrator.ask(BrokeredKeys {}).unwrap_or_default();
            Ok(KeyServerAnswer { status, brokered })
        };
        let answer = asked().map_err(|error: CliError| error.to_string());
        Some(KeyServer { is_broker: !settings.brokered.is_empty(), answer })
    }

    fn certificates(&self) -> Vec<Certificate> {
        let Places { home, control, hostd, .. } = self.places;
        let directories = [
            home.join("keyserver/admin"),
            home.join("key-providers/embedded"),
            control.join("identity"),
            control.join("auditor"),
            hostd.join("identity"),
        ];
        let there = directories.into_iter().filter_map(|directory| {
            let files = ClientFiles::in_directory(&directory);
            let is_there = files.are_there();
            is_there.then(|| Certificate {
                not_after: files.not_after().map_err(|error| error.to_string()),
                directory,
            })
        });
        there.collect()
    }

    fn alarms(&self) -> Option<Result<Vec<Alarm>, String>> {
        if !self.places.control.join("token").exists() {
            return None;
        }
        let api = ApiArguments::of_home(&self.arguments.home).connect();
        let asked = api.and_then(|api| api.get::<Page<Alarm>>("/v1/alarms"));
        Some(asked.map(|alarms| alarms.items).map_err(|error| error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use strongroom_hostd::checks::Root;
    use strongroom_hostd::checks::crypto_safe::{self, CryptoSafeRule};

    use super::*;

    #[test]
    fn a_diagnosis_names_what_to_do() {
        let leak = Finding::refused("swap", "memory is swapped out", "it is read later", "swapoff");
        let text = Answer(Diagnosis {
            verdict: Verdict::Refused,
            crypto_safe: crypto_safe::judge(&Root::at("/nonexistent"), CryptoSafeRule::Required, false),
            findings: vec![Finding::ok("kvm", "KVM works"), leak],
        })
        .to_string();
        assert!(
            text.contains("refused  swap  memory is swapped out\n") && text.contains("next: swapoff"),
            "{text}"
        );
        assert!(text.ends_with("1 error, no warnings."), "{text}");
    }
}
