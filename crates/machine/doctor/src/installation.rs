//! What is set up on this machine, whether it runs or not: home, key server, certificates,
//! processes of an older program, and what the control plane says is wrong.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::state_file::StateFile;
use strongroom_hostd::checks::{Finding, Verdict};
use strongroom_keys::ProviderKey;
use strongroom_keyserver::backup::BackupStatus;
use strongroom_keyserver::management::protocol::{BrokeredAnswer, StatusAnswer};
use strongroom_keyserver::root::sealing_command;
use strongroom_types::counted;
use time::OffsetDateTime;

/// A certificate that ends sooner should have been renewed: `serve` does it 30 days before.
const RENEWAL_OVERDUE: time::Duration = time::Duration::days(14);

/// A certificate that this machine has at its key server.
#[derive(Debug)]
pub struct Certificate {
    /// Where its files are.
    pub directory: PathBuf,
    /// The first moment at which it is good no longer, or why it cannot be read.
    pub not_after: Result<OffsetDateTime, String>,
}

/// The key server that is set up in a home.
#[derive(Debug)]
pub struct KeyServer {
    /// Whether it is the broker of any provider.
    pub is_broker: bool,
    /// What it says of itself, or why it could not be asked.
    pub answer: Result<KeyServerAnswer, String>,
}

/// What a key server says of itself.
#[derive(Debug)]
pub struct KeyServerAnswer {
    /// How it is.
    pub status: StatusAnswer,
    /// The keys that it passes on.
    pub brokered: Vec<BrokeredAnswer>,
}

/// The home itself, which only its owner may read. `has_key_server` says whether it has a key
/// server's.
pub fn home(home: &Path, has_key_server: bool) -> Finding {
    const CHECK: &str = "home";
    let place = home.display();
    let Ok(metadata) = std::fs::metadata(home) else {
        return Finding::ok(
            CHECK,
            format!("nothing is set up in {place} yet; `strongroom serve` makes all that it takes"),
        );
    };
    if metadata.mode() & 0o077 != 0 && has_key_server {
        let loose = std::fs::metadata(home.join("keyserver")).is_ok_and(|inner| inner.mode() & 0o077 != 0);
        if loose {
            return Finding::warning(
                CHECK,
                format!("others than its owner can look into {place}"),
                "names of VMs, keys and hosts can be read there; keys cannot",
                format!("chmod 0700 {place}"),
            );
        }
    }
    Finding::ok(CHECK, format!("state is in {place}"))
}

impl KeyServer {
    /// What is to be said of it, in this home.
    pub(crate) fn findings(&self, home: &Path) -> Vec<Finding> {
        match &self.answer {
            Ok(answer) => judge(&answer.status, &home.join("keyserver")),
            Err(error) => vec![Finding::warning(
                "key-server",
                format!("this machine's key server does not answer: {error}"),
                "VMs that run go on; none with an encrypted disk can start",
                "start it: `systemctl start strongroom`, or `strongroom serve`",
            )],
        }
    }

    /// Where the keys are that it passes on, by their ids here; nothing if it could not be asked.
    pub(crate) fn brokered(&self) -> Option<BTreeMap<String, ProviderKey>> {
        let keys = &self.answer.as_ref().ok()?.brokered;
        Some(keys.iter().map(|key| (key.id.clone(), key.key.clone())).collect())
    }
}

fn judge(status: &StatusAnswer, directory: &Path) -> Vec<Finding> {
    let root = match status.root_protection.as_str() {
        "unprotected" => Finding::warning(
            "root-key",
            "the key server's root key is not protected",
            "who gets at this machine's disk has all keys, and so all disks under them",
            format!(
                "stop the server, then run `{}`; 'keyserver root seal --help' lists the other ways",
                sealing_command(directory)
            ),
        ),
        protection => Finding::ok("root-key", format!("the key server's root key is under {protection}")),
    };
    let backup = if status.backup == BackupStatus::Unbacked {
        Finding::warning(
            "key-server-backup",
            "the key server has no backup",
            "if this machine is lost, so is every key, and all that they protect",
            "`strongroom keyserver custodian`, then `strongroom keyserver backup`; keep the file away from this machine",
        )
    } else {
        Finding::ok("key-server-backup", "the key server is backed up")
    };
    vec![root, backup]
}

/// The certificates that this machine has at its key server.
pub fn certificates(certificates: &[Certificate]) -> Vec<Finding> {
    const CHECK: &str = "certificates";
    let mut findings = Vec::new();
    for Certificate { directory, not_after } in certificates {
        let name = directory.display();
        let next = "start `strongroom serve` (or `strongroom keyserver run`) again with this home: the key server renews what is its \
                    machine's own when it starts, also what has ended";
        let why = "its holder is refused by the key server from then on: no VM starts";
        let now = OffsetDateTime::now_utc();
        match not_after {
            Err(error) => findings.push(Finding::refused(CHECK, error.clone(), why, next)),
            Ok(end) if *end <= now => {
                findings.push(Finding::refused(
                    CHECK,
                    format!("the certificate in {name} has ended"),
                    why,
                    next,
                ));
            }
            Ok(end) if *end < now + RENEWAL_OVERDUE => {
                let days = (*end - now).whole_days();
                findings.push(Finding::warning(
                    CHECK,
                    format!("the certificate in {name} ends in {days} days"),
                    why,
                    next,
                ));
            }
            Ok(_) => {}
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, "no certificate of this machine ends soon"));
    }
    findings
}

/// What the control plane says is wrong, or why it does not answer.
pub fn alarms(said: Result<Vec<Alarm>, String>) -> Vec<Finding> {
    const CHECK: &str = "serve";
    let alarms = match said {
        Ok(alarms) => alarms,
        Err(error) => {
            return vec![Finding::warning(
                CHECK,
                format!("the control plane does not answer: {error}"),
                "VMs that run go on; none is started or watched",
                "`systemctl start strongroom`, or `strongroom serve`",
            )];
        }
    };
    let mut findings =
        vec![Finding::ok(CHECK, format!("the control plane answers; {} alarms", alarms.len()))];
    // What this machine's memory does is told by what was found here.
    for alarm in alarms.into_iter().filter(|alarm| alarm.kind != AlarmKind::HostNotCryptoSafe) {
        let verdict = match alarm.severity {
            Severity::Warning => Verdict::Warning,
            Severity::Critical => Verdict::Refused,
        };
        findings.push(Finding {
            check: alarm.kind.as_str().replace('_', "-"),
            verdict,
            found: alarm.message,
            why: None,
            next_step: Some(alarm.next_step),
        });
    }
    findings
}

/// Processes of VMs that run another program than the one that is installed where theirs was.
pub fn old_processes(run: &Path) -> Finding {
    const CHECK: &str = "versions";
    let vms = std::fs::read_dir(run.join("vms")).into_iter().flatten().flatten();
    let (mut old, mut all) = (Vec::new(), 0);
    for vm in vms {
        let Ok(Some(state)) = StateFile::read(&VmRunDirectory::existing(vm.path())) else { continue };
        if !state.supervisor.is_alive() || state.off.is_some() {
            continue;
        }
        all += 1;
        let supervisor = state.supervisor.pid;
        let is_old = is_replaced(supervisor) == Some(true)
            || children(supervisor).into_iter().any(|child| is_replaced(child) == Some(true));
        if is_old {
            old.push(state.spec.name.to_string());
        }
    }
    if old.is_empty() {
        return Finding::ok(
            CHECK,
            match all {
                0 => "no VM runs, so none is of an older program".to_owned(),
                all => format!("the processes of {} are of the installed program", counted(all, "VM")),
            },
        );
    }
    Finding::warning(
        CHECK,
        format!("processes of VMs {} are of a program that was replaced since", old.join(", ")),
        "what the installed version mends is not mended for them yet",
        "`strongroom vm restart NAME` when it suits; docs/INSTALL.md says what an upgrade does",
    )
}

/// Whether the file that a process runs is another one than is at its path now. Nothing for
/// programs that are not ours, or may not be looked at.
fn is_replaced(pid: u32) -> Option<bool> {
    let link = format!("/proc/{pid}/exe");
    let path = std::fs::read_link(&link).ok()?;
    let text = path.to_str()?;
    let installed = text.strip_suffix(" (deleted)").unwrap_or(text);
    if Path::new(installed).file_name()?.to_str()? != "strongroom" {
        return None;
    }
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let runs = identity(std::fs::metadata(&link).ok()?);
    Some(std::fs::metadata(installed).map(identity).ok() != Some(runs))
}

/// The children of a process, as far as the kernel lists them.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    listed
        .flat_map(|pids| pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_under_a_process_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("strongroom");
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("60").spawn().unwrap();
        assert_eq!(is_replaced(child.id()), Some(false));
        assert!(
            children(std::process::id()).contains(&child.id()) || children(std::process::id()).is_empty()
        );
        // As a package manager does it.
        std::fs::copy("/bin/true", scratch.path().join("new")).unwrap();
        std::fs::rename(scratch.path().join("new"), &program).unwrap();
        assert_eq!(is_replaced(child.id()), Some(true));
        child.kill().unwrap();
        child.wait().unwrap();
        // Another user's program does not count.
        assert_eq!(is_replaced(std::process::id()), None);
    }

    #[test]
    fn a_home_that_is_not_there_is_no_fault() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(home(&scratch.path().join("none"), false).verdict, Verdict::Ok);
        assert_eq!(old_processes(scratch.path()).verdict, Verdict::Ok);
    }
}
