//! The supervisor's side: a process that has become the launched program.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::message::{Become, Plan, Report, receive, send};
use super::{Files, Isolation, LaunchError, Measure, Shortfall};
use crate::packet;

/// Timeout from fork to exec, which takes milliseconds, and longer where many start at once.
const LAUNCHES_WITHIN: Duration = Duration::from_secs(30);
/// Timeout from SIGKILL to the end of the process.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// How much of a program's standard error is kept, from its beginning.
const STDERR_BYTES: usize = 64 << 10;

/// Identifies a process for a supervisor that did not start it. Nothing in it is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its process id.
    pub pid: u32,
    /// Its start time, in clock ticks since the boot. A later process with the same id has a later
    /// start time.
    pub start_time_ticks: u64,
    /// Its user.
    pub uid: u32,
}

/// A process that runs a program. Dropping this value does not affect the process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    pidfd: OwnedFd,
    /// The child to reap; `None` if it was adopted.
    child: Option<Child>,
    /// Kills it, if this process may not.
    killer: Option<Arc<dyn Kills>>,
    stderr: Option<File>,
    shortfalls: Vec<Shortfall>,
}

/// Kills processes for a caller without the permission.
pub trait Kills: fmt::Debug + Send + Sync {
    /// Kills the process with this id, which the implementor started or found.
    fn kill(&self, pid: u32);
}

/// The descriptors of a process that was started or found on behalf of another process.
#[derive(Debug)]
pub struct ProcessFiles {
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// Its standard error, if known.
    pub stderr: Option<OwnedFd>,
}

/// Starts a process that becomes the program of `plan`.
pub(crate) fn launch(isolation: &Isolation<'_>, plan: &Plan, files: &Files) -> Result<Process, LaunchError> {
    let program = || plan.becomes.to_string();
    let spawn = |error| LaunchError::Spawn { program: program(), error };
    let step = |step: &'static str| {
        move |reason: Errno| LaunchError::Step {
            program: program(),
            step: step.to_owned(),
            reason: reason.to_string(),
        }
    };
    let stderr = bounded_file().map_err(|errno| spawn(errno.into()))?;
    let (ours, theirs) = packet::pair().map_err(|errno| spawn(errno.into()))?;
    let mut command = Command::new(&isolation.launcher.program);
    command.args(&isolation.launcher.arguments).env_clear().process_group(0);
    command.stdin(theirs).stdout(Stdio::null()).stderr(stderr.try_clone().map_err(spawn)?);
    let child = command.spawn().map_err(spawn)?;
    // The child holds the other end.
    drop(command);
    let pid = Pid::from_child(&child);
    let mut child = KilledOnDrop(Some(child));
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| spawn(errno.into()))?;
    let mut process =
        Process { pid, pidfd, child: None, killer: None, stderr: Some(stderr), shortfalls: Vec::new() };
    if let Some(shortfall) = enter_cgroup(isolation.cgroup, pid) {
        if isolation.must.contains(&shortfall.measure) {
            return Err(LaunchError::Lacks { program: program(), shortfall });
        }
        process.shortfalls.push(shortfall);
    }
    let lease = isolation.lease.into_iter();
    let sent: Vec<BorrowedFd<'_>> = files.as_slice().iter().map(AsFd::as_fd).chain(lease).collect();
    send(&ours, &Plan { files: sent.len(), ..plan.clone() }, &sent)
        .map_err(step("tell it what to become"))?;
    let deadline = Instant::now() + LAUNCHES_WITHIN;
    let mut confined = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !readable(ours.as_fd(), left).map_err(step("wait for it"))? {
            return Err(LaunchError::Silent { program: program(), within: LAUNCHES_WITHIN });
        }
        match receive(&ours).map_err(step("hear from it"))? {
            Some((Report::Confined { shortfalls }, _)) => {
                confined = true;
                process.shortfalls.extend(shortfalls);
                match plan.becomes {
                    Become::Program(_) => {}
                    Become::FrameFilter | Become::Monitor | Become::AgentMonitor | Become::TpmGate => break,
                }
            }
            Some((Report::Lacks { shortfall }, _)) => {
                return Err(LaunchError::Lacks { program: program(), shortfall });
            }
            Some((Report::Failed { step, reason }, _)) => {
                return Err(LaunchError::Step { program: program(), step, reason });
            }
            // The socket closes at exec.
            None if confined => break,
            None => return Err(LaunchError::Ended { program: program(), said: process.said() }),
        }
    }
    for shortfall in &process.shortfalls {
        // Without root this cannot be helped: no process has a user of its own.
        match shortfall.measure == Measure::OwnUser && !rustix::process::geteuid().is_root() {
            true => tracing::info!("{} runs without {shortfall}", plan.becomes),
            false => tracing::warn!("{} runs without {shortfall}", plan.becomes),
        }
    }
    process.child = child.0.take();
    Ok(process)
}

struct KilledOnDrop(Option<Child>);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Process {
    /// Adopts a process that another supervisor launched; `None` if it has ended.
    pub fn adopt(identity: ProcessIdentity) -> io::Result<Option<Self>> {
        let Some(pid) = i32::try_from(identity.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        // The pidfd is opened first: from here on, a reuse of the id is noticed.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(None) };
        // Its standard error is in a memory file, which this process may or may not be able to
        // open.
        let stderr = File::open(format!("/proc/{}/fd/2", pid.as_raw_nonzero())).ok();
        let process = Self { pid, pidfd, child: None, killer: None, stderr, shortfalls: Vec::new() };
        match start_time_ticks(pid) {
            Ok(ticks) if ticks == identity.start_time_ticks && !process.has_ended() => Ok(Some(process)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Wraps a process that another Strongroom process started or found on behalf of this one.
    pub fn elsewhere(
        identity: ProcessIdentity,
        files: ProcessFiles,
        shortfalls: Vec<Shortfall>,
        killer: Arc<dyn Kills>,
    ) -> io::Result<Self> {
        let pid = i32::try_from(identity.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
        let ProcessFiles { pidfd, stderr } = files;
        let stderr = stderr.map(File::from);
        Ok(Self { pid, pidfd, child: None, killer: Some(killer), stderr, shortfalls })
    }

    /// Duplicates the descriptors that another process needs.
    pub fn files(&self) -> io::Result<ProcessFiles> {
        let stderr = self.stderr.as_ref().map(|stderr| stderr.try_clone().map(OwnedFd::from)).transpose()?;
        Ok(ProcessFiles { pidfd: self.pidfd.try_clone()?, stderr })
    }

    /// Returns the identity to record, so that another supervisor can adopt it. `isolation` is the
    /// one that it was launched with.
    pub fn identity(&self, isolation: &Isolation<'_>) -> io::Result<ProcessIdentity> {
        let us = geteuid();
        let uid = isolation.user.filter(|_| us.is_root()).map_or(us.as_raw(), |(uid, _)| uid);
        Ok(ProcessIdentity { pid: self.pid(), start_time_ticks: start_time_ticks(self.pid)?, uid })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Its pidfd, which is readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub fn shortfalls(&self) -> &[Shortfall] {
        &self.shortfalls
    }

    /// Waits for its end. Returns whether it has ended.
    pub fn wait(&self, within: Duration) -> bool {
        readable(self.pidfd.as_fd(), within).unwrap_or(false)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Its exit status, if it is a child and has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok().flatten()
    }

    /// Sends SIGKILL without waiting.
    pub fn send_kill(&self) {
        match &self.killer {
            Some(killer) => killer.kill(self.pid()),
            None => drop(pidfd_send_signal(&self.pidfd, Signal::KILL)),
        }
    }

    /// Kills it and waits. Returns whether it has ended.
    pub fn kill(&mut self) -> bool {
        self.send_kill();
        let ended = self.wait(ENDS_WITHIN);
        let _ = self.status();
        ended
    }

    /// The beginning of its standard error.
    pub fn said(&self) -> String {
        let mut bytes = vec![0; STDERR_BYTES];
        // By offset, since the file position is where the program writes next.
        let count = self.stderr.as_ref().map_or(Ok(0), |file| file.read_at(&mut bytes, 0)).unwrap_or(0);
        let end = bytes[..count].iter().position(|byte| *byte == 0).unwrap_or(count);
        String::from_utf8_lossy(&bytes[..end]).trim_end().to_owned()
    }
}

/// The start time of a process (proc(5), `/proc/pid/stat`, field 22).
fn start_time_ticks(pid: Pid) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    // The second field, a name in brackets, may contain any character.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(19).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A memory file of limited size. A program's output in it cannot fill a disk, does not block
/// without a reader, and outlives this process.
fn bounded_file() -> Result<File, Errno> {
    let file = memfd_create("stderr", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, STDERR_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Moves a process into the VM's cgroup, which is never swapped out. Returns the shortfall if that
/// is not possible.
fn enter_cgroup(cgroup: Option<&Path>, pid: Pid) -> Option<Shortfall> {
    let lacks = |reason| Some(Shortfall { measure: Measure::NoSwap, reason });
    let entered = cgroup.map(|cgroup| {
        std::fs::write(cgroup.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
            .map_err(|error| format!("it cannot enter {}: {error}", cgroup.display()))
            .map(|()| is_without_swap(cgroup))
    });
    match entered {
        Some(Ok(true)) => None,
        Some(Err(reason)) => lacks(reason),
        // Without swap on the host, no protection is needed.
        _ if !host_swaps() => None,
        Some(Ok(false)) => lacks("its cgroup has no limit of swap, and this host swaps".to_owned()),
        None => lacks("it has no cgroup, and this host swaps".to_owned()),
    }
}

/// Whether a cgroup (version 2) or one of its ancestors forbids swap.
fn is_without_swap(cgroup: &Path) -> bool {
    cgroup.ancestors().any(|cgroup| {
        std::fs::read_to_string(cgroup.join("memory.swap.max")).is_ok_and(|most| most.trim() == "0")
    })
}

/// Whether the host has a swap device at present. Unreadable counts as yes.
fn host_swaps() -> bool {
    std::fs::read_to_string("/proc/swaps").map_or(true, |swaps| swaps.lines().nth(1).is_some())
}

/// Waits until a descriptor is readable; `false` after a timeout.
pub(crate) fn readable(descriptor: BorrowedFd<'_>, within: Duration) -> Result<bool, Errno> {
    let deadline = Instant::now() + within;
    loop {
        // Rounded up to a millisecond, so that poll does not return before the deadline.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
