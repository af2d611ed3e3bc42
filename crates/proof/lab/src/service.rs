//! A running server: it is started, connected to, measured and ended, and never outlives its
//! starter.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::processes::{self, Memory, ProcessId};
use crate::programs::ProgramError;

/// The time for a server to start, including recovery.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two attempts to connect.
const CONNECT_PERIOD: Duration = Duration::from_micros(500);
/// The time for a server to end on request, including destaging.
const END_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for a killed process to disappear, which waits for its requests to the disk.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a server's output in a message.
const SAID_BYTES_MAX: usize = 2000;

/// A running server.
pub struct Service {
    name: String,
    child: Child,
    /// Other processes of the server, so that they can be ended when the first is gone.
    others: Vec<(ProcessId, OwnedFd)>,
    socket: PathBuf,
    output: PathBuf,
    started: Instant,
}

impl Service {
    /// Starts `command`, which serves a disk at `socket`. Its output goes to the file `output`.
    pub fn start(
        name: &str,
        mut command: Command,
        socket: &Path,
        output: &Path,
    ) -> Result<Self, ProgramError> {
        let failed = |error| ProgramError::File { action: "make", path: output.to_owned(), error };
        let stdout = File::create(output).map_err(failed)?;
        let stderr = stdout.try_clone().map_err(failed)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
        let next = "build it, or say where it is";
        let child = child.map_err(|error| ProgramError::Program { program, error, next })?;
        let (socket, output) = (socket.to_owned(), output.to_owned());
        Ok(Self { name: name.to_owned(), child, others: Vec::new(), socket, output, started })
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Connects as soon as the server answers: retries `connect` until it returns a value, or an
    /// error other than the server's absence.
    pub fn connect<T, E: std::error::Error + Send + Sync + 'static>(
        &mut self,
        stop: &AtomicBool,
        mut connect: impl FnMut(&Path) -> Result<Option<T>, E>,
    ) -> Result<T, ProgramError> {
        loop {
            match connect(&self.socket) {
                Ok(Some(connected)) => {
                    self.see_processes()?;
                    return Ok(connected);
                }
                Err(error) => return Err(self.failed(error)),
                Ok(None) if stop.load(Ordering::Relaxed) => return Err(ProgramError::Signal),
                Ok(None) if self.started.elapsed() > START_TIMEOUT => {
                    return Err(self.late("begin to serve", START_TIMEOUT));
                }
                Ok(None) => {}
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.ended(status));
            }
            thread::sleep(CONNECT_PERIOD);
        }
    }

    /// Waits until the server accepts connections of any protocol. Processes that it starts later
    /// must be recorded later.
    pub fn await_socket(&mut self, stop: &AtomicBool) -> Result<(), ProgramError> {
        self.connect(stop, |socket| Ok::<_, io::Error>(UnixStream::connect(socket).ok().map(drop)))
    }

    /// Records its present processes, which are measured, and ended with it.
    pub fn see_processes(&mut self) -> Result<(), ProgramError> {
        let family = processes::family(self.child.id()).map_err(|error| self.process("find", 0, error))?;
        self.others.clear();
        for id in family.into_iter().skip(1) {
            let open = open_process(id).map_err(|error| self.process("watch", id, error))?;
            self.others.push((id, open));
        }
        Ok(())
    }

    /// Records its processes after some may have been replaced by others: as soon as there are as
    /// many as before, so that no predecessor is among them.
    pub fn see_successors(&mut self) -> Result<(), ProgramError> {
        let count = self.others.len();
        let until = Instant::now() + KILL_TIMEOUT;
        loop {
            // One that is found may end before it is opened.
            let seen = self.see_processes();
            if seen.is_ok() && self.others.len() == count {
                return Ok(());
            }
            if Instant::now() > until {
                return seen.and(Err(self.late("end the predecessor of a process", KILL_TIMEOUT)));
            }
            thread::sleep(CONNECT_PERIOD);
        }
    }

    /// Its recorded processes.
    pub fn process_ids(&self) -> impl Iterator<Item = ProcessId> {
        std::iter::once(self.child.id()).chain(self.others.iter().map(|(id, _)| *id))
    }

    /// Processor time of all its processes so far.
    pub fn processor_time(&self) -> Result<Duration, ProgramError> {
        let of = |id| processes::processor_time(id).map_err(|error| self.process("measure", id, error));
        self.process_ids().map(of).sum()
    }

    /// Memory of the serving process, and of all of them.
    pub fn memory(&self) -> Result<(Memory, Memory), ProgramError> {
        let mut all = Memory::default();
        let mut serving = Memory::default();
        // The last is the worker, if there is one.
        for id in self.process_ids() {
            serving = Memory::of(id).map_err(|error| self.process("measure", id, error))?;
            all = all.and(serving);
        }
        Ok((serving, all))
    }

    /// Ends it and waits; returns how long that took.
    pub fn end(mut self) -> Result<Duration, ProgramError> {
        let start = Instant::now();
        let id = self.child.id();
        let process = open_process(id).map_err(|error| self.process("end", id, error))?;
        pidfd_send_signal(&process, Signal::TERM).map_err(|errno| self.process("end", id, errno.into()))?;
        if !await_end(&process, END_TIMEOUT) {
            return Err(self.late("end", END_TIMEOUT));
        }
        let status = self.child.wait().map_err(|error| self.process("end", id, error))?;
        if !status.success() {
            return Err(self.ended(status));
        }
        Ok(start.elapsed())
    }

    /// Kills all its processes at once, and waits until they are gone.
    pub fn kill(mut self) -> Result<(), ProgramError> {
        if self.kill_all() { Ok(()) } else { Err(self.late("end after it was killed", KILL_TIMEOUT)) }
    }

    fn kill_all(&mut self) -> bool {
        // Processes that are already gone need no killing.
        let _ = self.child.kill();
        for (_, process) in &self.others {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        let _ = self.child.wait();
        self.others.drain(..).all(|(_, process)| await_end(&process, KILL_TIMEOUT))
    }

    /// Converts a client's error to one of this server.
    pub fn failed(&self, error: impl std::error::Error + Send + Sync + 'static) -> ProgramError {
        ProgramError::Client { server: self.name.clone(), error: Box::new(error), said: self.said() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The error that it took too long.
    pub fn late(&self, what: &'static str, within: Duration) -> ProgramError {
        ProgramError::Late { server: self.name.clone(), what, within, said: self.said() }
    }

    fn ended(&self, status: ExitStatus) -> ProgramError {
        ProgramError::Ended { server: self.name.clone(), status, said: self.said() }
    }

    fn process(&self, action: &'static str, id: ProcessId, error: io::Error) -> ProgramError {
        ProgramError::Process { action, id, server: self.name.clone(), error }
    }

    /// The end of its output.
    pub fn said(&self) -> String {
        let text = fs::read_to_string(&self.output).unwrap_or_default();
        let mut start = text.len().saturating_sub(SAID_BYTES_MAX);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text[start..].trim().to_owned()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // After a failed start its processes are not recorded yet.
            if self.others.is_empty() {
                let _ = self.see_processes();
            }
            self.kill_all();
        }
    }
}

fn open_process(id: ProcessId) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(id.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits up to `within` for a process to end; returns whether it has.
fn await_end(process: &OwnedFd, within: Duration) -> bool {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) if left.is_zero() => return false,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Service) {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let (socket, output) = (directory.path().join("socket"), directory.path().join("output"));
        let service = Service::start("a shell", command, &socket, &output).unwrap();
        (directory, service)
    }

    fn nobody(_: &Path) -> io::Result<Option<()>> {
        Ok(None)
    }

    #[test]
    fn a_server_that_ends_is_told_of_with_what_it_said() {
        let (_directory, mut service) = shell("echo no such disk; exit 3");
        let error = service.connect(&AtomicBool::new(false), nobody).unwrap_err();
        assert_eq!(error.to_string(), "a shell ended with exit status: 3; it said: no such disk");
    }

    #[test]
    fn all_processes_of_a_server_are_ended_however_it_ends() {
        for is_killed in [true, false] {
            let (_directory, mut service) = shell("sleep 60 & sleep 60; true");
            let children = loop {
                service.see_processes().unwrap();
                if service.others.len() == 2 {
                    break service
                        .others
                        .iter()
                        .map(|(id, _)| open_process(*id).unwrap())
                        .collect::<Vec<_>>();
                }
            };
            assert!(service.processor_time().unwrap() > Duration::ZERO);
            assert!(service.memory().unwrap().1.resident_bytes > service.memory().unwrap().0.resident_bytes);
            if is_killed {
                service.kill().unwrap()
            } else {
                drop(service)
            }
            assert!(children.iter().all(|child| await_end(child, Duration::from_secs(10))));
        }
    }

    #[test]
    fn a_process_that_replaces_another_is_seen_alone() {
        let script = "sleep 60 & first=$!; trap 'sleep 60 & kill $first; wait $first' USR1; \
                      echo ready; while :; do wait; done";
        let (_directory, mut service) = shell(script);
        while !service.said().contains("ready") {
            thread::yield_now();
        }
        service.see_processes().unwrap();
        let before: Vec<ProcessId> = service.process_ids().collect();
        let process = open_process(before[0]).unwrap();
        pidfd_send_signal(&process, Signal::USR1).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let after = loop {
            service.see_successors().unwrap();
            let after: Vec<ProcessId> = service.process_ids().collect();
            if after != before {
                break after;
            }
            assert!(Instant::now() < until, "{before:?}");
        };
        assert_eq!((after.len(), before.len()), (2, 2));
        assert!(after[0] == before[0] && after[1] != before[1]);
        service.kill().unwrap();
    }

    #[test]
    fn a_signal_ends_the_waiting() {
        let (_directory, mut service) = shell("sleep 60");
        assert!(matches!(service.connect(&AtomicBool::new(true), nobody), Err(ProgramError::Signal)));
    }

    #[test]
    fn a_server_that_is_asked_ends_in_its_own_way() {
        let (_directory, service) = shell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
        while service.said().is_empty() {
            thread::yield_now();
        }
        assert!(service.end().unwrap() < END_TIMEOUT);
        let (_directory, service) = shell("exec sleep 60");
        assert!(service.end().unwrap_err().to_string().starts_with("a shell ended with signal: 15"));
    }
}
