//! That nobody else serves here: one `serve` for a home, one for a run directory, and nobody at our
//! addresses.
//!
//! It is looked before any process is started, so that a person reads one sentence and not what
//! three processes say.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use strongroom_host::run_directory::HostRunDirectory;

use super::{Places, ServeArguments};
use crate::error::CliError;
use crate::keyserver::{ServerSettings, make_directories};
use crate::output::Output;
use crate::signals::Signals;

/// Its lock, in the home and in the run directory: it holds the process's id.
const LOCK: &str = "serve.lock";
/// How long a predecessor that was killed may take to be gone, with its processes.
const PREDECESSOR_GONE_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Held as long as this process serves.
#[derive(Debug)]
pub struct Alone {
    _locks: [File; 2],
}

/// An address, what is served there, and the option that names another one.
pub struct Address {
    pub address: SocketAddr,
    pub of: &'static str,
    pub option: &'static str,
}

impl Alone {
    /// Takes the locks, and looks whether the addresses are free.
    pub fn take(
        places: &Places,
        addresses: &[Address],
        signals: &Signals,
        output: Output,
    ) -> Result<Self, CliError> {
        make_directories(&places.home)?;
        HostRunDirectory::at(&places.run).map_err(|error| CliError::File {
            action: "use",
            path: places.run.clone(),
            error,
        })?;
        let until = Instant::now() + PREDECESSOR_GONE_WITHIN;
        let mut wait = Wait { until, signals, output, is_announced: false };
        let locks = [lock(&places.home, places, &mut wait)?, lock(&places.run, places, &mut wait)?];
        for address in addresses {
            address.await_free(&mut wait)?;
        }
        Ok(Self { _locks: locks })
    }
}

fn lock(directory: &Path, places: &Places, wait: &mut Wait<'_>) -> Result<File, CliError> {
    let path = directory.join(LOCK);
    let failed = |error| CliError::File { action: "lock", path: path.clone(), error };
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
    let in_use = || format!("another `strongroom serve` uses {}", directory.display());
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK) if wait.goes_on(in_use) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Without it the message says less.
                let _ = file.read_to_string(&mut text);
                return Err(runs_already(directory, places, text.trim()));
            }
            Err(errno) => return Err(failed(errno.into())),
        }
    }
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

fn runs_already(directory: &Path, places: &Places, pid: &str) -> CliError {
    let (what, option) =
        if directory == places.home { ("home", "--home") } else { ("run directory", "--run") };
    let who = if pid.is_empty() { "another process".to_owned() } else { format!("process {pid}") };
    let end = if pid.is_empty() { "end that one".to_owned() } else { format!("end that one (`kill {pid}`)") };
    CliError::Usage(format!(
        "{who} serves {what} {} already; {end}, or name another one with {option} DIR, and other addresses with --listen, --listen-kmip and \
         --listen-enrolment",
        directory.display()
    ))
}

impl Address {
    fn await_free(&self, wait: &mut Wait<'_>) -> Result<(), CliError> {
        let Self { address, of, option } = self;
        let in_use = || format!("another program listens at {address}, where {of} is to be served");
        loop {
            match TcpListener::bind(address) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AddrInUse && wait.goes_on(in_use) => {}
                Err(error) => {
                    let why = match error.kind() {
                        ErrorKind::AddrInUse => "another program listens there".to_owned(),
                        _ => error.to_string(),
                    };
                    return Err(CliError::Usage(format!(
                        "{of} cannot be served at {address}: {why}; end that program, or name another address with {option} ADDRESS:PORT"
                    )));
                }
            }
        }
    }
}

/// A predecessor that ends is waited for, and a person is told why.
struct Wait<'serve> {
    until: Instant,
    signals: &'serve Signals,
    output: Output,
    is_announced: bool,
}

impl Wait<'_> {
    /// Pauses; returns `false`, at once, when the time is over or a signal has come.
    fn goes_on(&mut self, reason: impl FnOnce() -> String) -> bool {
        if Instant::now() >= self.until || self.signals.came() {
            return false;
        }
        if !self.is_announced {
            let seconds = PREDECESSOR_GONE_WITHIN.as_secs();
            self.output.remark(&format!("{}; waiting up to {seconds} s for it to end", reason()));
            self.is_announced = true;
        }
        // A signal that interrupts the pause is seen by the next call.
        let _ = poll(&mut [PollFd::new(self.signals, PollFlags::IN)], Some(&LOOK_EVERY));
        true
    }
}

impl ServeArguments {
    /// Where this machine serves; what the key server's settings do not say yet is as they will be
    /// made.
    pub(super) fn addresses(&self, home: &Path) -> [Address; 3] {
        let known = ServerSettings::read(&home.join("keyserver")).unwrap_or_default();
        let kmip = self.listen_kmip.unwrap_or(known.listen);
        let enrolment = self.listen_enrolment.unwrap_or(known.listen_enrolment);
        [
            Address { address: self.listen(), of: "the API", option: "--listen" },
            Address { address: kmip, of: "KMIP", option: "--listen-kmip" },
            Address { address: enrolment, of: "enrolment", option: "--listen-enrolment" },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_one_is_told_who_serves_and_what_to_do() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let places = |home, run| Places { home: at(home), control: at("c"), hostd: at("h"), run: at(run) };
        let (signals, output) = (Signals::catch().unwrap(), Output::new(true));
        let first = Alone::take(&places("home", "run"), &[], &signals, output).unwrap();
        let refused = Alone::take(&places("home", "other"), &[], &signals, output).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(
            refused.contains(&format!("process {pid} serves home")) && refused.contains("kill"),
            "{refused}"
        );
        let refused = Alone::take(&places("other", "run"), &[], &signals, output).unwrap_err().to_string();
        assert!(refused.contains("run directory") && refused.contains("--run"), "{refused}");
        drop(first);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { address: listener.local_addr().unwrap(), of: "the API", option: "--listen" };
        let refused =
            Alone::take(&places("home", "run"), &[address], &signals, output).unwrap_err().to_string();
        assert!(refused.contains("the API") && refused.contains("--listen ADDRESS:PORT"), "{refused}");
    }
}
