//! Who the process is and what it may do: nobody, and nothing.

use rustix::process::{
    DumpableBehavior, Gid, Uid, dumpable_behavior, getegid, geteuid, getgid, getgroups, getuid,
    set_dumpable_behavior,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    no_new_privs, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::{Measure, Report, SandboxError};

/// As many as a kernel can have; those that it does not know are refused.
const CAPABILITIES_MAX: u32 = 64;

/// A process's own capabilities, of which no program that it executes would have one.
const fn only(kept: CapabilitySet) -> CapabilitySets {
    CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() }
}

/// Whether the process has a capability now.
pub(super) fn has(capability: CapabilitySet) -> Result<bool, SandboxError> {
    let held = capabilities(None).map_err(SandboxError::step("read capabilities"))?;
    Ok(held.effective.contains(capability))
}

/// Becomes a user and group of its own, and leaves all others.
///
/// The bounding set goes first: it takes a right that changing the user takes away.
pub(super) fn change_user(user: Option<(u32, u32)>, report: &mut Report) -> Result<(), SandboxError> {
    empty_bounding_set()?;
    let Some((uid, gid)) = user else {
        return report.lacks(Measure::OwnUser, "none was given to it; it runs as the user that started it");
    };
    if !has(CapabilitySet::SETUID)? || !has(CapabilitySet::SETGID)? {
        return report
            .lacks(Measure::OwnUser, "only root can give it one; it runs as the user that started it");
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // The process has one thread, so what is true of the thread is true of the process.
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    match changed {
        Ok(()) => Ok(()),
        Err(errno) => report.lacks(Measure::OwnUser, format!("user {uid:?} cannot be had: {errno}")),
    }
}

/// Leaves all groups but its own, where it has the right to.
pub(super) fn leave_groups() -> Result<(), SandboxError> {
    match has(CapabilitySet::SETGID)? {
        true => set_thread_groups(&[]).map_err(SandboxError::step("leave supplementary groups")),
        false => Ok(()),
    }
}

/// Takes every capability out of the set of those that could ever be had again. Without the right
/// to, nothing is lost: [`set_no_new_privs`] leaves no way to have them.
fn empty_bounding_set() -> Result<(), SandboxError> {
    if !has(CapabilitySet::SETPCAP)? {
        return Ok(());
    }
    for bit in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // Both refuse numbers that the kernel does not know.
        let _ = remove_capability_from_bounding_set(capability);
        let left = capability_is_in_bounding_set(capability).unwrap_or(false);
        holds(!left, "capabilities are in its bounding set")?;
    }
    Ok(())
}

/// Gives up every capability but those that are `kept`, for good, and is not dumpable any more: a
/// change of user makes a process dumpable as `fs.suid_dumpable` says.
pub(super) fn give_up_privileges(kept: CapabilitySet) -> Result<(), SandboxError> {
    // Again: a user namespace begins with a full one.
    empty_bounding_set()?;
    set_no_new_privs(true).map_err(SandboxError::step("refuse new privileges"))?;
    // Fails on kernels that have none (before 4.3).
    let _ = clear_ambient_capability_set();
    set_capabilities(None, only(kept)).map_err(SandboxError::step("give up capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(SandboxError::step("stay out of memory dumps"))
}

/// Looks whether it is all true.
pub(super) fn assert_powerless(user: Option<(u32, u32)>, kept: CapabilitySet) -> Result<(), SandboxError> {
    let held = capabilities(None).map_err(SandboxError::step("read capabilities"))?;
    holds(held == only(kept), "it has other capabilities than it should")?;
    let privileged = no_new_privs().map_err(SandboxError::step("read whether new privileges are refused"))?;
    holds(privileged, "it can get new privileges")?;
    let dumpable = dumpable_behavior().map_err(SandboxError::step("read whether it is dumpable"))?;
    holds(dumpable == DumpableBehavior::NotDumpable, "it is dumpable")?;
    if let Some((uid, gid)) = user {
        holds([getuid(), geteuid()] == [Uid::from_raw(uid); 2], "it is another user")?;
        holds([getgid(), getegid()] == [Gid::from_raw(gid); 2], "it is in another group")?;
        let groups = getgroups().map_err(SandboxError::step("read groups"))?;
        holds(groups.is_empty(), "it is in supplementary groups")?;
    }
    Ok(())
}

fn holds(truth: bool, otherwise: &'static str) -> Result<(), SandboxError> {
    if truth { Ok(()) } else { Err(SandboxError::Untrue(otherwise)) }
}
