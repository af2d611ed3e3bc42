//! An examination, in the order in which a person reads its findings.

use std::path::{Path, PathBuf};

use serde::Serialize;
use strongroom_api::alarm::Alarm;
use strongroom_host::protocol::CryptoSafe;
use strongroom_hostd::checks::crypto_safe::{self, CryptoSafeRule};
use strongroom_hostd::checks::vms::{self, Stock};
use strongroom_hostd::checks::{Finding, Root, Verdict, kernel, memory, place, programs};
use strongroom_hostd::daemon::capacity;
use strongroom_hostd::daemon::config::HostConfig;

use crate::cold_start::{self, Site};
use crate::installation::{self, Certificate, KeyServer};
use crate::provides_keys::ProvidesKeys;

/// Where everything of a machine is.
#[derive(Clone, Copy, Debug)]
pub struct Installation<'a> {
    /// The home.
    pub home: &'a Path,
    /// hostd's part of the home.
    pub hostd: &'a Path,
    /// What lasts as long as processes.
    pub run: &'a Path,
}

/// What the configuration file of `serve` says, as far as it matters here.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Whether VMs are refused where this machine writes memory to a disk in the clear.
    pub crypto_safe: Option<CryptoSafeRule>,
    /// Which VM serves which key provider.
    pub provides_keys: Vec<ProvidesKeys>,
}

/// Asks key server and control plane, and reads what is configured. Certificates and alarms are
/// asked for only where there is a home.
pub trait Asked {
    /// What the configuration file says, or what is wrong with it.
    fn configuration(&self) -> Result<Configuration, String>;

    /// The key server that is set up in the home, if there is one.
    fn key_server(&self) -> Option<KeyServer>;

    /// The certificates that this machine has.
    fn certificates(&self) -> Vec<Certificate>;

    /// What the control plane says is wrong, or why it does not answer; nothing if none is set up.
    fn alarms(&self) -> Option<Result<Vec<Alarm>, String>>;
}

/// What was found.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// The worst of all.
    pub verdict: Verdict,
    /// Whether memory stays out of disks.
    pub crypto_safe: CryptoSafe,
    /// All that was looked at.
    pub findings: Vec<Finding>,
}

/// Looks at this machine.
pub fn examine(installation: Installation<'_>, asked: &dyn Asked) -> Diagnosis {
    let Installation { home, hostd, run } = installation;
    let mut findings = Vec::new();
    let config = match asked.configuration() {
        Ok(config) => config,
        // What it says of the rest is still worth hearing.
        Err(error) => {
            findings.push(Finding::refused(
                "configuration",
                error,
                "serve does not start with it",
                "mend that line",
            ));
            Configuration::default()
        }
    };
    let host = HostConfig::of_home(hostd);
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
    let key_server = asked.key_server();
    findings.extend([
        place::clock(&root),
        place::space(home),
        installation::home(home, key_server.is_some()),
    ]);
    if host.is_some() && home.exists() {
        findings.extend(installation::certificates(&asked.certificates()));
        findings.extend(key_server.iter().flat_map(|server| server.findings(home)));
        findings.extend(asked.alarms().into_iter().flat_map(installation::alarms));
        findings.push(installation::old_processes(run));
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
        home,
        vms: &found,
        provides: &config.provides_keys,
        brokered: key_server.as_ref().and_then(KeyServer::brokered).as_ref(),
        is_broker: key_server.is_some_and(|server| server.is_broker),
        resolve: &cold_start::resolve,
    });
    findings.extend(cold_start::findings(&needs, &unknown));
    let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    Diagnosis { verdict, crypto_safe, findings }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_owner_accepts_is_a_warning() {
        let leak = Finding::refused("swap", "memory is swapped out", "it is read later", "swapoff");
        let advised = as_advised(CryptoSafeRule::Advised, leak.clone());
        assert_eq!(advised.verdict, Verdict::Warning);
        assert_eq!(as_advised(CryptoSafeRule::Required, leak.clone()), leak);
    }
}
