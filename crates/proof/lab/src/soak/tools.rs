//! Running programs to their end, and inspecting processes.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::error::SoakError;

/// The time for a command of the program on a busy machine; checking a volume reads its tags.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
/// The polling period for conditions that come soon.
pub const LOOK_PERIOD: Duration = Duration::from_millis(5);
/// The most bytes of a log in a message.
const SAID_BYTES_MAX: usize = 2000;

/// Runs a command to its end; returns its output, which must fit a pipe.
pub fn run(command: &mut Command) -> Result<String, SoakError> {
    let line = line_of(command);
    let program = |error| SoakError::Program { program: line.clone(), error };
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(program)?;
    let until = Instant::now() + COMMAND_TIMEOUT;
    while child.try_wait().map_err(program)?.is_none() {
        if Instant::now() > until {
            // It may have ended by now.
            let _ = child.kill();
            let _ = child.wait();
            return Err(SoakError::Late {
                volume: String::new(),
                what: format!("the end of '{line}'"),
                within: COMMAND_TIMEOUT,
            });
        }
        thread::sleep(LOOK_PERIOD);
    }
    let output = child.wait_with_output().map_err(program)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(SoakError::Command { command: line, status: output.status, said });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The words of a command.
pub fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Sends a signal to a worker of `supervisor`; returns whether it was there. Its id alone might
/// belong to another process by now.
pub fn signal_worker(supervisor: u32, worker: u32, signal: Signal) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(worker.cast_signed()) else { return Ok(false) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(false) };
    if workers_of(supervisor).contains(&worker) {
        pidfd_send_signal(&pidfd, signal)?;
        return Ok(true);
    }
    Ok(false)
}

/// The workers of a supervisor, which another process starts for it.
pub fn workers_of(supervisor: u32) -> Vec<u32> {
    children_of(supervisor).into_iter().flat_map(children_of).collect()
}

/// The children of a process that have not been reaped.
fn children_of(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A process's start time in ticks since boot, which together with its id identifies it. `None` if
/// it is gone or a zombie.
pub fn birth_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

/// The end of a log.
pub fn end_of(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let start = text.len().saturating_sub(SAID_BYTES_MAX);
    String::from_utf8_lossy(&text[start..]).trim().to_owned()
}
