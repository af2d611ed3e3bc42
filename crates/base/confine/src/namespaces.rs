//! Empty namespaces for network, IPC, host name, mounts and cgroups, and an empty root directory.
//!
//! There is no process-id namespace: a process cannot move itself into one, and a worker that made
//! one for its children could make no more threads. Other measures cover it: the empty root hides
//! `/proc`, and the own user, Landlock's signal scope and the filter of all calls with process ids
//! prevent access to other processes.

use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

use super::{Measure, Report, SandboxError};

/// All namespaces except the user namespace.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWNET
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWCGROUP);

/// The directory at which the empty root is mounted before it becomes the root. It exists, because
/// it was read before.
const MOUNT_POINT: &str = "/proc";
/// The options of the empty root: one page and one inode, its own directory, which can be neither
/// listed nor written.
const EMPTY: &std::ffi::CStr = c"size=4k,nr_inodes=1,mode=0111";

/// Enters the namespaces with the right to make them.
pub(super) fn enter(report: &mut Report) -> Result<(), SandboxError> {
    if let Err(errno) = unshare(NAMESPACES) {
        let reason = format!("the kernel gives none ({errno}), though this process has the right to them");
        report.lacks(Measure::Namespaces, reason)?;
        return report.lacks(Measure::EmptyRoot, "it takes a mount namespace");
    }
    enter_empty_root(report)
}

/// Enters the namespaces without that right: a user namespace gives it. No user is mapped into it,
/// so the process owns only what it has open, and outside it keeps its user.
pub(super) fn enter_as_ordinary_user(report: &mut Report) -> Result<(), SandboxError> {
    if let Err(errno) = unshare(CloneFlags::CLONE_NEWUSER | NAMESPACES) {
        let reason = format!(
            "this user may make no user namespace ({errno}); see user.max_user_namespaces, \
             kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns"
        );
        report.lacks(Measure::Namespaces, reason)?;
        return report.lacks(Measure::EmptyRoot, "it takes a mount namespace");
    }
    enter_empty_root(report)
}

/// Enters the namespaces of a supervisor: IPC, host name, and mounts that no other process sees. It
/// still sees the host's mounts as they change, and stays in its network.
pub(super) fn enter_as_supervisor(report: &mut Report) -> Result<(), SandboxError> {
    let namespaces = CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWNS;
    let entered = unshare(namespaces).map_err(|errno| errno.to_string()).and_then(|()| {
        let follow = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", follow).map_err(|errno| errno.to_string())
    });
    entered.or_else(|reason| report.lacks(Measure::Namespaces, reason))
}

fn enter_empty_root(report: &mut Report) -> Result<(), SandboxError> {
    match mount_empty_root() {
        Ok(()) => Ok(()),
        Err(errno) => report.lacks(Measure::EmptyRoot, format!("it cannot be mounted: {errno}")),
    }
}

fn mount_empty_root() -> Result<(), Errno> {
    // Otherwise the host would see our mounts, or refuse to let us change the root.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", MOUNT_POINT, "tmpfs", flags, EMPTY)?;
    chdir(MOUNT_POINT)?;
    // The old root is now mounted over the new one; remove it.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}
