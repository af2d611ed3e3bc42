//! The system calls of the supervisor of a VM or of a volume, once its starter starts its
//! processes.

use libc::*;

use super::Arguments::{self, Any, Null, OneOf, OwnProcess, With, Without};
use super::Table;

/// The calls that a supervisor may make.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: ENOSYS };

/// Only the program's code and mapped libraries are executable (the resolver loads some to look up
/// key servers).
const EXECUTABLE: u64 = PROT_EXEC as u64;

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // Files: volumes, the files beside them, and the run directory. Landlock decides which.
    (SYS_openat, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_open, Any),                // name resolution in the C library
    (SYS_openat2, Any),             // below a datastore, without links
    (SYS_close, Any),               //
    (SYS_read, Any),                //
    (SYS_readv, Any),               //
    (SYS_pread64, Any),             //
    (SYS_preadv, Any),              //
    (SYS_preadv2, Any),             //
    (SYS_write, Any),               //
    (SYS_writev, Any),              //
    (SYS_pwrite64, Any),            //
    (SYS_pwritev, Any),             //
    (SYS_pwritev2, Any),            //
    (SYS_lseek, Any),               //
    (SYS_fstat, Any),               //
    (SYS_newfstatat, Any),          //
    (SYS_statx, Any),               //
    #[cfg(target_arch = "x86_64")]
    (SYS_stat, Any),                //
    #[cfg(target_arch = "x86_64")]
    (SYS_lstat, Any),               //
    (SYS_statfs, Any),              // room in a datastore
    (SYS_fstatfs, Any),             //
    (SYS_faccessat, Any),           //
    (SYS_faccessat2, Any),          //
    #[cfg(target_arch = "x86_64")]
    (SYS_access, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_readlink, Any),            //
    (SYS_readlinkat, Any),          //
    (SYS_getcwd, Any),              //
    (SYS_getdents64, Any),          //
    (SYS_ftruncate, Any),           //
    (SYS_fallocate, Any),           //
    (SYS_fadvise64, Any),           //
    (SYS_fsync, Any),               //
    (SYS_fdatasync, Any),           //
    (SYS_syncfs, Any),              //
    (SYS_flock, Any),               //
    (SYS_fchmod, Any),              //
    (SYS_fchmodat, Any),            //
    #[cfg(target_arch = "x86_64")]
    (SYS_chmod, Any),               //
    (SYS_renameat, Any),            //
    (SYS_renameat2, Any),           //
    #[cfg(target_arch = "x86_64")]
    (SYS_rename, Any),              //
    (SYS_unlinkat, Any),            //
    #[cfg(target_arch = "x86_64")]
    (SYS_unlink, Any),              //
    #[cfg(target_arch = "x86_64")]
    (SYS_rmdir, Any),               //
    (SYS_mkdirat, Any),             //
    #[cfg(target_arch = "x86_64")]
    (SYS_mkdir, Any),               //
    (SYS_linkat, Any),              //
    (SYS_fgetxattr, Any),           //
    (SYS_umask, Any),               //
    (SYS_copy_file_range, Any),     //
    (SYS_fcntl, Any),               //
    (SYS_dup, Any),                 //
    (SYS_ioctl, OneOf(1, &[
        FIONBIO, TCGETS,            // non-blocking sockets; whether the log is a terminal
        FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FIEMAP, BLKGETSIZE64, BLKSSZGET, // a volume's file and its device
    ])),
    (SYS_memfd_create, Any),        //
    (SYS_pipe2, Any),               // sealed memory; keys for its own volumes
    (SYS_splice, Any),              //

    // Sockets: hostd, workers, QEMU, the key servers.
    (SYS_socket, OneOf(0, &[AF_UNIX as u64, AF_INET as u64, AF_INET6 as u64, AF_NETLINK as u64])), // and name resolution
    (SYS_socketpair, OneOf(0, &[AF_UNIX as u64])), //
    (SYS_bind, Any),                //
    (SYS_listen, Any),              //
    (SYS_accept4, Any),             //
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
    (SYS_inotify_init1, Any),       //
    (SYS_inotify_add_watch, Any),   //
    (SYS_inotify_rm_watch, Any),    //
    (SYS_pidfd_open, Any),          // whether a process has ended

    // Rings, for volumes that it reads and writes itself.
    (SYS_io_uring_setup, Any),      //
    (SYS_io_uring_enter, Any),      //
    (SYS_io_uring_register, Any),   //

    // Memory, none of it executable except libraries.
    (SYS_mmap, Any),                //
    (SYS_mprotect, Without(2, EXECUTABLE)), //
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, Any),             //
    (SYS_mlock, Any),               //
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
    (SYS_getpid, Any),              //
    (SYS_gettid, Any),              //
    (SYS_getuid, Any),              //
    (SYS_geteuid, Any),             //
    (SYS_getgid, Any),              //
    (SYS_getegid, Any),             //
    (SYS_prctl, OneOf(0, &[PR_SET_NAME as u64, PR_GET_DUMPABLE as u64])), //
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

// Ioctls that the C header names and the Rust bindings lack.
const FS_IOC_FIEMAP: u64 = 0xc020_660b;
const BLKGETSIZE64: u64 = 0x8008_1272;
const BLKSSZGET: u64 = 0x1268;
