//! The system calls of clients of other machines: the storage process, with librados and librbd,
//! and the relay of guest data; their threads, and the network.

use libc::*;

use super::Arguments::{self, Any, Null, OneOf, OwnProcess, With, Without};
use super::Table;

/// The calls that such a process may make. The C library asks for some that it can do without.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: ENOSYS };

/// Only the program's code and the libraries that are loaded already are executable.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// Flags of a file that is opened for more than reading.
const NOT_READING: u64 = (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) as u64;

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // Files of the system, to be read: the resolver's, the processor's. Landlock decides which.
    (SYS_openat, Without(2, NOT_READING)), //
    #[cfg(target_arch = "x86_64")]
    (SYS_open, Without(1, NOT_READING)), // name resolution in the C library
    (SYS_close, Any),               //
    (SYS_read, Any),                //
    (SYS_readv, Any),               //
    (SYS_pread64, Any),             //
    (SYS_write, Any),               // event descriptors, pipes, the log on stderr
    (SYS_writev, Any),              //
    (SYS_lseek, Any),               //
    (SYS_fstat, Any),               //
    (SYS_newfstatat, Any),          //
    (SYS_statx, Any),               //
    #[cfg(target_arch = "x86_64")]
    (SYS_stat, Any),                //
    (SYS_statfs, Any),              //
    (SYS_faccessat, Any),           //
    #[cfg(target_arch = "x86_64")]
    (SYS_access, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_readlink, Any),            //
    (SYS_readlinkat, Any),          //
    (SYS_getdents64, Any),          //
    (SYS_fcntl, Any),               //
    (SYS_ioctl, OneOf(1, &[FIONBIO, TCGETS])), // non-blocking sockets; whether the log is a terminal
    (SYS_pipe2, Any),               // librados wakes its threads
    #[cfg(target_arch = "x86_64")]
    (SYS_pipe, Any),                //

    // Sockets: the cluster, the supervisor and the workers.
    (SYS_socket, OneOf(0, &[AF_UNIX as u64, AF_INET as u64, AF_INET6 as u64, AF_NETLINK as u64])), // and name resolution
    (SYS_socketpair, OneOf(0, &[AF_UNIX as u64])), // of files that are opened
    (SYS_bind, Any),                // name resolution
    (SYS_connect, Any),             //
    (SYS_recvfrom, Any),            //
    (SYS_recvmsg, Any),             //
    (SYS_recvmmsg, Any),            //
    (SYS_sendto, Any),              //
    (SYS_sendmsg, Any),             //
    (SYS_sendmmsg, Any),            //
    (SYS_shutdown, Any),            //
    (SYS_getsockname, Any),         //
    (SYS_getpeername, Any),         //
    (SYS_getsockopt, Any),          //
    (SYS_setsockopt, Any),          //

    // Waiting.
    (SYS_ppoll, Any),               //
    #[cfg(target_arch = "x86_64")]
    (SYS_poll, Any),                //
    (SYS_eventfd2, Any),            //
    (SYS_epoll_create1, Any),       //
    #[cfg(target_arch = "x86_64")]
    (SYS_epoll_create, Any),        //
    (SYS_epoll_ctl, Any),           //
    (SYS_epoll_pwait, Any),         //
    #[cfg(target_arch = "x86_64")]
    (SYS_epoll_wait, Any),          //

    // Memory, none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), //
    (SYS_mprotect, Without(2, EXECUTABLE)), //
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, Any),             //
    (SYS_mlock, Any),               // the key
    (SYS_mlock2, Any),              //
    (SYS_munlock, Any),             //

    // Threads, but no processes: a filter cannot read the flags of clone3, which are in memory, so
    // it is denied, and clone is checked.
    (SYS_clone, With(0, CLONE_THREAD as u64)), //
    (SYS_set_robust_list, Any),     //
    (SYS_rseq, Any),                //
    (SYS_futex, Any),               //
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   //
    (SYS_getcpu, Any),              //
    (SYS_getpid, Any),              //
    (SYS_gettid, Any),              //
    (SYS_getuid, Any),              //
    (SYS_geteuid, Any),             //
    (SYS_getgid, Any),              //
    (SYS_getegid, Any),             //
    (SYS_prctl, OneOf(0, &[PR_SET_NAME as u64, PR_GET_NAME as u64, PR_GET_DUMPABLE as u64])), //
    (SYS_sigaltstack, Any),         //
    (SYS_rt_sigprocmask, Any),      //
    (SYS_rt_sigaction, Any),        //
    (SYS_rt_sigreturn, Any),        //
    (SYS_tgkill, OwnProcess),       //
    (SYS_restart_syscall, Any),     //
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //
    (SYS_uname, Any),               //
    (SYS_sysinfo, Any),             //
    (SYS_prlimit64, Null(2)),       // reading limits, not setting them
    (SYS_membarrier, Any),          //

    // Time and random numbers.
    (SYS_clock_gettime, Any),       //
    (SYS_clock_getres, Any),        //
    (SYS_gettimeofday, Any),        //
    (SYS_clock_nanosleep, Any),     //
    (SYS_nanosleep, Any),           //
    (SYS_getrandom, Any),           //
];
