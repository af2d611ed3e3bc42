//! Whether this host may run VMs whose disks are encrypted.
//!
//! ```text
//!              required                       advised
//! no leak      safe                           prepared
//! a leak       incapable; pending-incapable   incapable
//!              while encrypted VMs run
//! ```
//!
//! A *leak* is anything that can write memory to a disk in the clear ([`super::memory`]). Under the
//! rule `required`, a host with a leak starts no VM with an encrypted disk. Running VMs are never
//! stopped, whatever happens to the host.

use serde::{Deserialize, Serialize};
use strongroom_host::protocol::{CryptoSafe, CryptoSafeState, Problem, VmSpec};

use super::{Finding, Root, memory};

/// The rule in `host.json` for VMs with encrypted disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CryptoSafeRule {
    /// No VM with an encrypted disk starts unless its memory cannot reach a disk. This is the
    /// default: otherwise, data that is encrypted at rest could end up in swap.
    #[default]
    Required,
    /// VMs start, and leaks are reported. For test machines, and for self-encrypting disks, which
    /// cannot be detected from outside.
    Advised,
}

impl CryptoSafeRule {
    /// Its name, as in `host.json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Advised => "advised",
        }
    }
}

/// Returns the host's state under this rule.
pub fn judge(root: &Root, rule: CryptoSafeRule, encrypted_vms_run: bool) -> CryptoSafe {
    state_of(memory::reasons(&memory::leaks(root)), rule, encrypted_vms_run)
}

fn state_of(reasons: Vec<String>, rule: CryptoSafeRule, encrypted_vms_run: bool) -> CryptoSafe {
    let required = rule == CryptoSafeRule::Required;
    let state = match (reasons.is_empty(), required) {
        (true, true) => CryptoSafeState::Safe,
        (true, false) => CryptoSafeState::Prepared,
        (false, true) if encrypted_vms_run => CryptoSafeState::PendingIncapable,
        (false, _) => CryptoSafeState::Incapable,
    };
    CryptoSafe { state, reasons, required }
}

/// Refuses a VM with an encrypted disk if its memory could reach a disk.
///
/// # Errors
/// The leaks, with the next step for each.
pub fn may_start(root: &Root, rule: CryptoSafeRule, spec: &VmSpec) -> Result<(), Problem> {
    if rule == CryptoSafeRule::Advised || !spec.is_encrypted() {
        return Ok(());
    }
    let leaks = memory::leaks(root);
    let reasons = memory::reasons(&leaks);
    if reasons.is_empty() {
        return Ok(());
    }
    let message = format!(
        "VM {} has encrypted disks, and this host is not crypto-safe: {}",
        spec.name,
        reasons.join("; ")
    );
    let steps = |finding: &Finding| finding.next_step.clone().filter(|_| reasons.contains(&finding.found));
    let steps: Vec<_> = leaks.iter().filter_map(steps).collect();
    Err(Problem::new("host_not_crypto_safe", message).with_next_step(format!(
        "{}; or, if you accept it, restart `strongroom serve` with --crypto-safe advised; `strongroom doctor` shows all",
        steps.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn states_follow_from_leaks_rule_and_what_runs() {
        use CryptoSafeRule::{Advised, Required};
        use CryptoSafeState::{Incapable, PendingIncapable, Prepared, Safe};
        for (leaks, rule, runs, expected) in [
            (0, Required, false, Safe),
            (0, Required, true, Safe),
            (0, Advised, true, Prepared),
            (1, Required, false, Incapable),
            (1, Required, true, PendingIncapable),
            (1, Advised, false, Incapable),
            (1, Advised, true, Incapable),
        ] {
            let told = state_of(vec!["swap".to_owned(); leaks], rule, runs);
            assert_eq!((told.state, told.reasons.len()), (expected, leaks));
        }
    }

    #[test]
    fn an_encrypted_vm_does_not_start_beside_clear_swap_and_the_refusal_says_what_to_do() {
        let (_kept, root) = tree(&[("/proc/swaps", "Filename\n/dev/sda2 partition 1 0 -2\n")]);
        let spec = |sealed: bool| -> VmSpec {
            let key = r#"{"provider":{"key":{"provider":"local","key":"4711","wrapped":null}}}"#;
            let key = if sealed { key } else { r#""unencrypted""# };
            let text = format!(
                r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds","memory_bytes":268435456,
                "disks":[{{"name":"disk0","size_bytes":1048576,"key":{key}}}]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let refused = may_start(&root, CryptoSafeRule::Required, &spec(true)).unwrap_err();
        assert_eq!(refused.code, "host_not_crypto_safe");
        assert!(refused.message.contains("/dev/sda2"), "{refused}");
        assert!(refused.next_step.as_ref().unwrap().contains("swapoff"), "{refused}");
        may_start(&root, CryptoSafeRule::Required, &spec(false)).unwrap();
        may_start(&root, CryptoSafeRule::Advised, &spec(true)).unwrap();
        let (_kept, root) = tree(&[("/proc/swaps", "Filename\n")]);
        may_start(&root, CryptoSafeRule::Required, &spec(true)).unwrap();
    }
}
