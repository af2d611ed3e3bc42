//! What the saving, loading and dumping of a guest's memory have in common.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use strongroom_host::protocol::Problem;
use strongroom_hypervisor::QmpError;

/// The pipe's buffer, in bytes. A large one saves switches between the two processes.
const PIPE_BYTES: usize = 1 << 20;

/// Makes a pipe between QEMU and this process: the end to read from, and the one to write to.
///
/// # Errors
/// If the process has no descriptors left.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Problem> {
    let (reads, writes) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|errno| system_problem("make a pipe")(errno.into()))?;
    // Without the larger buffer the transfer is slower, but correct.
    let _ = fcntl_setpipe_size(&reads, PIPE_BYTES);
    Ok((reads, writes))
}

/// The problem of an action that the system has refused.
pub fn system_problem(action: &str) -> impl FnOnce(io::Error) -> Problem {
    move |error| Problem::new("system", format!("cannot {action}: {error}"))
}

/// The problem of a request to QEMU.
pub fn qmp_problem(error: QmpError) -> Problem {
    Problem::new("qemu", error.to_string())
}

/// The client's socket that came with a request.
///
/// # Errors
/// If none came.
pub fn only_socket(files: Vec<OwnedFd>) -> Result<OwnedFd, Problem> {
    files.into_iter().next().ok_or_else(|| Problem::new("no_file", "no socket came"))
}
