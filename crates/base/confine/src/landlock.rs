//! Landlock: a ruleset that handles every access that the running kernel knows. It allows a worker
//! none, and a supervisor its own directories.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

use super::{Measure, Report, SandboxError};

/// The newest ABI that this was written for. Older kernels deny what they can.
const NEWEST: ABI = ABI::V9;
/// The oldest ABI that denies everything that matters here. The empty root denies the later
/// addition, connecting to a socket by its path.
const SUFFICIENT: ABI = ABI::V6;

/// The newest ABI for supervisors: later ones also check connecting to a socket by its path, and a
/// supervisor uses the host's resolver sockets to look up key servers.
const SUPERVISORS: ABI = ABI::V8;

/// Denies all files except the open ones, all TCP ports, and signals and abstract sockets to the
/// outside.
pub(super) fn deny_everything(report: &mut Report) -> Result<(), SandboxError> {
    judge(restrict(), report)
}

/// Denies all files except those below these directories, listening on TCP, and signals and
/// abstract sockets to the outside. Missing directories are left out.
pub(super) fn allow_only(
    read: &[PathBuf],
    write: &[PathBuf],
    report: &mut Report,
) -> Result<(), SandboxError> {
    judge(restrict_to(read, write), report)
}

fn judge(
    restricted: Result<RestrictionStatus, RulesetError>,
    report: &mut Report,
) -> Result<(), SandboxError> {
    let reason = match restricted {
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

fn restrict_to(read: &[PathBuf], write: &[PathBuf]) -> Result<RestrictionStatus, RulesetError> {
    let all = AccessFs::from_all(SUPERVISORS);
    let reading = BitFlags::from(AccessFs::ReadFile) | AccessFs::ReadDir;
    let writing = all & !(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::MakeSym);
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(SUPERVISORS))?
        .create()?
        .add_rules(path_beneath_rules(read, reading))?
        .add_rules(path_beneath_rules(write, writing))?
        .restrict_self()
}

/// The relevant accesses that an older kernel cannot deny.
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
