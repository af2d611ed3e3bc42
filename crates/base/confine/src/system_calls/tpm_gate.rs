//! The system calls of a TPM's gate, which passes bytes between QEMU and swtpm: it has sockets, a
//! watch of swtpm's directory, and memory.

use libc::*;

use super::Arguments::{self, Any, Masked, Null, OneOf, OwnProcess, Without};
use super::Table;

/// The program's code is the only executable memory.
const EXECUTABLE: u64 = PROT_EXEC as u64;
/// The operation in futex's second argument, without the bits for shared futexes and clocks.
const FUTEX_OPERATION: u64 = 0x7F;

/// The calls that a gate may make.
pub(super) const TABLE: Table = Table { allowed: ALLOWED, refusal: EPERM };

#[rustfmt::skip]
const ALLOWED: &[(c_long, Arguments)] = &[
    // Its sockets and the watch, and its message when it fails.
    #[cfg(target_arch = "x86_64")]
    (SYS_poll, Any),                //
    (SYS_ppoll, Any),               //
    (SYS_accept4, Any),             // QEMU, once; each supervisor
    (SYS_read, Any),                // sockets; the watch
    (SYS_recvfrom, Any),            //
    (SYS_recvmsg, Any),             // the socket of the guest's commands
    (SYS_write, Any),               // sockets; a panic's message on stderr, which is memory
    (SYS_sendto, Null(4)),          // sockets; to no other address
    (SYS_sendmsg, Any),             // the socket in its place; no address needed: all are connected
    (SYS_close, Any),               //

    // Memory, none of it executable.
    (SYS_mmap, Without(2, EXECUTABLE)), //
    (SYS_mprotect, Without(2, EXECUTABLE)), // the allocator's arenas
    (SYS_munmap, Any),              //
    (SYS_mremap, Any),              //
    (SYS_brk, Any),                 //
    (SYS_madvise, OneOf(2, &[MADV_DONTNEED as u64, MADV_FREE as u64])), //

    // Its only thread, and its end.
    (SYS_futex, Masked(1, FUTEX_OPERATION, &[
        FUTEX_WAIT as u64, FUTEX_WAKE as u64, FUTEX_WAIT_BITSET as u64, FUTEX_WAKE_BITSET as u64,
    ])),                            //
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
];
