//! The process: it takes connections that are handed over for as long as the control plane is
//! there.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strongroom_confine::{SandboxError, close_inherited, confine_client};
use strongroom_host::wire::{Wire, WireError};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::handover::{Handover, Received};
use crate::session::serve;

/// The most connections at a time. Each has a few buffers of 64 KiB.
const SESSIONS_MAX: usize = 256;

/// What the process is told first. The lease of its user comes along.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Birth {
    /// Its user and group, if it is to have its own.
    pub run_as: Option<(u32, u32)>,
}

/// Why the process ends.
#[derive(Debug, Error)]
pub enum RunError {
    /// It was started by hand.
    #[error("a relay of guest data is started by the control plane, and does nothing without it")]
    NotBorn,
    /// It is not confined.
    #[error(transparent)]
    Confinement(#[from] SandboxError),
    /// It has no threads.
    #[error("the relay of guest data cannot run: {0}")]
    Threads(#[from] io::Error),
}

/// Is the relay process, at the wire that it was started with. It has one thread until then.
///
/// # Errors
/// [`RunError`].
pub fn relay_main(socket: OwnedFd) -> Result<(), RunError> {
    let wire = Wire::adopt(socket).ok_or(RunError::NotBorn)?;
    close_inherited(Some(std::os::fd::AsFd::as_fd(&wire)));
    // The user's number is reserved for this process as long as the lease is open.
    let Ok((Birth { run_as }, _lease)) = wire.receive::<Birth>() else { return Err(RunError::NotBorn) };
    confine_client("the relay of guest data", run_as)?;
    Ok(run(&wire)?)
}

/// Serves what the control plane hands over at `wire`, until that is gone. What is open ends then,
/// and a page that finds its control plane again opens it anew.
///
/// # Errors
/// If there are no threads.
pub fn run(wire: &Wire) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let room = Arc::new(Semaphore::new(SESSIONS_MAX));
    loop {
        let received = match wire.receive::<Handover>() {
            Ok((handover, files)) => Received::new(handover, files),
            Err(WireError::Gone) => return Ok(()),
            Err(error) => {
                tracing::error!(%error, "what was handed over cannot be read");
                continue;
            }
        };
        let Some(received) = received else { continue };
        // The browser sees a connection that ends.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!("{SESSIONS_MAX} consoles and screens are open in browsers: one more is refused");
            continue;
        };
        runtime.spawn(async move {
            serve(received).await;
            drop(place);
        });
    }
}
