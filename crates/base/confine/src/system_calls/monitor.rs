//! Which system calls a monitor, which reads what QEMU says over QMP, may make: it has two sockets,
//! its threads, and memory.

use libc::*;

use super::Arguments::{self, Any, Masked, Null, OneOf, OwnProcess, Without};
use super::Table;

/// Memory that can be executed is the program's and nothing else.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// The operation in futex's second argument, without the bits for shared futexes and clocks.
const FUTEX_OPERATION: u64 = 0x7F;

/// What a monitor may do.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: EPERM };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // Its two sockets, and what it says as it fails.
    (SYS_read, Any),                // QEMU
    (SYS_recvfrom, Any),            // the same, as the standard library may read sockets
    (SYS_recvmsg, Any),             // a request, and its file
    (SYS_write, Any),               // QEMU; a panic's words on stderr, which is memory
    (SYS_sendto, Null(4)),          // QEMU, as the standard library may write sockets; to no other address
    (SYS_sendmsg, Any),             // QEMU, with a file; an answer; no name reaches another: all sockets are connected
    (SYS_shutdown, Any),            // QEMU talks nonsense
    (SYS_close, Any),               // a file that QEMU has got

    // Memory; none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), //
    (SYS_mprotect, Without(2, EXECUTABLE)), // the allocator's arenas
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, OneOf(2, &[MADV_DONTNEED as u64, MADV_FREE as u64])), //

    // Threads that are there, and the end of them.
    (SYS_futex, Masked(1, FUTEX_OPERATION, &[
        FUTEX_WAIT as u64, FUTEX_WAKE as u64, FUTEX_WAIT_BITSET as u64, FUTEX_WAKE_BITSET as u64,
    ])),                            //
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   // how many arenas the allocator has
    (SYS_getpid, Any),              // before tgkill
    (SYS_gettid, Any),              //
    (SYS_sigaltstack, Any),         // a thread's end
    (SYS_rt_sigprocmask, Any),      //
    (SYS_rt_sigaction, Any),        // abort
    (SYS_rt_sigreturn, Any),        // after a handler
    (SYS_tgkill, OwnProcess),       // abort
    (SYS_restart_syscall, Any),     // the kernel's own, after a stop
    (SYS_exit, Any),                //
    (SYS_exit_group, Any),          //

    // Time and chance.
    (SYS_clock_gettime, Any),       // where the kernel has no faster way
    (SYS_getrandom, Any),           // the seeds of tables
];
