//! `strongroom doctor`: whether this machine is fit for VMs whose disks are encrypted, and stays
//! so.

mod cold_start;
mod installation;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_host::protocol::CryptoSafe;
use strongroom_hostd::checks::crypto_safe::{self, CryptoSafeRule};
use strongroom_hostd::checks::vms::{self, Stock};
use strongroom_hostd::checks::{Finding, Root, Verdict, kernel, memory, place, programs};
use strongroom_hostd::daemon::capacity;
use strongroom_hostd::daemon::config::HostConfig;
use strongroom_types::counted;

use self::cold_start::Site;
use self::installation::KeyServer;
use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::Output;
use crate::serve::{Places, ServeConfig};

/// Where to look.
#[derive(Debug, Args)]
#[command(
    after_help = "Looks at this machine (what takes memory to a disk, the kernel, QEMU and its like), at what is set up on it, and, while `serve` runs, asks \
it what is wrong. Changes nothing. It can be called before `serve` ever was; some of it only root can see.

It looks for the cold-start circle: a VM that waits for a key that is only to be had once that VM runs. Where a VM serves a key provider in a way that \
cannot be seen from here, say so in the configuration file: provides-keys = VM=PROVIDER

Exit status: 0 nothing is refused; 1 something is: `refused` lines say what is not done because of it.

Examples:
  strongroom doctor
  strongroom doctor --json | jq -r '.findings[] | select(.verdict != \"ok\") | .next_step'"
)]
pub struct DoctorArguments {
    /// Where `serve` keeps what lasts as long as processes; as its --run
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,

    /// The configuration file of `serve`; by default /etc/strongroom/strongroom.conf, if it is
    /// there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Diagnosis {
    /// The worst of all.
    verdict: Verdict,
    crypto_safe: CryptoSafe,
    findings: Vec<Finding>,
}

impl DoctorArguments {
    /// Looks, and says.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let places = Places::of(&self.home, self.run.as_deref())?;
        let mut findings = Vec::new();
        let config = match ServeConfig::read(self.config.as_deref()) {
            Ok(config) => config,
            // What it says of the rest is still worth hearing.
            Err(error) => {
                findings.push(Finding::refused(
                    "configuration",
                    error.to_string(),
                    "serve does not start with it",
                    "mend that line",
                ));
                ServeConfig::default()
            }
        };
        let host = HostConfig::of_home(&places.hostd);
        if let Err(error) = &host {
            findings.push(Finding::refused(
                "host",
                error.to_string(),
                "hostd does not start with it",
                "mend that file, or put it back from a backup",
            ));
        }
        let host = host.ok();
        let rule = config.crypto_safe.or(host.as_ref().map(|host| host.crypto_safe)).unwrap_or_default();
        let root = Root::machine();
        let crypto_safe = crypto_safe::judge(&root, rule, false);

        findings.extend(memory::findings(&root).into_iter().map(|finding| as_advised(rule, finding)));
        findings.extend(kernel::findings(&root));
        let qemu = host.as_ref().map_or_else(default_qemu, |host| host.qemu.clone());
        findings.extend(programs::findings(&qemu));
        findings.extend([place::clock(&root), place::space(&places.home), installation::home(&places.home)]);
        let key_server = KeyServer::of(&places.home);
        if host.is_some() && places.home.exists() {
            findings.extend(installation::certificates(&places));
            findings.extend(key_server.findings);
            findings.extend(installation::alarms(&self.home, &places));
            findings.push(installation::old_processes(&places.run));
        }
        let datastores: Vec<_> =
            host.iter().flat_map(|host| &host.datastores).map(|datastore| datastore.path.clone()).collect();
        let found = cold_start::vms_of(&datastores);
        if let Some(host) = &host {
            let programs = capacity::programs(None);
            let stock = Stock {
                root: &root,
                programs: &programs,
                boot_directories: &host.boot_directories,
                interfaces: host.interfaces.as_deref(),
            };
            findings.extend(vms::findings(&found, &stock));
        }
        let (needs, unknown) = cold_start::gather(&Site {
            root: &root,
            home: &places.home,
            vms: &found,
            provides: &config.provides_keys,
            brokered: key_server.brokered.as_ref(),
            is_broker: key_server.is_broker,
            resolve: &cold_start::resolve,
        });
        findings.extend(cold_start::findings(&needs, &unknown));

        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
        output.answer(&Diagnosis { verdict, crypto_safe, findings })?;
        Ok(if verdict == Verdict::Refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// Where the host's owner accepts it, nothing is refused for it.
fn as_advised(rule: CryptoSafeRule, finding: Finding) -> Finding {
    match (rule, finding.verdict) {
        (CryptoSafeRule::Advised, Verdict::Refused) => Finding { verdict: Verdict::Warning, ..finding },
        _ => finding,
    }
}

fn default_qemu() -> PathBuf {
    strongroom_hypervisor::qemu::DEFAULT_PROGRAM.into()
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
        for finding in &self.findings {
            let Finding { check, verdict, found, why, next_step } = finding;
            writeln!(f, "{:8} {check:width$}  {found}", word(*verdict))?;
            for (what, text) in [("why", why), ("next", next_step)] {
                if let Some(text) = text {
                    writeln!(f, "{:8} {:width$}  {what}: {text}", "", "")?;
                }
            }
        }
        let count = |verdict| self.findings.iter().filter(|finding| finding.verdict == verdict).count();
        let (refused, warnings) = (count(Verdict::Refused), count(Verdict::Warning));
        match self.verdict {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnosis_names_what_to_do() {
        let leak = Finding::refused("swap", "memory is swapped out", "it is read later", "swapoff");
        let advised = as_advised(CryptoSafeRule::Advised, leak.clone());
        assert_eq!(advised.verdict, Verdict::Warning);
        assert_eq!(as_advised(CryptoSafeRule::Required, leak.clone()), leak);
        let diagnosis = Diagnosis {
            verdict: Verdict::Refused,
            crypto_safe: crypto_safe::judge(&Root::at("/nonexistent"), CryptoSafeRule::Required, false),
            findings: vec![Finding::ok("kvm", "KVM works"), leak],
        };
        let text = diagnosis.to_string();
        assert!(
            text.contains("refused  swap  memory is swapped out\n") && text.contains("next: swapoff"),
            "{text}"
        );
        assert!(text.ends_with("1 error, no warnings."), "{text}");
    }
}
