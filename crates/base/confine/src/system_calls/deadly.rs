//! The system calls that end one of our processes.

use libc::*;

/// Calls that only an attacker makes. Creating a process, opening a file, and making a socket or a
/// ring are not listed; they only fail where they are not needed, because a library may try them
/// and handle the error.
#[rustfmt::skip]
pub(super) const DEADLY: &[c_long] = &[
    // Another program.
    SYS_execve, SYS_execveat,
    // Other processes' memory and files.
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_pidfd_getfd, SYS_kcmp,
    // Files without a path, and changes to mounts and the root.
    SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_chroot, SYS_pivot_root, SYS_mount, SYS_umount2, SYS_move_mount,
    SYS_open_tree, SYS_fsopen, SYS_fsmount, SYS_fsconfig, SYS_fspick, SYS_mount_setattr,
    // Other namespaces, users and capabilities.
    SYS_unshare, SYS_setns, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid,
    SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capset,
    // The kernel's largest attack surfaces.
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_keyctl, SYS_add_key, SYS_request_key, SYS_personality,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_reboot, SYS_swapon, SYS_swapoff,
    SYS_syslog, SYS_acct, SYS_quotactl, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
    SYS_sethostname, SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    SYS_modify_ldt,
];
