//! Processes by more than their number, which is used again.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process of this boot: its number, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its number.
    pub pid: u32,
    /// When it began, in clock ticks since the boot (field 22 of `/proc/PID/stat`,
    /// proc_pid_stat(5)).
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// This very process.
    pub fn own() -> Option<Self> {
        Self::of(std::process::id())
    }

    /// The one that has this number now.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything.
        let fields = &stat[stat.rfind(')')? + 1..];
        let mut fields = fields.split_ascii_whitespace();
        // The state is field 3; a zombie has ended.
        let state = fields.next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// A descriptor of this very process; nothing if it has ended.
    pub fn pidfd(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(self.pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number was this process's when it was looked up if it is now: nobody else had it in
        // between.
        self.is_alive().then_some(pidfd)
    }

    /// Kills it. Nothing happens if it has ended.
    ///
    /// # Errors
    /// If it may not be killed.
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
