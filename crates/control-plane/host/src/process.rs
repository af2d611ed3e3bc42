//! Identifies processes by more than their ids, which the kernel reuses.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process of this boot: its id and its start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its id.
    pub pid: u32,
    /// Its start time, in clock ticks since the boot (field 22 of `/proc/PID/stat`,
    /// proc_pid_stat(5)).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The calling process.
    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The process that has this id now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may contain any character.
        let fields = &stat[stat.rfind(')')? + 1..];
        let mut fields = fields.split_ascii_whitespace();
        // The state is field 3; a zombie counts as ended.
        let state = fields.next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Opens a pidfd of exactly this process; `None` if it has ended.
    pub fn pidfd(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The process still has this id, so the pidfd is its own: no other process can have had the
        // id in between.
        self.is_alive().then_some(pidfd)
    }

    /// Kills the process. Does nothing if it has ended.
    ///
    /// # Errors
    /// If the caller may not kill it.
    pub fn kill(self) -> Result<(), Errno> {
        match self.pidfd().map(|pidfd| pidfd_send_signal(&pidfd, Signal::KILL)) {
            None | Some(Ok(()) | Err(Errno::SRCH)) => Ok(()),
            Some(Err(errno)) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_known_until_it_ends_and_no_other_is_taken_for_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap();
        assert!(identity.is_alive() && identity.pidfd().is_some());
        let other = ProcessIdentity { start_ticks: identity.start_ticks + 1, ..identity };
        assert!(!other.is_alive() && other.pidfd().is_none());
        other.kill().unwrap();
        assert!(identity.is_alive());
        identity.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_alive());
        identity.kill().unwrap();
    }
}
