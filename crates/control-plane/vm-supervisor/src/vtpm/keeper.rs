//! A thread that records each new state of a TPM, until swtpm has ended.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use strongroom_hypervisor::Swtpm;

use super::{TpmError, TpmPlace};

/// Writes of swtpm within this time are recorded as one state.
const SETTLES_AFTER: Duration = Duration::from_millis(20);
/// After a failure, the state is recorded again after this time; usually the VM's key is
/// unavailable.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Timeout from QEMU's end to swtpm's.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// The thread that records a TPM's states.
#[derive(Debug)]
pub struct Keeper {
    stop: OwnedFd,
    thread: JoinHandle<()>,
}

struct Kept {
    place: TpmPlace,
    swtpm: Swtpm,
    changes: OwnedFd,
    stop: OwnedFd,
}

impl Keeper {
    /// Records the states of a running swtpm that is connected to QEMU. If swtpm ends before
    /// [`Self::end`] is called, `lost` is called with its last output.
    ///
    /// # Errors
    /// If the thread cannot be started, or changes cannot be watched. swtpm keeps running.
    pub fn start(
        place: TpmPlace,
        swtpm: Swtpm,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let changes = place.changes()?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let kept = Kept { place, swtpm, changes, stop: stop.try_clone()? };
        let thread = thread::Builder::new().name("tpm".to_owned()).spawn(move || kept.run(lost))?;
        Ok(Self { stop, thread })
    }

    /// Waits for the end of swtpm, whose QEMU has ended, and records its last state.
    pub fn end(self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if self.thread.join().is_err() {
            tracing::error!("the TPM's record was not closed");
        }
    }
}

impl Kept {
    fn run(mut self, lost: impl FnOnce(String)) {
        let mut lost = Some(lost);
        let mut due = Some(Instant::now());
        loop {
            let mut watched =
                vec![PollFd::new(&self.stop, PollFlags::IN), PollFd::new(&self.changes, PollFlags::IN)];
            let pidfd = self.swtpm.pidfd();
            if lost.is_some() {
                watched.push(PollFd::new(&pidfd, PollFlags::IN));
            }
            let wait = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
            match poll(&mut watched, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!("the TPM's state is not watched any more: {errno}");
                    return;
                }
            }
            let seen: Vec<bool> = watched.iter().map(|watched| !watched.revents().is_empty()).collect();
            if seen[0] {
                break;
            }
            if seen[1] {
                self.forget_changes();
                due = Some(Instant::now() + SETTLES_AFTER);
            }
            if seen.get(2) == Some(&true)
                && let Some(lost) = lost.take()
            {
                lost(self.swtpm.said());
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                due = self.record().then(|| Instant::now() + AGAIN_AFTER);
            }
        }
        if !self.swtpm.wait(ENDS_WITHIN) {
            self.swtpm.kill();
        }
        // If this fails, the next start takes an unrecorded state for one that was written just
        // before a crash.
        if let Err(error) = self.place.ended() {
            self.complain(&error);
        }
    }

    /// Records the state. Returns whether it must be tried again.
    fn record(&self) -> bool {
        match self.place.record() {
            Ok(()) => false,
            Err(error) => {
                self.complain(&error);
                true
            }
        }
    }

    fn complain(&self, error: &TpmError) {
        tracing::warn!("VM {}: the state of its TPM is not recorded: {error}", self.place.spec.name);
    }

    fn forget_changes(&self) {
        let mut events = [0; 4096];
        while matches!(rustix::io::read(self.changes.as_fd(), &mut events), Ok(count) if count > 0) {}
    }
}

/// Rounded up, so that poll does not return before the deadline.
fn timespec(wait: Duration) -> Timespec {
    let wait = wait + Duration::from_micros(999);
    Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() }
}
