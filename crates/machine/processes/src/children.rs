//! The processes of `strongroom serve`: each is started again when it ends, and all of them end
//! with this one.

use std::collections::VecDeque;
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

/// The longest line that is read of a process.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How long the last words of a process that has ended are waited for.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(1);

/// The beginning of a line on stdout that says which piece of news is on record, by its number.
const RECORDED: &str = "recorded ";

/// A process to be.
#[derive(Clone, Debug)]
pub struct Role {
    /// What it is called in the log.
    pub name: &'static str,
    /// Its program.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
    /// Whether it hears on stdin, line by line, of the others that ended ([`news_of`]), and says
    /// on stdout what is on record ([`recorded`]).
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
    /// The numbers of the news that it has recorded.
    recorded: Receiver<u64>,
    /// The last piece of news that it was sent.
    sent: u64,
}

/// The ends of processes that are not known to be on record. A process that was sent one may be
/// killed before it has recorded it, so it stays until it says that it has. One that is killed
/// between the two is told again: an end is on record at least once.
#[derive(Debug, Default)]
struct News {
    last: u64,
    waiting: VecDeque<(u64, String)>,
}

impl News {
    fn add(&mut self, text: String) {
        self.last += 1;
        self.waiting.push_back((self.last, text));
        self.waiting.drain(..self.waiting.len().saturating_sub(NEWS_MAX));
    }

    fn forget(&mut self, number: u64) {
        self.waiting.retain(|(waiting, _)| *waiting != number);
    }
}

/// Reads a line that a process [hears](Role::hears): the number of a piece of news, and the news.
/// A `serve` of an earlier version numbers none.
pub fn news_of(line: &str) -> (Option<u64>, &str) {
    let numbered = line.split_once(' ').and_then(|(number, text)| Some((number.parse().ok()?, text)));
    numbered.map_or((None, line), |(number, text)| (Some(number), text))
}

/// The line that says that a piece of news is on record.
pub fn recorded(number: u64) -> String {
    format!("{RECORDED}{number}")
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

    /// Starts it again if it has ended and its pause is over. What has ended, and how, is news.
    fn see_to(&mut self, news: &mut News) {
        if let Some(process) = &mut self.process
            && let Ok(Some(status)) = process.child.try_wait()
        {
            let lasted = process.started.elapsed() > LASTED;
            self.pause = if lasted { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            self.next_start = Instant::now() + self.pause;
            let until = Instant::now() + LAST_WORDS_WITHIN;
            let left = || until.saturating_duration_since(Instant::now());
            while let Ok(number) = process.recorded.recv_timeout(left()) {
                news.forget(number);
            }
            self.process = None;
            let name = self.role.name;
            tracing::error!("{name} ended ({status}); it is started again in {:?}", self.pause);
            news.add(format!("process {name} ended ({status}), and is started again"));
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
    }

    /// Writes to it what it was not sent yet, in order, and takes away what it has recorded.
    fn hear(&mut self, news: &mut News) {
        let Some(Process { child, recorded, sent, .. }) = &mut self.process else { return };
        let Some(stdin) = child.stdin.as_mut() else { return };
        while let Ok(number) = recorded.try_recv() {
            news.forget(number);
        }
        let before = *sent;
        for (number, text) in news.waiting.iter().filter(|(number, _)| *number > before) {
            // One that has ended hears it when it is started again.
            if writeln!(stdin, "{number} {text}").is_err() {
                return;
            }
            *sent = *number;
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
        let ((say, said), (confirm, recorded)) = (channel(), channel());
        let hears = role.hears;
        std::thread::Builder::new()
            .name(format!("{}-stdout", role.name))
            .spawn(move || {
                let mut line = String::new();
                let mut stdout = BufReader::new(stdout);
                let read = stdout.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
                // A receiver that has gone away does not want it.
                let _ = say.send(if read.is_ok() { std::mem::take(&mut line) } else { String::new() });
                while hears
                    && stdout.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).is_ok_and(|bytes| bytes > 0)
                {
                    let number = line.strip_prefix(RECORDED).and_then(|number| number.trim().parse().ok());
                    let _ = number.map(|number| confirm.send(number));
                    line.clear();
                }
                // The rest is for people who start it by hand; the process must not wait for its
                // readers.
                let _ = std::io::copy(&mut stdout, &mut std::io::sink());
            })
            .map_err(failed)?;
        Ok((Self { child, pidfd, started: Instant::now(), recorded, sent: 0 }, said))
    }
}

/// Keeps all of them running until a signal comes.
///
/// # Errors
/// [`ProcessesError::Signals`] if nothing can be awaited.
pub fn keep(roles: &mut [RunningRole], signals: &Signals) -> Result<(), ProcessesError> {
    let mut news = News::default();
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
            roles.iter_mut().for_each(|role| role.see_to(&mut news));
            if let Some(hearer) = roles.iter_mut().find(|role| role.role.hears) {
                hearer.hear(&mut news);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that does this with each line that it hears: a number, and a text.
    fn hearer(directory: &std::path::Path, does: &str) -> Role {
        let heard = directory.join("heard");
        let script = format!("echo ready; while read -r number text; do {does}; done")
            .replace("HEARD", &heard.display().to_string());
        Role {
            name: "hearer",
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            hears: true,
            asks: false,
        }
    }

    fn started(role: &Role) -> RunningRole {
        let (process, said) = Process::start(role).unwrap();
        assert_eq!(said.recv().unwrap(), "ready\n");
        let (role, next_start) = (role.clone(), Instant::now());
        RunningRole { role, process: Some(process), pause: PAUSE.0, next_start }
    }

    /// Kills it once a line has arrived, and starts it again.
    fn killed_after_a_line(role: &mut RunningRole, heard: &std::path::Path, news: &mut News) {
        while std::fs::read_to_string(heard).unwrap_or_default().lines().next().is_none() {
            std::thread::yield_now();
        }
        let process = role.process.as_mut().unwrap();
        process.child.kill().unwrap();
        poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], None).unwrap();
        role.see_to(news);
        assert!(role.process.is_none(), "it waits for its pause");
        role.next_start = Instant::now();
        role.see_to(news);
    }

    #[test]
    fn an_end_is_told_until_it_is_on_record() {
        let directory = tempfile::tempdir().unwrap();
        let heard = directory.path().join("heard");
        let mut news = News::default();
        news.add("process hostd ended (signal: 9)".to_owned());
        // It hears of it, and is killed before it has recorded it.
        let mut role = started(&hearer(directory.path(), "echo \"$text\" >> HEARD; exec sleep 1000"));
        role.hear(&mut news);
        killed_after_a_line(&mut role, &heard, &mut news);
        let told: Vec<&str> = news.waiting.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("process hostd ended") && told[1].starts_with("process hearer ended"));
        drop(role);
        // Its successor records both, and they are told no more.
        std::fs::remove_file(&heard).unwrap();
        let mut role = started(&hearer(directory.path(), "echo recorded $number; echo \"$text\" >> HEARD"));
        role.hear(&mut news);
        killed_after_a_line(&mut role, &heard, &mut news);
        let told: Vec<&str> = news.waiting.iter().map(|(_, text)| text.as_str()).collect();
        assert!(!told.iter().any(|text| text.starts_with("process hostd ended")), "{told:?}");
        assert!(std::fs::read_to_string(&heard).unwrap().starts_with("process hostd ended (signal: 9)\n"));
    }

    #[test]
    fn news_without_a_number_are_of_an_earlier_version() {
        assert_eq!(news_of("12 process hostd ended"), (Some(12), "process hostd ended"));
        assert_eq!(news_of("process hostd ended"), (None, "process hostd ended"));
    }
}
