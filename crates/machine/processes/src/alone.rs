//! One `serve` for each place, and no other process at its addresses.
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

use crate::error::ProcessesError;
use crate::signals::Signals;

/// The lock in each place: it holds the process's id.
const LOCK: &str = "serve.lock";
/// How long a predecessor that was killed may take to be gone, with its processes.
const PREDECESSOR_GONE_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Held as long as this process serves.
#[derive(Debug)]
pub struct Alone {
    _locks: Vec<File>,
}

/// A directory that one `serve` has for itself.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// What it is called, as in "home".
    pub what: &'static str,
    /// The directory, which is there.
    pub directory: &'a Path,
    /// The option that names another one.
    pub option: &'static str,
}

/// An address of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Where it is listened.
    pub address: SocketAddr,
    /// What is served there.
    pub of: &'static str,
    /// The option that names another one.
    pub option: &'static str,
}

impl Alone {
    /// Takes the locks of the places, in order, and looks whether the addresses are free. What it
    /// waits for is `announce`d once.
    ///
    /// # Errors
    /// [`ProcessesError::ServedAlready`] and [`ProcessesError::Address`] for what is in use still;
    /// [`ProcessesError::File`] for a lock that cannot be made.
    pub fn take(
        places: &[Place<'_>],
        addresses: &[Address],
        signals: &Signals,
        announce: &dyn Fn(&str),
    ) -> Result<Self, ProcessesError> {
        Self::take_within(PREDECESSOR_GONE_WITHIN, places, addresses, signals, announce)
    }

    fn take_within(
        gone_within: Duration,
        places: &[Place<'_>],
        addresses: &[Address],
        signals: &Signals,
        announce: &dyn Fn(&str),
    ) -> Result<Self, ProcessesError> {
        let until = Instant::now() + gone_within;
        let mut wait = Wait { until, signals, announce, is_announced: false };
        let locks = places.iter().map(|place| place.lock(&mut wait)).collect::<Result<_, _>>()?;
        for address in addresses {
            address.await_free(&mut wait)?;
        }
        Ok(Self { _locks: locks })
    }
}

impl Place<'_> {
    fn lock(&self, wait: &mut Wait<'_>) -> Result<File, ProcessesError> {
        let path = self.directory.join(LOCK);
        let failed = |error| ProcessesError::File { action: "lock", path: path.clone(), error };
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
        let in_use = || format!("another `strongroom serve` uses {}", self.directory.display());
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if wait.goes_on(in_use) => {}
                Err(Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    // Without it the message says less.
                    let _ = file.read_to_string(&mut text);
                    return Err(self.served_already(text.trim()));
                }
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(file)
    }

    fn served_already(&self, pid: &str) -> ProcessesError {
        let Self { what, directory, option } = *self;
        let pid = Some(pid).filter(|pid| !pid.is_empty()).map(str::to_owned);
        ProcessesError::ServedAlready { what, directory: directory.to_owned(), option, pid }
    }
}

impl Address {
    fn await_free(&self, wait: &mut Wait<'_>) -> Result<(), ProcessesError> {
        let Self { address, of, option } = *self;
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
                    return Err(ProcessesError::Address { of, address, why, option });
                }
            }
        }
    }
}

/// Waits for a predecessor that ends, and says why.
struct Wait<'serve> {
    until: Instant,
    signals: &'serve Signals,
    announce: &'serve dyn Fn(&str),
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
            (self.announce)(&format!("{}; waiting up to {seconds} s for it to end", reason()));
            self.is_announced = true;
        }
        // A signal that interrupts the pause is seen by the next call.
        let _ = poll(&mut [PollFd::new(self.signals, PollFlags::IN)], Some(&LOOK_EVERY));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS_ONCE_MORE: Duration = Duration::from_millis(50);

    #[test]
    fn the_second_one_is_told_who_serves_and_what_to_do() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["home", "run", "other"] {
            std::fs::create_dir(scratch.path().join(name)).unwrap();
        }
        let signals = Signals::catch().unwrap();
        let take = |home: &str, run: &str, addresses: &[Address]| {
            let (home, run) = (scratch.path().join(home), scratch.path().join(run));
            let places = [
                Place { what: "home", directory: &home, option: "--home" },
                Place { what: "run directory", directory: &run, option: "--run" },
            ];
            Alone::take_within(LOOKS_ONCE_MORE, &places, addresses, &signals, &|_| {})
        };
        let first = take("home", "run", &[]).unwrap();
        let refused = take("home", "other", &[]).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(
            refused.contains(&format!("process {pid} serves home")) && refused.contains("kill"),
            "{refused}"
        );
        let refused = take("other", "run", &[]).unwrap_err().to_string();
        assert!(refused.contains("run directory") && refused.contains("--run"), "{refused}");
        drop(first);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address { address: listener.local_addr().unwrap(), of: "the API", option: "--listen" };
        let refused = take("home", "run", &[address]).unwrap_err().to_string();
        assert!(refused.contains("the API") && refused.contains("--listen ADDRESS:PORT"), "{refused}");
    }
}
