//! The programs that tests start.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::scratch::Scratch;
use crate::transcript::Transcript;

/// How long a killed process may take to be gone. The kernel first finishes its I/O in flight.
const KILLED_PROCESS_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// The interval between checks whether it is time to kill a program.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// A started program. It is killed and reaped on drop, and the kernel kills it when the thread that
/// started it ends for any reason. So even a killed test run leaves no process behind.
///
/// Start it on the test's own thread: a thread that ends sooner takes the process along
/// (`PR_SET_PDEATHSIG`).
pub struct Process {
    name: String,
    child: Child,
    /// Refers to exactly this process even after it has ended, unlike a pid.
    pidfd: OwnedFd,
    stdout: Transcript,
    stderr_log: PathBuf,
}

impl Process {
    /// Starts `command`. Its stderr goes to `name.stderr` in the scratch directory; its stdout is
    /// read by the test, and kept in `name.stdout`; its stdin is empty.
    #[track_caller]
    pub fn start(scratch: &Scratch, name: &str, command: &Command) -> Self {
        let stderr_log = unused_path(scratch, name, "stderr");
        let mut child = ending_with_its_parent(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(create(&stderr_log))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        let stdout = child.stdout.take().expect("stdout is piped");
        let stdout = Transcript::of(stdout, &stderr_log.with_extension("stdout"));
        let pidfd = pidfd_of(&child);
        Self { name: name.to_owned(), child, pidfd, stdout, stderr_log }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child of this process with these words in its command line.
    #[track_caller]
    pub fn child(&self, words: &[&str]) -> Pid {
        let path = format!("/proc/{0}/task/{0}/children", self.id());
        let listed = fs::read_to_string(path).unwrap_or_default();
        let mut pids = listed.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let is_meant = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            words.iter().all(|word| line.contains(word))
        };
        let found = pids.find(is_meant).and_then(Pid::from_raw);
        found.unwrap_or_else(|| panic!("{} has started nothing with {words:?}", self.name))
    }

    /// The file with the process's stderr.
    pub fn stderr_log(&self) -> &Path {
        &self.stderr_log
    }

    /// Waits for a line on stdout that `accept` accepts.
    #[track_caller]
    pub fn wait_for_line(
        &mut self,
        awaited: &str,
        deadline: Duration,
        accept: impl Fn(&str) -> bool,
    ) -> String {
        let awaited =
            format!("{} said {awaited} (its stderr is in {})", self.name, self.stderr_log.display());
        self.stdout.wait_for_line(&awaited, deadline, accept)
    }

    /// Waits for the process to end by itself.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        wait_for_end(&mut self.child, &self.pidfd, deadline).unwrap_or_else(|| {
            panic!(
                "{} has not ended within {deadline:?}; its stderr is in {}",
                self.name,
                self.stderr_log.display()
            )
        })
    }

    /// Asks the process to end (SIGTERM), and waits until it has.
    #[track_caller]
    pub fn terminate(mut self, deadline: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(deadline)
    }

    /// Kills the process (SIGKILL), so that it can do nothing more. Returns when it is gone.
    #[track_caller]
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait(KILLED_PROCESS_ENDS_WITHIN);
    }

    /// Sends a signal. A process that has already ended is not an error.
    pub fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("cannot send {signal:?} to {}: {error}", self.name),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&mut self.child, &self.pidfd);
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Finished {
    /// Fails the test unless the program succeeded; returns its stdout.
    #[track_caller]
    pub fn success(self) -> String {
        assert!(self.status.success(), "{}: {}{}", self.status, self.stdout, self.stderr);
        self.stdout
    }

    /// Fails the test unless the program failed by its own decision and with a message. Returns its
    /// stderr.
    #[track_caller]
    pub fn failure(self) -> String {
        let decided = self.status.code().is_some_and(|code| code != 0 && code != RUST_PANIC_STATUS);
        assert!(decided, "should have been refused, but: {}: {}{}", self.status, self.stdout, self.stderr);
        assert!(!self.stderr.trim().is_empty(), "refused without a word: {}", self.status);
        self.stderr
    }
}

/// The exit status of a Rust program that panicked, which is never a decision of the program.
const RUST_PANIC_STATUS: i32 = 101;

/// Runs `command` to its end, within the timeout.
#[track_caller]
pub fn run(scratch: &Scratch, command: &Command, deadline: Duration) -> Finished {
    let until = Instant::now() + deadline;
    run_until(scratch, command, || Instant::now() >= until).unwrap_or_else(|stderr_log| {
        panic!("{command:?} has not ended within {deadline:?}; its stderr: {}", text_of(&stderr_log))
    })
}

/// Runs `command` to its end, or kills it (SIGKILL) when `is_time` returns true. Returns its stderr
/// file then. It is gone when this returns.
#[track_caller]
pub fn run_until(
    scratch: &Scratch,
    command: &Command,
    mut is_time: impl FnMut() -> bool,
) -> Result<Finished, PathBuf> {
    let program =
        Path::new(command.get_program()).file_name().map(|name| name.to_string_lossy().into_owned());
    let stdout_log = unused_path(scratch, &program.unwrap_or_default(), "stdout");
    let stderr_log = stdout_log.with_extension("stderr");
    let mut child = ending_with_its_parent(command)
        .stdin(Stdio::null())
        .stdout(create(&stdout_log))
        .stderr(create(&stderr_log))
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let pidfd = pidfd_of(&child);
    loop {
        if let Some(status) = wait_for_end(&mut child, &pidfd, LOOK_INTERVAL) {
            return Ok(Finished { status, stdout: text_of(&stdout_log), stderr: text_of(&stderr_log) });
        }
        if is_time() {
            end(&mut child, &pidfd);
            return Err(stderr_log);
        }
    }
}

/// Wraps the command in `setpriv`, which sets the parent-death signal and then executes the
/// program. A `pre_exec` hook could do the same, but is unsafe.
fn ending_with_its_parent(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(key, value),
            None => wrapped.env_remove(key),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        wrapped.current_dir(directory);
    }
    wrapped
}

pub(crate) fn pidfd_of(child: &Child) -> OwnedFd {
    let pid = Pid::from_child(child);
    // The child is not reaped yet, so its pid cannot belong to another process.
    pidfd_open(pid, PidfdFlags::empty()).unwrap_or_else(|error| panic!("pidfd_open({pid:?}): {error}"))
}

/// Waits for the end of `child`, and reaps it. `None` after the timeout.
pub(crate) fn wait_for_end(child: &mut Child, pidfd: &OwnedFd, deadline: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + deadline;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return None,
            Ok(_) => return Some(child.wait().expect("the process has ended and is our child")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
    }
}

/// Kills and reaps. On drop, a second panic would hide the first, so this only reports.
fn end(child: &mut Child, pidfd: &OwnedFd) {
    // This fails only if the process has already been reaped.
    let _ = child.kill();
    if wait_for_end(child, pidfd, KILLED_PROCESS_ENDS_WITHIN).is_none() {
        eprintln!("process {} does not end although it was killed", child.id());
    }
}

/// A file name that no earlier process of this test has: a restarted server gets logs of its own.
fn unused_path(scratch: &Scratch, name: &str, extension: &str) -> PathBuf {
    (1..)
        .map(|count| scratch.path(&format!("{name}-{count}.{extension}")))
        .find(|path| !path.exists())
        .expect("numbers do not run out")
}

fn create(path: &Path) -> File {
    File::create(path).unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()))
}

fn text_of(path: &Path) -> String {
    let bytes: io::Result<Vec<u8>> = fs::read(path);
    String::from_utf8_lossy(&bytes.unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display())))
        .into()
}
