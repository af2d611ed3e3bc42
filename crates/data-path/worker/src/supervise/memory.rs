//! A disk in memory, served by a worker like any volume: confined, without rights, encrypting.
//!
//! It is for tests and for measuring the cost of the stages above a datastore. Its content is only
//! in the worker's memory, so a worker that dies is not replaced.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use strongroom_crypto::xts::KEY_BYTES;
use strongroom_datastore::file::Deks;
use strongroom_frontend::listen::Listener;
use strongroom_memory::secret::{SecretBytes, SecretError};
use strongroom_types::{KeyEpoch, VolumeSize};

use super::child::{Birthright, ChildError, WorkerProcess};
use super::starter::Workers;
use super::{SuperviseError, VolumeSeal, drain_deadline_of, make_page};

/// The parameters of the exposure.
#[derive(Debug)]
pub struct MemoryExposure {
    /// The size that clients see.
    pub size_bytes: VolumeSize,
    /// Whether blocks are sealed, under a key that is not stored anywhere.
    pub encrypted: bool,
    /// Where clients connect.
    pub listener: Listener,
    /// The parameters that the worker is started with.
    pub birthright: Birthright,
    /// The starter of the worker.
    pub workers: Workers,
}

impl MemoryExposure {
    /// Serves until `stop` is readable. Calls `ready` with the worker's process id when clients are
    /// served.
    ///
    /// # Errors
    /// If the worker does not start, dies, or does not end in order.
    pub fn serve(self, stop: &impl AsFd, ready: impl FnOnce(u32)) -> Result<(), SuperviseError> {
        let deks = if self.encrypted { Some(new_dek()) } else { None };
        let deks = deks.transpose().map_err(|error| SuperviseError::Start(error.to_string()))?;
        let Self { size_bytes, listener, birthright, workers, .. } = self;
        let page = make_page();
        let start = || {
            let mut worker = WorkerProcess::start(&workers, &birthright, listener.as_fd(), page.as_ref())?;
            let seal = if deks.is_some() { VolumeSeal::Sealed } else { VolumeSeal::Clear };
            worker.give(deks.unwrap_or_default(), seal)?;
            worker.serve_memory(size_bytes)?;
            Ok(worker)
        };
        let mut worker = start().map_err(|error: ChildError| SuperviseError::Start(error.to_string()))?;
        ready(worker.id());
        loop {
            let mut watched = vec![
                PollFd::new(stop, PollFlags::IN),
                PollFd::from_borrowed_fd(worker.pidfd(), PollFlags::IN),
            ];
            watched.extend(worker.voice().map(|voice| PollFd::from_borrowed_fd(voice, PollFlags::IN)));
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let is_asked_to_end = !watched[0].revents().is_empty();
            worker.hear();
            if let Some(how) = worker.ended() {
                return Err(SuperviseError::Stop(format!(
                    "its worker {how}, and what was written is gone with it"
                )));
            }
            if is_asked_to_end {
                break;
            }
        }
        let failure = worker.end(drain_deadline_of(&birthright.frontend));
        match failure.unwrap_or_else(|error| Some(error.to_string())) {
            None => Ok(()),
            Some(failure) => Err(SuperviseError::Stop(failure)),
        }
    }
}

/// A random key that exists only in this process and its worker.
fn new_dek() -> Result<Deks, SecretError> {
    Ok(vec![(KeyEpoch::FIRST, SecretBytes::random(KEY_BYTES)?)])
}
