//! The process's identity and privileges: its own user, and no capabilities.

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

/// The most capabilities that a kernel can have; unknown numbers are refused.
const CAPABILITIES_MAX: u32 = 64;

/// A process's own capabilities; a program that it executes inherits none.
const fn only(kept: CapabilitySet) -> CapabilitySets {
    CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() }
}

/// Whether the process has a capability now.
pub(super) fn has(capability: CapabilitySet) -> Result<bool, SandboxError> {
    let held = capabilities(None).map_err(SandboxError::step("read capabilities"))?;
    Ok(held.effective.contains(capability))
}

/// Changes to the process's own user and group, and leaves all other groups.
///
/// The bounding set is emptied first, because that needs a capability that changing the user
/// removes.
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
    // The process has one thread, so the thread's credentials are the process's.
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    match changed {
        Ok(()) => Ok(()),
        Err(errno) => report.lacks(Measure::OwnUser, format!("user {uid:?} cannot be had: {errno}")),
    }
}

/// Leaves all supplementary groups, if the process has the capability.
pub(super) fn leave_groups() -> Result<(), SandboxError> {
    match has(CapabilitySet::SETGID)? {
        true => set_thread_groups(&[]).map_err(SandboxError::step("leave supplementary groups")),
        false => Ok(()),
    }
}

/// Empties the capability bounding set. Without the capability to do so nothing is lost, because
/// [`set_no_new_privs`] leaves no way to gain any.
fn empty_bounding_set() -> Result<(), SandboxError> {
    if !has(CapabilitySet::SETPCAP)? {
        return Ok(());
    }
    for bit in 0..CAPABILITIES_MAX {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        // Both calls refuse numbers that the kernel does not know.
        let _ = remove_capability_from_bounding_set(capability);
        let left = capability_is_in_bounding_set(capability).unwrap_or(false);
        holds(!left, "capabilities are in its bounding set")?;
    }
    Ok(())
}

/// Permanently gives up every capability except `kept`, and makes the process not dumpable: a
/// change of user sets this to `fs.suid_dumpable`.
pub(super) fn give_up_privileges(kept: CapabilitySet) -> Result<(), SandboxError> {
    // Again, because a user namespace begins with a full set.
    empty_bounding_set()?;
    set_no_new_privs(true).map_err(SandboxError::step("refuse new privileges"))?;
    // It fails on kernels without ambient capabilities (before 4.3).
    let _ = clear_ambient_capability_set();
    set_capabilities(None, only(kept)).map_err(SandboxError::step("give up capabilities"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(SandboxError::step("stay out of memory dumps"))
}

/// Verifies user, groups and capabilities.
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
