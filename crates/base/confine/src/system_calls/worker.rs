//! The system calls of a worker, each with its reason.

use libc::*;

use super::Arguments::{self, Any, Masked, Null, OneOf, Options, OwnProcess, With, Without};
use super::Table;

/// The program's code is the only executable memory.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// The operation in futex's second argument, without the bits for shared futexes and clocks.
const FUTEX_OPERATION: u64 = 0x7F;
/// Flags that in-flight areas do not need: they use small pages and are not executable.
const MEMFD_UNUSED: u64 = !(MFD_CLOEXEC | MFD_ALLOW_SEALING) as u64;

/// io_uring_register: registered files and memory change while rings run, and files are
/// unregistered at their end. No ring is made, enabled, given other credentials or fewer
/// restrictions.
mod register {
    pub const UNREGISTER_FILES: u64 = 3;
    pub const FILES_UPDATE: u64 = 6;
    pub const BUFFERS_UPDATE: u64 = 16;
}

/// The calls that a worker may make.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: EPERM };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // The descriptors that it was given, and the messages of a front end.
    (SYS_read, Any),                // NBD sockets, event descriptors, the socket from its start
    (SYS_readv, Any),               // NBD: a request and its data
    (SYS_write, Any),               // event descriptors, the log on stderr
    (SYS_writev, Any),              // the log on stderr
    (SYS_recvfrom, Any),            // how the standard library reads sockets
    (SYS_recvmsg, Any),             // vhost-user messages with files
    (SYS_sendmsg, Any),             // responses with files, NBD replies; no address needed: all sockets are connected
    (SYS_sendto, Null(4)),          // how the standard library writes sockets; to no other address
    (SYS_accept4, Any),             // the next session or client
    (SYS_shutdown, Any),            // a session that ends
    (SYS_getsockname, Any),         // a client's address, for the log
    (SYS_getpeername, Any),         //
    (SYS_getsockopt, Options(&[
        (SOL_SOCKET, SO_ACCEPTCONN), (SOL_SOCKET, SO_DOMAIN), (SOL_SOCKET, SO_TYPE), // inherited sockets
        (SOL_SOCKET, SO_ERROR), (SOL_SOCKET, SO_PEERCRED), // a client's address, for the log
    ])),
    (SYS_setsockopt, Options(&[
        (SOL_SOCKET, SO_KEEPALIVE), (IPPROTO_TCP, TCP_KEEPIDLE), (IPPROTO_TCP, TCP_KEEPINTVL),
        (IPPROTO_TCP, TCP_KEEPCNT), (IPPROTO_TCP, TCP_NODELAY), // NBD over TCP
        (SOL_SOCKET, SO_RCVTIMEO), (SOL_SOCKET, SO_SNDTIMEO), // peers that stall
    ])),
    (SYS_ppoll, Any),               // waiting for a socket, outside of a ring
    #[cfg(target_arch = "x86_64")]
    (SYS_poll, Any),                //
    (SYS_ioctl, OneOf(1, &[FIONBIO])), // non-blocking sockets
    (SYS_fcntl, OneOf(1, &[
        F_GETFL as u64, F_SETFL as u64, F_GETFD as u64, F_SETFD as u64, // inherited sockets, made non-blocking
        F_DUPFD_CLOEXEC as u64,     // a ring's own descriptor of a watched file
        F_GET_SEALS as u64, F_ADD_SEALS as u64, // an in-flight area that cannot shrink under us
    ])),
    (SYS_close, Any),               //
    (SYS_eventfd2, Any),            // wakers
    (SYS_memfd_create, Without(1, MEMFD_UNUSED)), // an in-flight area
    (SYS_ftruncate, Any),           // its size; a volume's file that grows

    // Rings, and other calls on a volume's file.
    (SYS_io_uring_enter, Any),      // all I/O; the operations of a ring were restricted when it was made
    (SYS_io_uring_register, OneOf(1, &[
        register::UNREGISTER_FILES, register::FILES_UPDATE, // files come and go
        register::BUFFERS_UPDATE,   // pools take memory and free it
    ])),
    (SYS_pread64, Any),             // small pieces of a volume's file
    (SYS_pwrite64, Any),            //
    (SYS_lseek, Any),               // where a volume has data
    (SYS_fstat, Any),               // whether it is a file, and its length
    (SYS_newfstatat, With(3, AT_EMPTY_PATH as u64)), // the same, as the C library calls it; no paths
    (SYS_statx, With(2, AT_EMPTY_PATH as u64)), // the same, as the standard library calls it
    (SYS_fsync, Any),               // closing a volume
    (SYS_fdatasync, Any),           //

    // Memory: allocator, pools and guest memory, none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), // guest memory, pools, the allocator
    (SYS_mprotect, Without(2, EXECUTABLE)), // guard pages, the allocator's arenas
    (SYS_munmap, Any),              // guest memory that a front end takes back
    (SYS_mremap, Any),              // the allocator; protection stays as it is
    (SYS_brk, Any),                 // the allocator
    (SYS_madvise, OneOf(2, &[
        MADV_DONTNEED as u64, MADV_FREE as u64, // the allocator frees memory
        MADV_DONTDUMP as u64, MADV_WIPEONFORK as u64, // secrets, guest data
        MADV_HUGEPAGE as u64, MADV_NOHUGEPAGE as u64, // pools
    ])),
    (SYS_mlock, Any),               // secrets
    (SYS_mlock2, Any),              //
    (SYS_munlock, Any),             //

    // Existing threads, and their end.
    (SYS_futex, Masked(1, FUTEX_OPERATION, &[
        FUTEX_WAIT as u64, FUTEX_WAKE as u64, FUTEX_WAIT_BITSET as u64, FUTEX_WAKE_BITSET as u64,
    ])),                            // locks and condition variables, but not priority-inheriting locks
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   // the count of processors
    (SYS_getpid, Any),              // before tgkill
    (SYS_gettid, Any),              //
    (SYS_set_robust_list, Any),     // a new thread begins with these three
    (SYS_rseq, Any),                //
    (SYS_prctl, OneOf(0, &[PR_SET_NAME as u64])), //
    (SYS_sigaltstack, Any),         // a thread's start and end
    (SYS_rt_sigprocmask, Any),      //
    (SYS_rt_sigaction, Any),        // abort
    (SYS_rt_sigreturn, Any),        // after a handler
    (SYS_tgkill, OwnProcess),       // abort
    (SYS_restart_syscall, Any),     // the kernel's own, after a stop
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //

    // Time and random numbers.
    (SYS_clock_gettime, Any),       // if the vDSO has no clock
    (SYS_clock_getres, Any),        //
    (SYS_gettimeofday, Any),        //
    (SYS_clock_nanosleep, Any),     // retries
    (SYS_nanosleep, Any),           //
    (SYS_getrandom, Any),           // TLS
];
