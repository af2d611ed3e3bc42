//! The system calls of a monitor, which reads QEMU's QMP output: it has two sockets, its threads,
//! and memory.

use libc::*;

use super::Arguments::{self, Any, Masked, Null, OneOf, OwnProcess, Without};
use super::Table;

/// The program's code is the only executable memory.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// The operation in futex's second argument, without the bits for shared futexes and clocks.
const FUTEX_OPERATION: u64 = 0x7F;

/// The calls that a monitor may make.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: EPERM };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // Its two sockets, and its message when it fails.
    (SYS_read, Any),                // QEMU
    (SYS_recvfrom, Any),            // the same, as the standard library may read sockets
    (SYS_recvmsg, Any),             // a request, and its file
    (SYS_write, Any),               // QEMU; a panic's message on stderr, which is memory
    (SYS_sendto, Null(4)),          // QEMU, as the standard library may write sockets; to no other address
    (SYS_sendmsg, Any),             // QEMU, with a file; a response; no address needed: all sockets are connected
    (SYS_shutdown, Any),            // after an invalid message of QEMU
    (SYS_close, Any),               // a file that QEMU has received

    // Memory, none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), //
    (SYS_mprotect, Without(2, EXECUTABLE)), // the allocator's arenas
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, OneOf(2, &[MADV_DONTNEED as u64, MADV_FREE as u64])), //

    // Existing threads, and their end.
    (SYS_futex, Masked(1, FUTEX_OPERATION, &[
        FUTEX_WAIT as u64, FUTEX_WAKE as u64, FUTEX_WAIT_BITSET as u64, FUTEX_WAKE_BITSET as u64,
    ])),                            //
    (SYS_sched_yield, Any),         //
    (SYS_sched_getaffinity, Any),   // the count of the allocator's arenas
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

    // Time and random numbers.
    (SYS_clock_gettime, Any),       // if the vDSO has no clock
    (SYS_getrandom, Any),           // the seeds of hash tables
];
