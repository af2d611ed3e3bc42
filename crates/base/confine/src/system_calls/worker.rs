//! Which system calls a worker may make, each with its reason.

use libc::*;

use super::Arguments::{self, Any, Masked, Null, OneOf, Options, OwnProcess, With, Without};
use super::Table;

/// Memory that can be executed is the program's and nothing else.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// The operation in futex's second argument, without the bits for shared futexes and clocks.
const FUTEX_OPERATION: u64 = 0x7F;
/// In-flight areas: small pages, which nobody executes.
const MEMFD_UNUSED: u64 = !(MFD_CLOEXEC | MFD_ALLOW_SEALING) as u64;

/// io_uring_register: registered files and memory change while rings run, and files end with them.
/// No ring is made, enabled, given other credentials or fewer restrictions.
mod register {
    pub const UNREGISTER_FILES: u64 = 3;
    pub const FILES_UPDATE: u64 = 6;
    pub const BUFFERS_UPDATE: u64 = 16;
}

/// What a worker may do.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: EPERM };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // What it was handed, and what a front end sends it.
    (SYS_read, Any),                // NBD sockets, event descriptors, the socket it was born with
    (SYS_readv, Any),               // NBD: a request and its data
    (SYS_write, Any),               // event descriptors, the log on stderr
    (SYS_writev, Any),              // the log on stderr
    (SYS_recvfrom, Any),            // the standard library reads sockets so
    (SYS_recvmsg, Any),             // vhost-user messages with files
    (SYS_sendmsg, Any),             // answers with files, NBD answers; no name reaches another: all sockets are connected
    (SYS_sendto, Null(4)),          // the standard library writes sockets so; to no other address
    (SYS_accept4, Any),             // the next session or client
    (SYS_shutdown, Any),            // a session that ends
    (SYS_getsockname, Any),         // what the log says of a client
    (SYS_getpeername, Any),         //
    (SYS_getsockopt, Options(&[
        (SOL_SOCKET, SO_ACCEPTCONN), (SOL_SOCKET, SO_DOMAIN), (SOL_SOCKET, SO_TYPE), // what was handed in
        (SOL_SOCKET, SO_ERROR), (SOL_SOCKET, SO_PEERCRED), // what the log says of a client
    ])),
    (SYS_setsockopt, Options(&[
        (SOL_SOCKET, SO_KEEPALIVE), (IPPROTO_TCP, TCP_KEEPIDLE), (IPPROTO_TCP, TCP_KEEPINTVL),
        (IPPROTO_TCP, TCP_KEEPCNT), (IPPROTO_TCP, TCP_NODELAY), // NBD over TCP
        (SOL_SOCKET, SO_RCVTIMEO), (SOL_SOCKET, SO_SNDTIMEO), // peers that stall
    ])),
    (SYS_ppoll, Any),               // waiting for a socket, outside of a ring
    #[cfg(target_arch = "x86_64")]
    (SYS_poll, Any),                //
    (SYS_ioctl, OneOf(1, &[FIONBIO])), // sockets that do not block
    (SYS_fcntl, OneOf(1, &[
        F_GETFL as u64, F_SETFL as u64, F_GETFD as u64, F_SETFD as u64, // what was handed in, made non-blocking
        F_DUPFD_CLOEXEC as u64,     // a ring's own descriptor of what it watches
        F_GET_SEALS as u64, F_ADD_SEALS as u64, // an in-flight area that cannot shrink under us
    ])),
    (SYS_close, Any),               //
    (SYS_eventfd2, Any),            // wakers
    (SYS_memfd_create, Without(1, MEMFD_UNUSED)), // an in-flight area
    (SYS_ftruncate, Any),           // its size; a volume's file that grows

    // Rings, and what is asked of a volume's file beside them.
    (SYS_io_uring_enter, Any),      // all I/O; what a ring can do was restricted when it was made
    (SYS_io_uring_register, OneOf(1, &[
        register::UNREGISTER_FILES, register::FILES_UPDATE, // files come and go
        register::BUFFERS_UPDATE,   // pools take memory, and give it back
    ])),
    (SYS_pread64, Any),             // small pieces of a volume's file
    (SYS_pwrite64, Any),            //
    (SYS_lseek, Any),               // where a volume has data
    (SYS_fstat, Any),               // is it a file, how long is it
    (SYS_newfstatat, With(3, AT_EMPTY_PATH as u64)), // the same, as the C library asks it; there are no paths
    (SYS_statx, With(2, AT_EMPTY_PATH as u64)), // the same, as the standard library asks it
    (SYS_fsync, Any),               // a volume that is closed
    (SYS_fdatasync, Any),           //

    // Memory: allocator, pools, guest memory; none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), // guest memory, pools, the allocator
    (SYS_mprotect, Without(2, EXECUTABLE)), // guard pages, the allocator's arenas
    (SYS_munmap, Any),              // guest memory that a front end takes back
    (SYS_mremap, Any),              // the allocator; keeps what may be executed as it is
    (SYS_brk, Any),                 // the allocator
    (SYS_madvise, OneOf(2, &[
        MADV_DONTNEED as u64, MADV_FREE as u64, // the allocator gives back
        MADV_DONTDUMP as u64, MADV_WIPEONFORK as u64, // secrets, guest data
        MADV_HUGEPAGE as u64, MADV_NOHUGEPAGE as u64, // pools
    ])),
    (SYS_mlock, Any),               // secrets
    (SYS_mlock2, Any),              //
    (SYS_munlock, Any),             //

    // Threads that are there, and the end of them.
    (SYS_futex, Masked(1, FUTEX_OPERATION, &[
        FUTEX_WAIT as u64, FUTEX_WAKE as u64, FUTEX_WAIT_BITSET as u64, FUTEX_WAKE_BITSET as u64,
    ])),                            // locks and condition variables; none of the kernel's own kinds of locks
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   // how many processors
    (SYS_getpid, Any),              // before tgkill
    (SYS_gettid, Any),              //
    (SYS_set_robust_list, Any),     // a thread that was made a moment before begins with these three
    (SYS_rseq, Any),                //
    (SYS_prctl, OneOf(0, &[PR_SET_NAME as u64])), //
    (SYS_sigaltstack, Any),         // a thread's begin and end
    (SYS_rt_sigprocmask, Any),      //
    (SYS_rt_sigaction, Any),        // abort
    (SYS_rt_sigreturn, Any),        // after a handler
    (SYS_tgkill, OwnProcess),       // abort
    (SYS_restart_syscall, Any),     // the kernel's own, after a stop
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //

    // Time and chance.
    (SYS_clock_gettime, Any),       // where the kernel has no faster way
    (SYS_clock_getres, Any),        //
    (SYS_gettimeofday, Any),        //
    (SYS_clock_nanosleep, Any),     // retries
    (SYS_nanosleep, Any),           //
    (SYS_getrandom, Any),           // TLS
];
