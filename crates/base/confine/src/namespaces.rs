//! A network, IPC, host name, mounts and cgroups with nothing in them, and a root directory that is
//! empty.
//!
//! No process-id namespace: a process cannot move itself into one, and a worker that made one for
//! its children could make no threads any more. What it would hide is behind the empty root
//! (`/proc`), another user, Landlock's signal scope and the denial of every call that takes a
//! process's number.

use nix::sched::{CloneFlags, unshare};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

use super::{Measure, Report, SandboxError};

/// All but the user namespace.
const NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWNET
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS)
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWCGROUP);

/// Where the empty root is mounted before it becomes the root. It exists: what was read there led
/// here.
const MOUNT_POINT: &str = "/proc";
/// One page and one inode, its own directory, that can be neither listed nor written.
const EMPTY: &std::ffi::CStr = c"size=4k,nr_inodes=1,mode=0111";

/// With the right to.
pub(super) fn enter(report: &mut Report) -> Result<(), SandboxError> {
    if let Err(errno) = unshare(NAMESPACES) {
        let reason = format!("the kernel gives none ({errno}), though this process has the right to them");
        report.lacks(Measure::Namespaces, reason)?;
        return report.lacks(Measure::EmptyRoot, "it takes a mount namespace");
    }
    enter_empty_root(report)
}

/// Without: a user namespace gives the rights in the others. Nobody is mapped into it, so nothing
/// but what the process has open is its own, and outside it is still the user that it was.
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

/// Those that a supervisor does without: IPC, host name, and mounts that no other process sees. It
/// sees the host's, as they come and go, and is in its network.
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
    // The old root comes to lie over the new one, and goes.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    Ok(())
}
