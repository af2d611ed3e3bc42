//! The control plane's side: the process is started with the first connection, and again if it has
//! ended.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Child;

use parking_lot::Mutex;
use strongroom_confine::UidLease;
use strongroom_host::wire::{Wire, WireError, start_on_wire};
use thiserror::Error;

use crate::handover::{HandedFiles, Handover};
use crate::run::Birth;

/// Why a connection was not handed over.
#[derive(Debug, Error)]
pub enum HandOverError {
    /// The process cannot be started.
    #[error("the relay of guest data cannot be started: {0}")]
    Start(io::Error),
    /// It does not take it.
    #[error("the relay of guest data does not take a connection: {0}")]
    Wire(#[from] WireError),
}

/// The relay process, which ends with this.
#[derive(Debug)]
pub struct Relay {
    /// The program.
    program: PathBuf,
    /// The arguments that make it a relay.
    arguments: Vec<OsString>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    wire: Wire,
    child: Child,
    /// Its user, which no other process has.
    _lease: Option<UidLease>,
}

impl Relay {
    /// A relay by this command.
    pub fn new(program: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { program, arguments, running: Mutex::default() }
    }

    /// Hands a connection over.
    ///
    /// # Errors
    /// [`HandOverError`].
    pub fn take(&self, handover: &Handover, files: HandedFiles<'_>) -> Result<(), HandOverError> {
        let mut running = self.running.lock();
        if let Some(one) = &*running {
            match handover.send(&one.wire, files) {
                Err(WireError::Gone) => {
                    tracing::warn!("the relay of guest data has ended, and is started again")
                }
                sent => return Ok(sent?),
            }
        }
        let one = running.insert(self.start()?);
        Ok(handover.send(&one.wire, files)?)
    }

    fn start(&self) -> Result<Running, HandOverError> {
        let (wire, child) = start_on_wire(&self.program, &self.arguments).map_err(HandOverError::Start)?;
        let lease = UidLease::take_as_root();
        let birth = Birth { run_as: lease.as_ref().map(UidLease::user) };
        let running = Running { wire, child, _lease: lease };
        let lease: Vec<_> = running._lease.iter().map(AsFd::as_fd).collect();
        running.wire.send(&birth, &lease)?;
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
