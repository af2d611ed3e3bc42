//! A `strongroom serve`: key server, control plane, and a hostd of its own without VMs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use strongroom_lab::processes::{ProcessId, family};

use crate::error::{EstateError, system};

/// Timeout of a start, which makes keys and certificates the first time.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Timeout of an orderly end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// The interval of looks for a process.
const LOOKS_EVERY: Duration = Duration::from_millis(5);
/// The API, which only this machine reaches.
const API_PORT: u16 = 5690;

/// A process of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The control plane.
    Control,
    /// The key server.
    KeyServer,
}

/// A running site. Dropping it ends its processes.
#[derive(Debug)]
pub struct Site {
    process: Child,
    home: PathBuf,
    /// Kept open: nobody reads what it says later.
    said: BufReader<ChildStdout>,
}

impl Site {
    /// Starts the site in a directory, whose key server other machines reach at `address`.
    ///
    /// # Errors
    /// [`EstateError`].
    pub fn start(program: &Path, directory: &Path, address: IpAddr) -> Result<Self, EstateError> {
        let home = directory.join("home");
        let log = File::create(directory.join("serve.log")).map_err(system("make the site's log"))?;
        let mut process = Command::new(program)
            .args(["serve", "--name", "first", "--crypto-safe", "advised"])
            .args(["--listen", &Self::api().to_string()])
            .args(["--listen-kmip", &SocketAddr::new(address, 5696).to_string()])
            .args(["--listen-enrolment", &SocketAddr::new(address, 5697).to_string()])
            .arg("--run")
            .arg(directory.join("run"))
            .env("STRONGROOM_HOME", &home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(system("start the site"))?;
        let said = process.stdout.take().ok_or_else(|| EstateError::Program("no output".to_owned()))?;
        let mut site = Self { process, home, said: BufReader::new(said) };
        let mut line = String::new();
        site.said.read_line(&mut line).map_err(system("hear of the site"))?;
        if line.starts_with("https://") {
            return Ok(site);
        }
        let log = fs::read_to_string(directory.join("serve.log")).unwrap_or_default();
        Err(EstateError::Program(format!("the site does not start: {line}{log}")))
    }

    /// Its home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The address of its API.
    pub fn api() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], API_PORT))
    }

    /// One of its processes.
    ///
    /// # Errors
    /// If it does not run.
    pub fn process(&self, role: Role) -> Result<ProcessId, EstateError> {
        let all = family(self.process.id()).map_err(system("list the site's processes"))?;
        let is_meant = |words: &[&str]| match role {
            Role::Control => words.windows(2).any(|pair| pair == ["--role", "control"]),
            Role::KeyServer => words.windows(2).any(|pair| pair == ["keyserver", "run"]),
        };
        let found = all.into_iter().find(|id| {
            let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            is_meant(&line.split('\0').collect::<Vec<_>>())
        });
        found.ok_or_else(|| EstateError::Program(format!("no {role:?} runs")))
    }

    /// Ends the control plane in order, and waits for the process that replaces it.
    ///
    /// # Errors
    /// [`EstateError`].
    pub fn restart_control(&self) -> Result<ProcessId, EstateError> {
        let before = self.process(Role::Control)?;
        signal(before, Signal::SIGTERM)?;
        let until = Instant::now() + STARTS_WITHIN;
        loop {
            match self.process(Role::Control) {
                Ok(now) if now != before => return Ok(now),
                Ok(_) | Err(_) if Instant::now() < until => std::thread::sleep(LOOKS_EVERY),
                Ok(_) | Err(_) => return Err(EstateError::Late("another control plane".to_owned())),
            }
        }
    }

    /// Ends the site in order.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop(mut self) -> Result<(), EstateError> {
        signal(self.process.id(), Signal::SIGTERM)?;
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until {
            if self.process.try_wait().map_err(system("wait for the site"))?.is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOKS_EVERY);
        }
        Err(EstateError::Late("the end of the site".to_owned()))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            for process in family(self.process.id()).unwrap_or_default() {
                // It may have ended meanwhile.
                let _ = signal(process, Signal::SIGKILL);
            }
            let _ = self.process.wait();
        }
    }
}

fn signal(process: ProcessId, signal: Signal) -> Result<(), EstateError> {
    kill(Pid::from_raw(process.cast_signed()), signal)
        .map_err(|errno| system("signal a process of the site")(errno.into()))
}
