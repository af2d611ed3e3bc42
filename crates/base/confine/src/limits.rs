//! Sets resource limits, and keeps memory out of swap.

use std::path::{Path, PathBuf};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Measure, Report, SandboxError};

/// The most open files of a worker: two sessions with 509 memory regions each, three event
/// descriptors for each of their queues, the same number again while an upgrade hands them over,
/// and some hundred NBD connections.
pub const DESCRIPTORS_MAX: u64 = 4096;

/// The most tasks of a worker. The filter of system calls lets a worker make none, but the kernel
/// makes some for a ring whose file cannot be used without blocking: up to four per processor, or
/// fewer if this limit ends them. If it could make none, that I/O would fail, so the limit is far
/// above the number of threads and rings.
pub const TASKS_MAX: u32 = 4096;

const UNLIMITED: Rlimit = Rlimit { current: None, maximum: None };

/// Disables core files, limits the count of descriptors, and removes the limits on the size of the
/// volume's file and, if allowed, on locked memory.
pub(super) fn set(report: &mut Report) -> Result<(), SandboxError> {
    limit(Resource::Core, 0).map_err(SandboxError::step("set the limit of core files"))?;
    let allowed =
        getrlimit(Resource::Nofile).maximum.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    limit(Resource::Nofile, allowed).map_err(SandboxError::step("set the limit of open files"))?;
    if setrlimit(Resource::Fsize, UNLIMITED).is_err() {
        report.lacks(
            Measure::Limits,
            "the size of files is limited (ulimit -f); a volume that grows past it fails",
        )?;
    }
    lift_locked_memory();
    Ok(())
}

/// Raises the limit of locked memory to the hard limit: secrets, rings and registered memory count
/// towards it. Only root can raise the hard limit.
pub(super) fn lift_locked_memory() {
    let locked = Rlimit { current: getrlimit(Resource::Memlock).maximum, ..getrlimit(Resource::Memlock) };
    let _ = setrlimit(Resource::Memlock, UNLIMITED).or_else(|_| setrlimit(Resource::Memlock, locked));
}

/// Limits its threads together with those that the kernel makes for its rings. Only for a worker
/// with its own user, because the kernel counts them by user.
pub(super) fn bound_tasks() -> Result<(), SandboxError> {
    limit(Resource::Nproc, TASKS_MAX.into()).map_err(SandboxError::step("set the limit of threads"))
}

fn limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
}

/// Ensures that the process is never swapped out: by its cgroup if that forbids swap, or by locking
/// its memory as it is touched.
pub(super) fn never_swap(report: &mut Report) -> Result<(), SandboxError> {
    if own_cgroup().is_some_and(|cgroup| is_without_swap(&cgroup)) {
        return Ok(());
    }
    // With a finite limit a later mapping of guest memory would fail, which is worse than swapping.
    let locked = getrlimit(Resource::Memlock).current.is_none()
        && mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).is_ok();
    if locked || !host_swaps() {
        return Ok(());
    }
    report.lacks(
        Measure::NoSwap,
        "guest data may be swapped out; delegate a memory cgroup (Delegate=yes), or allow locked memory \
         (LimitMEMLOCK=infinity), or turn swap off or encrypt it",
    )
}

/// Whether the host has a swap device now; `true` if this cannot be read.
fn host_swaps() -> bool {
    std::fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().nth(1).is_some())
}

/// The path of the process's cgroup (version 2).
pub(super) fn own_cgroup() -> Option<PathBuf> {
    cgroup_in(Path::new("/proc/self"))
}

/// The path of another process's cgroup (version 2), if it has one.
pub fn cgroup_of(pid: u32) -> Option<PathBuf> {
    cgroup_in(&Path::new("/proc").join(pid.to_string()))
}

fn cgroup_in(process: &Path) -> Option<PathBuf> {
    let cgroups = std::fs::read_to_string(process.join("cgroup")).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    cgroup_path(&cgroups, &mounts)
}

fn cgroup_path(cgroups: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == "cgroup2").then_some(place)
    })?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

/// Whether a cgroup, or an ancestor of it, forbids swap.
fn is_without_swap(cgroup: &Path) -> bool {
    cgroup.ancestors().any(|cgroup| {
        std::fs::read_to_string(cgroup.join("memory.swap.max")).is_ok_and(|most| most.trim() == "0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_found_below_its_mount() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let path = cgroup_path("0::/system.slice/strongroom.service\n", mounts).unwrap();
        assert_eq!(path, Path::new("/sys/fs/cgroup/system.slice/strongroom.service"));
        assert_eq!(cgroup_path("0::/\n", mounts).unwrap(), Path::new("/sys/fs/cgroup/"));
        let hybrid = "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let path = cgroup_path("4:memory:/here\n0::/there\n", hybrid).unwrap();
        assert_eq!(path, Path::new("/sys/fs/cgroup/unified/there"));
        assert_eq!(cgroup_path("4:memory:/here\n", hybrid), None);
        assert_eq!(cgroup_path("0::/\n", "proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn no_swap_is_inherited() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("outer/inner");
        std::fs::create_dir_all(&inner).unwrap();
        assert!(!is_without_swap(&inner));
        std::fs::write(inner.join("memory.swap.max"), "max\n").unwrap();
        assert!(!is_without_swap(&inner));
        std::fs::write(directory.path().join("outer/memory.swap.max"), "0\n").unwrap();
        assert!(is_without_swap(&inner));
    }
}
