//! The system calls of qemu-img, and of prlimit before it: those that they made for every supported
//! format in QEMU 7.2, and those that the same libraries make where available.
//!
//! All other calls fail as if they did not exist, so a library falls back as it would on an older
//! kernel.

use libc::*;

use super::Arguments::{self, Any, OneOf, With, Without};
use super::Table;

/// The calls that qemu-img may make.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: ENOSYS };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // bubblewrap executes prlimit, which executes qemu-img. Only programs in /usr can be executed,
    // and they would be under the same filter.
    (SYS_execve, Any),
    (SYS_wait4, Any),               // bubblewrap itself waits for its child
    (SYS_prlimit64, Any),           // lowering limits
    #[cfg(target_arch = "x86_64")]
    (SYS_arch_prctl, Any),          // a program's start
    (SYS_set_tid_address, Any),     //
    (SYS_set_robust_list, Any),     //
    (SYS_rseq, Any),                //

    // Files: the image, programs and libraries.
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
    (SYS_ftruncate, Any),           // an output image
    (SYS_fallocate, Any),           //
    (SYS_fsync, Any),               //
    (SYS_fdatasync, Any),           //
    (SYS_fadvise64, Any),           //
    (SYS_copy_file_range, Any),     //
    (SYS_fcntl, Any),               // locks of images, flags of sockets
    (SYS_ioctl, OneOf(1, &[
        TCGETS, FIONREAD, FIONBIO,  // whether it is a terminal
        FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, // the extents of an output image
        BLKGETSIZE64, BLKSSZGET, BLKPBSZGET, BLKROTATIONAL, // an image on a device
    ])),
    (SYS_pipe2, Any),               //
    (SYS_dup, Any),                 //

    // The only socket, to the disk that is written or read.
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

    // Memory. Libraries are mapped executable, and no memory becomes executable later.
    (SYS_mmap, Any),                //
    (SYS_mprotect, Without(2, PROT_EXEC as u64)), //
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, Any),             //
    (SYS_get_mempolicy, Any),       // libnuma, when it is loaded
    (SYS_set_mempolicy, Any),       //

    // Threads, but no processes: a filter cannot read the flags of clone3, which are in memory, so
    // it is denied, and clone is checked.
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
    (SYS_tgkill, Any),              // abort; no other process is visible
    (SYS_membarrier, Any),          //
    (SYS_restart_syscall, Any),     //
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //
    (SYS_uname, Any),               //
    (SYS_sysinfo, Any),             //
    (SYS_getrusage, Any),           //

    // Time and random numbers.
    (SYS_clock_gettime, Any),       //
    (SYS_clock_getres, Any),        //
    (SYS_gettimeofday, Any),        //
    (SYS_clock_nanosleep, Any),     //
    (SYS_nanosleep, Any),           //
    (SYS_getrandom, Any),           //
];

// Ioctls that the C header names and the Rust bindings lack.
const FS_IOC_FSGETXATTR: u64 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u64 = 0x401c_5820;
const BLKGETSIZE64: u64 = 0x8008_1272;
const BLKSSZGET: u64 = 0x1268;
const BLKPBSZGET: u64 = 0x127b;
const BLKROTATIONAL: u64 = 0x127e;
