//! Kernel features that the data path and the sandbox of VMs need.

use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};

use super::{Finding, Root};

/// The memory that the processes of one volume lock, in bytes: keys, and buffers unless their
/// cgroup has no swap.
const MEMLOCK_BYTES_MIN: u64 = 8 << 20;

/// All of these checks.
pub fn findings(root: &Root) -> Vec<Finding> {
    vec![io_uring(root), namespaces(root), cgroups(root), locked_memory(), huge_pages(root), landlock(root)]
}

/// The data path needs io_uring.
fn io_uring(root: &Root) -> Finding {
    const CHECK: &str = "io_uring";
    let why = "disks of VMs are read and written through io_uring alone";
    let next = "`sysctl kernel.io_uring_disabled=0`, for good in /etc/sysctl.d; in a container also allow io_uring_setup in its seccomp \
                profile";
    match root.read("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("2") => Finding::refused(CHECK, "io_uring is switched off for everyone", why, next),
        Some("1") if !geteuid().is_root() => {
            Finding::refused(CHECK, "io_uring is switched off for users without rights", why, next)
        }
        Some(_) => Finding::ok(CHECK, "io_uring is on"),
        // io_uring is in 5.1 and later; its switch is in 6.6 and later.
        None => Finding::ok(CHECK, "this kernel has no switch for io_uring"),
    }
}

fn namespaces(root: &Root) -> Finding {
    const CHECK: &str = "namespaces";
    if geteuid().is_root() {
        return Finding::ok(CHECK, "each VM's processes get namespaces and a user of their own");
    }
    let read = |path: &str| root.read(path);
    let forbidden = read("/proc/sys/user/max_user_namespaces").as_deref() == Some("0")
        || read("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0")
        || read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1");
    if forbidden {
        return Finding::warning(
            CHECK,
            "user namespaces are forbidden to users without rights",
            "QEMU and workers then run without namespaces and an empty root; seccomp and Landlock stay",
            "run `strongroom serve` as root (the package's unit does), or allow them: kernel.unprivileged_userns_clone, \
             kernel.apparmor_restrict_unprivileged_userns",
        );
    }
    Finding::warning(
        CHECK,
        "this is not root: VMs' processes get namespaces, and all of them one user",
        "a process that broke out of its sandbox would be the same user as those of other VMs",
        "run `strongroom serve` as root (the package's unit does) where VMs must not trust each other",
    )
}

fn cgroups(root: &Root) -> Finding {
    const CHECK: &str = "cgroup";
    let why =
        "limits of tasks, and memory that is kept out of swap, are by a cgroup of version 2 for each VM";
    if !root.has("/sys/fs/cgroup/cgroup.controllers") {
        return Finding::warning(
            CHECK,
            "there is no cgroup hierarchy of version 2 alone",
            why,
            "boot with `systemd.unified_cgroup_hierarchy=1`; without it, VMs run with less",
        );
    }
    let own = root.read("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let own = Path::new("/sys/fs/cgroup").join(own.trim_start_matches('/'));
    let controllers = root.read(own.join("cgroup.controllers")).unwrap_or_default();
    let missing: Vec<_> = ["memory", "pids"]
        .into_iter()
        .filter(|name| !controllers.split(' ').any(|one| one == *name))
        .collect();
    if missing.is_empty() {
        return Finding::ok(CHECK, "cgroups of version 2, with memory and pids");
    }
    Finding::warning(
        CHECK,
        format!("the cgroup of this process has no {}", missing.join(", ")),
        why,
        "run `strongroom serve` as a service with Delegate=yes (the package's unit has it)",
    )
}

fn locked_memory() -> Finding {
    const CHECK: &str = "locked-memory";
    match getrlimit(Resource::Memlock).current {
        _ if geteuid().is_root() => Finding::ok(CHECK, "root may lock all memory"),
        Some(most) if most < MEMLOCK_BYTES_MIN => Finding::warning(
            CHECK,
            format!("{} KiB of memory may be locked", most >> 10),
            "keys are kept in locked memory, and each volume that is served takes some",
            "LimitMEMLOCK=infinity in the unit, or `memlock` in /etc/security/limits.conf",
        ),
        _ => Finding::ok(CHECK, "enough memory may be locked"),
    }
}

fn huge_pages(root: &Root) -> Finding {
    const CHECK: &str = "huge-pages";
    let chosen = root.read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let chosen = chosen.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("not told");
    Finding::ok(CHECK, format!("transparent huge pages of shared memory: {chosen}"))
}

fn landlock(root: &Root) -> Finding {
    const CHECK: &str = "landlock";
    let modules = root.read("/sys/kernel/security/lsm");
    match modules {
        Some(modules) if modules.split(',').any(|module| module == "landlock") => {
            Finding::ok(CHECK, "Landlock is on")
        }
        Some(_) => Finding::warning(
            CHECK,
            "Landlock is not among this kernel's security modules",
            "it is one of the walls around a worker; the others (empty root, seccomp, user) stay",
            "boot with `landlock` in `lsm=`",
        ),
        None => Finding::ok(
            CHECK,
            "whether Landlock is on cannot be told (securityfs is not mounted); workers say so when they start",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn io_uring_that_is_off_is_refused() {
        for (content, verdict) in [("0\n", Verdict::Ok), ("2\n", Verdict::Refused)] {
            let (_kept, root) = tree(&[("/proc/sys/kernel/io_uring_disabled", content)]);
            assert_eq!(io_uring(&root).verdict, verdict);
        }
        assert_eq!(io_uring(&tree(&[]).1).verdict, Verdict::Ok);
    }

    #[test]
    fn a_cgroup_is_looked_for_where_the_process_is() {
        let service = "/sys/fs/cgroup/system.slice/strongroom.service/cgroup.controllers";
        let own = ("/proc/self/cgroup", "0::/system.slice/strongroom.service\n");
        let hierarchy = ("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        for (files, verdict) in [
            (vec![], Verdict::Warning),
            (vec![hierarchy, own, (service, "cpu memory pids\n")], Verdict::Ok),
            (vec![hierarchy, own, (service, "cpu\n")], Verdict::Warning),
            (vec![hierarchy, own], Verdict::Warning),
        ] {
            let (_kept, root) = tree(&files);
            assert_eq!(cgroups(&root).verdict, verdict, "{files:?}");
        }
    }
}
