//! Landlock: a ruleset that handles every access the running kernel knows, and allows none.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetError, Scope,
};

use super::{Measure, Report, SandboxError};

/// The newest that this was written for. Older kernels deny what they can.
const NEWEST: ABI = ABI::V9;
/// The oldest that denies all that matters here. What came later, connecting to a socket's path, the empty root does.
const SUFFICIENT: ABI = ABI::V6;

/// Denies all files but the open ones, all TCP ports, and signals and abstract sockets to the outside.
pub(super) fn deny_everything(report: &mut Report) -> Result<(), SandboxError> {
    let reason = match restrict() {
        Ok(RestrictionStatus { landlock: LandlockStatus::Available { effective_abi, .. }, .. }) => {
            match missing(effective_abi) {
                None => return Ok(()),
                Some(missing) => {
                    format!("this kernel's (ABI {}) cannot deny {missing}", effective_abi as i32)
                }
            }
        }
        Ok(RestrictionStatus { landlock: LandlockStatus::NotEnabled, .. }) => {
            "it was not enabled when this kernel was booted (lsm=landlock,...)".to_owned()
        }
        Ok(_) => "this kernel has none; Linux 6.12 is the first with all that is used".to_owned(),
        Err(error) => format!("the kernel refuses it: {error}"),
    };
    report.lacks(Measure::Landlock, reason)
}

fn restrict() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .restrict_self()
}

/// What an older kernel cannot deny, as far as it matters.
fn missing(abi: ABI) -> Option<&'static str> {
    match abi {
        _ if abi >= SUFFICIENT => None,
        _ if abi >= ABI::V4 => Some("signals and abstract sockets"),
        _ if abi >= ABI::V3 => Some("TCP, signals and abstract sockets"),
        _ => Some("truncating by path, TCP, signals and abstract sockets"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_cannot_deny_shrinks_with_its_age() {
        let lengths: Vec<_> =
            [ABI::V1, ABI::V3, ABI::V4, ABI::V6, ABI::V9].map(|abi| missing(abi).map_or(0, str::len)).into();
        assert!(lengths.is_sorted_by(|older, newer| older >= newer), "{lengths:?}");
        assert_eq!(missing(SUFFICIENT), None);
    }
}
