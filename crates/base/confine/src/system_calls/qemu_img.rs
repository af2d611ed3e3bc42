//! Which system calls qemu-img may make, and prlimit before it: what they made over every format of
//! ours, in QEMU 7.2, and what the same libraries make where they find it.
//!
//! The rest does not exist for them: a library takes the older way then, as on an older kernel.

use libc::*;

use super::Arguments::{self, Any, OneOf, With, Without};
use super::Table;

/// What qemu-img may do.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: ENOSYS };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // bubblewrap executes prlimit, and that qemu-img. There is nothing else to execute but what
    // lies in /usr, and it would be under the same filter.
    (SYS_execve, Any),
    (SYS_wait4, Any),               // bubblewrap itself, which waits for it
    (SYS_prlimit64, Any),           // the limits, which only sink
    #[cfg(target_arch = "x86_64")]
    (SYS_arch_prctl, Any),          // a program's begin
    (SYS_set_tid_address, Any),     //
    (SYS_set_robust_list, Any),     //
    (SYS_rseq, Any),                //

    // Files: the image, and programs and libraries.
    (SYS_openat, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_open, Any),                //
    (SYS_close, Any),               //
    (SYS_read, Any),                //
    (SYS_readv, Any),               //
    (SYS_pread64, Any),             //
    (SYS_preadv, Any),              //
    (SYS_write, Any),               //
    (SYS_writev, Any),              //
    (SYS_pwrite64, Any),            //
    (SYS_pwritev, Any),             //
    (SYS_lseek, Any),               //
    (SYS_fstat, Any),               //
    (SYS_newfstatat, Any),          //
    (SYS_statx, Any),               //
    (SYS_fstatfs, Any),             //
    (SYS_statfs, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_stat, Any),                //
    #[cfg(target_arch = "x86_64")]
    (SYS_lstat, Any),               //
    #[cfg(target_arch = "x86_64")]
    (SYS_access, Any),              //
    (SYS_faccessat, Any),           //
    (SYS_faccessat2, Any),          //
    #[cfg(target_arch = "x86_64")]
    (SYS_readlink, Any),            //
    (SYS_readlinkat, Any),          //
    (SYS_getcwd, Any),              //
    (SYS_getdents64, Any),          //
    (SYS_ftruncate, Any),           // an image that is written
    (SYS_fallocate, Any),           //
    (SYS_fsync, Any),               //
    (SYS_fdatasync, Any),           //
    (SYS_fadvise64, Any),           //
    (SYS_copy_file_range, Any),     //
    (SYS_fcntl, Any),               // locks of images, flags of sockets
    (SYS_ioctl, OneOf(1, &[
        TCGETS, FIONREAD, FIONBIO,  // is it a terminal
        FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, // the extents of an image that is written
        BLKGETSIZE64, BLKSSZGET, BLKPBSZGET, BLKROTATIONAL, // an image on a device
    ])),
    (SYS_pipe2, Any),               //
    (SYS_dup, Any),                 //

    // The one socket, to the disk that is filled or read.
    (SYS_socket, OneOf(0, &[AF_UNIX as u64])), //
    (SYS_connect, Any),             //
    (SYS_recvmsg, Any),             //
    (SYS_sendmsg, Any),             //
    (SYS_recvfrom, Any),            //
    (SYS_sendto, Any),              //
    (SYS_shutdown, Any),            //
    (SYS_getsockname, Any),         //
    (SYS_getpeername, Any),         //
    (SYS_getsockopt, Any),          //
    (SYS_setsockopt, Any),          //

    // Waiting.
    (SYS_ppoll, Any),               //
    #[cfg(target_arch = "x86_64")]
    (SYS_poll, Any),                //
    (SYS_epoll_create1, Any),       //
    (SYS_epoll_ctl, Any),           //
    (SYS_epoll_pwait, Any),         //
    #[cfg(target_arch = "x86_64")]
    (SYS_epoll_wait, Any),          //
    (SYS_eventfd2, Any),            //
    (SYS_signalfd4, Any),           //
    (SYS_timerfd_create, Any),      //
    (SYS_timerfd_settime, Any),     //

    // Memory. Libraries are mapped to be executed, and nothing is made so afterwards.
    (SYS_mmap, Any),                //
    (SYS_mprotect, Without(2, PROT_EXEC as u64)), //
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, Any),             //
    (SYS_get_mempolicy, Any),       // libnuma, in its library's begin
    (SYS_set_mempolicy, Any),       //

    // Threads, never processes: the flags of clone3 lie in memory, so there is none, and clone is
    // asked.
    (SYS_clone, With(0, CLONE_THREAD as u64)), //
    (SYS_futex, Any),               //
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   //
    (SYS_getpid, Any),              //
    (SYS_gettid, Any),              //
    (SYS_getuid, Any),              //
    (SYS_geteuid, Any),             //
    (SYS_getgid, Any),              //
    (SYS_getegid, Any),             //
    (SYS_prctl, OneOf(0, &[PR_SET_NAME as u64, PR_SET_TIMERSLACK as u64])), //
    (SYS_rt_sigaction, Any),        //
    (SYS_rt_sigprocmask, Any),      //
    (SYS_rt_sigreturn, Any),        //
    (SYS_sigaltstack, Any),         //
    (SYS_tgkill, Any),              // abort; no other process is in sight
    (SYS_membarrier, Any),          //
    (SYS_restart_syscall, Any),     //
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //
    (SYS_uname, Any),               //
    (SYS_sysinfo, Any),             //
    (SYS_getrusage, Any),           //

    // Time and chance.
    (SYS_clock_gettime, Any),       //
    (SYS_clock_getres, Any),        //
    (SYS_gettimeofday, Any),        //
    (SYS_clock_nanosleep, Any),     //
    (SYS_nanosleep, Any),           //
    (SYS_getrandom, Any),           //
];

// What the C library's header of ioctls names and the bindings do not.
const FS_IOC_FSGETXATTR: u64 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
const BLKGETSIZE64: u64 = 0x8008_1272;
const BLKSSZGET: u64 = 0x1268;
const BLKPBSZGET: u64 = 0x127b;
const BLKROTATIONAL: u64 = 0x127e;
