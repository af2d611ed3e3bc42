//! The processes of `strongroom serve`: each is started again when it ends, and all of them end
//! with this one.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::error::ProcessesError;
use crate::signals::Signals;

/// From a process's start to its first line: a key server may have a TPM to ask and a log to read.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a predecessor that was killed may take to be gone, and how often it is looked.
const PREDECESSOR_GONE_WITHIN: Duration = Duration::from_secs(3);
const TRY_AGAIN_AFTER: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// From being asked to end to the end.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// How often it is looked whether a process that was asked to end has.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Between a process's end and its next start: the shortest and the longest time. It doubles while
/// the process does not last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A process that lived so long is started at once.
const LASTED: Duration = Duration::from_secs(30);

/// The most ends that are kept for a control plane that is down itself.
const NEWS_MAX: usize = 100;

/// The longest first line.
const FIRST_LINE_BYTES_MAX: u64 = 64 * 1024;

/// A process to be.
#[derive(Clone, Debug)]
pub struct Role {
    /// What it is called in the log.
    pub name: &'static str,
    /// Its program.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// Whether it hears on stdin, line by line, of the others that ended.
    pub hears: bool,
    /// Whether it may ask for a passphrase, which only the terminal's foreground may. Control-C
    /// there reaches the others through this process alone, which ends them in order.
    pub asks: bool,
}

/// A role that is filled.
#[derive(Debug)]
pub struct RunningRole {
    role: Role,
    process: Option<Process>,
    pause: Duration,
    next_start: Instant,
}

#[derive(Debug)]
struct Process {
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
}

impl RunningRole {
    /// Starts it, and waits for its first line, which says that it is ready. What ends before is
    /// tried again for some seconds: the kernel may not be done with a predecessor that was killed.
    ///
    /// # Errors
    /// Of its last attempt; [`ProcessesError::Interrupted`] if a signal came meanwhile.
    pub fn start(role: Role, signals: &Signals) -> Result<Self, ProcessesError> {
        let until = Instant::now() + PREDECESSOR_GONE_WITHIN;
        loop {
            match Self::try_start(role.clone(), signals) {
                Err(_) if Instant::now() < until && !signals.came() => {
                    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&TRY_AGAIN_AFTER));
                }
                started => return started,
            }
        }
    }

    fn try_start(role: Role, signals: &Signals) -> Result<Self, ProcessesError> {
        let (process, said) = Process::start(&role)?;
        let mut running = Self { role, process: Some(process), pause: PAUSE.0, next_start: Instant::now() };
        let until = Instant::now() + READY_WITHIN;
        loop {
            match said.recv_timeout(Duration::from_millis(50)) {
                Ok(line) if !line.trim().is_empty() => return Ok(running),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                    running.end();
                    return Err(ProcessesError::EndedEarly { name: running.role.name });
                }
                Err(RecvTimeoutError::Timeout) if signals.came() => {
                    running.end();
                    return Err(ProcessesError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > until => {
                    running.end();
                    return Err(ProcessesError::NotReady { name: running.role.name });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Its process, if there is one now.
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }

    /// Readable when its process has ended.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(|process| process.pidfd.as_fd())
    }

    /// Starts it again if it has ended and its pause is over. Says what has ended, and how.
    fn see_to(&mut self) -> Option<String> {
        let mut ended = None;
        if let Some(process) = &mut self.process
            && let Ok(Some(status)) = process.child.try_wait()
        {
            let lasted = process.started.elapsed() > LASTED;
            self.pause = if lasted { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            self.next_start = Instant::now() + self.pause;
            self.process = None;
            let name = self.role.name;
            tracing::error!("{name} ended ({status}); it is started again in {:?}", self.pause);
            ended = Some(format!("process {name} ended ({status}), and is started again"));
        }
        if self.process.is_none() && Instant::now() >= self.next_start {
            match Process::start(&self.role) {
                Ok((process, _)) => self.process = Some(process),
                Err(error) => {
                    tracing::error!("{} is not started: {error}", self.role.name);
                    self.next_start = Instant::now() + PAUSE.1;
                }
            }
        }
        ended
    }

    /// Writes to it what has ended, in order. What cannot be written now stays.
    fn hear(&mut self, news: &mut Vec<String>) {
        let Some(stdin) = self.process.as_mut().and_then(|process| process.child.stdin.as_mut()) else {
            return;
        };
        while let Some(line) = news.first() {
            // One that has ended hears it when it is started again.
            if writeln!(stdin, "{line}").is_err() {
                return;
            }
            news.remove(0);
        }
    }

    /// Ends its process in order, or else by force.
    pub fn end(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // One that has ended already takes no signal.
        let _ = kill_process(Pid::from_child(&process.child), Signal::TERM);
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until {
            if matches!(process.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            let _ = poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], Some(&LOOK_EVERY));
        }
        tracing::error!("{} does not end; it is killed", self.role.name);
        let _ = process.child.kill();
        let _ = process.child.wait();
    }
}

impl Drop for RunningRole {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    /// Starts it. Its first line, or nothing if there is none, comes out of the channel.
    fn start(role: &Role) -> Result<(Self, Receiver<String>), ProcessesError> {
        let failed = |error| ProcessesError::File { action: "start", path: role.program.clone(), error };
        let mut command = Command::new(&role.program);
        let stdin = if role.hears { Stdio::piped() } else { Stdio::null() };
        command.args(&role.arguments).stdin(stdin).stdout(Stdio::piped());
        if !role.asks {
            command.process_group(0);
        }
        let mut child = command.spawn().map_err(failed)?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let (Ok(pidfd), Some(stdout)) = (pidfd, child.stdout.take()) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(failed(std::io::Error::other("the process cannot be watched")));
        };
        let (say, said) = channel();
        std::thread::Builder::new()
            .name(format!("{}-stdout", role.name))
            .spawn(move || {
                let mut line = String::new();
                let mut stdout = BufReader::new(stdout);
                let read = stdout.by_ref().take(FIRST_LINE_BYTES_MAX).read_line(&mut line);
                // A receiver that has gone away does not want it.
                let _ = say.send(if read.is_ok() { line } else { String::new() });
                // The rest is for people who start it by hand; the process must not wait for its
                // readers.
                let _ = std::io::copy(&mut stdout, &mut std::io::sink());
            })
            .map_err(failed)?;
        Ok((Self { child, pidfd, started: Instant::now() }, said))
    }
}

/// Keeps all of them running until a signal comes.
///
/// # Errors
/// [`ProcessesError::Signals`] if nothing can be awaited.
pub fn keep(roles: &mut [RunningRole], signals: &Signals) -> Result<(), ProcessesError> {
    let mut news = Vec::new();
    while !signals.came() {
        let mut watched = vec![PollFd::new(signals, PollFlags::IN)];
        watched.extend(
            roles
                .iter()
                .filter_map(RunningRole::ended)
                .map(|ended| PollFd::from_borrowed_fd(ended, PollFlags::IN)),
        );
        let down = roles.iter().filter(|role| role.process.is_none()).map(|role| role.next_start).min();
        let wait = down.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(ProcessesError::Signals(errno.into())),
        }
        if !signals.came() {
            news.extend(roles.iter_mut().filter_map(RunningRole::see_to));
            news.drain(..news.len().saturating_sub(NEWS_MAX));
            if let Some(hearer) = roles.iter_mut().find(|role| role.role.hears) {
                hearer.hear(&mut news);
            }
        }
    }
    Ok(())
}
