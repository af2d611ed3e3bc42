//! QEMU's process: started paused, confined, found again, ended.

mod hot_plug;
mod program;
mod run_directory;
mod start;

use std::io;
use std::os::fd::BorrowedFd;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

pub use crate::launch::ProcessIdentity as QemuIdentity;

pub use self::hot_plug::{DeviceId, HotPlugError};
pub use self::program::{DEFAULT_PROGRAM, ProgramError, QemuProgram, VERSION_OLDEST, Version};
pub use self::run_directory::{RunDirectory, RunDirectoryError};
use crate::firmware::FirmwareError;
use crate::launch::{LaunchError, Process, Shortfall};
use crate::machine::SpecError;
use crate::network::{NetworkError, NetworkState};
use crate::qmp::{Qmp, QmpError};

/// From QEMU's start to its QMP socket: below a second, and more where many start at once.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Why a machine is not there.
#[derive(Debug, Error)]
pub enum QemuError {
    /// It cannot be.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No place for its sockets.
    #[error(transparent)]
    RunDirectory(#[from] RunDirectoryError),
    /// A socket of an earlier machine is in the way, or a disk's cannot be given to the VM's user.
    #[error("cannot prepare {path}: {error}")]
    Prepare {
        /// The socket.
        path: std::path::PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The process.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// QEMU began, and did not like what it was told.
    #[error("QEMU does not start: {said}")]
    Failed {
        /// Its words.
        said: String,
    },
    /// QEMU began, and does not say anything.
    #[error("QEMU has not begun to listen within {within:?}: {said}")]
    Silent {
        /// How long was waited.
        within: Duration,
        /// What it said on its standard error.
        said: String,
    },
    /// What is said over QMP.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// The process is not there any more.
    #[error("QEMU {pid} has ended")]
    Ended {
        /// Its number.
        pid: u32,
    },
    /// Another process has its number or its socket.
    #[error("what is at {place} is not the QEMU that was started")]
    Stranger {
        /// Where.
        place: String,
    },
    /// The kernel's word.
    #[error("cannot {action}: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        error: io::Error,
    },
    /// The accelerator that was asked for does not work here.
    #[error("KVM does not work on this host: {0}")]
    NoKvm(String),
    /// UEFI was asked for, and is not here.
    #[error(transparent)]
    Firmware(#[from] FirmwareError),
    /// A network card cannot be connected.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// A running QEMU. Dropping it does nothing to the machine, which another supervisor can [adopt](Self::adopt).
#[derive(Debug)]
pub struct Qemu {
    process: Process,
    identity: QemuIdentity,
    qmp: Qmp,
    networks: Vec<NetworkState>,
    /// What serves its network cards, to be reaped: they end when QEMU does.
    companions: Vec<Process>,
}

impl Qemu {
    /// Finds a running QEMU again: the process of that identity, which listens in `run`.
    pub fn adopt(run: &RunDirectory, identity: QemuIdentity) -> Result<Self, QemuError> {
        let process = Process::adopt(identity)
            .map_err(|error| QemuError::System { action: "read when QEMU began", error })?
            .ok_or(QemuError::Ended { pid: identity.pid })?;
        let qmp = Qmp::connect(&run.qmp(), STARTS_WITHIN)?;
        expect_peer(&qmp, identity, run)?;
        Ok(Self { process, identity, qmp, networks: Vec::new(), companions: Vec::new() })
    }

    /// What is said to it.
    pub fn qmp(&self) -> &Qmp {
        &self.qmp
    }

    /// What to write down, so that another supervisor can adopt it.
    pub fn identity(&self) -> QemuIdentity {
        self.identity
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// Which walls it runs without; known to the supervisor that started it.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.process.shortfalls()
    }

    /// What its network cards came to be connected to; known to the supervisor that started it.
    pub fn networks(&self) -> &[NetworkState] {
        &self.networks
    }

    /// Waits for its end; whether that came.
    pub fn wait(&self, within: Duration) -> bool {
        self.process.wait(within)
    }

    /// How it ended, if it has and this supervisor started it.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.companions.retain_mut(|companion| companion.status().is_none());
        self.process.status()
    }

    /// Presses the power button and waits for the machine to be off; whether it is.
    pub fn stop_gracefully(&self, within: Duration) -> Result<bool, QemuError> {
        if !self.qmp.status()?.running {
            // A guest that stands still would not see the button.
            self.qmp.cont()?;
        }
        self.qmp.press_power_button()?;
        Ok(self.wait(within))
    }

    /// Cuts the machine's power: QEMU is asked to end, and killed if it does not within that time. Whether it is gone.
    pub fn stop_now(&mut self, within: Duration) -> bool {
        let asked = self.qmp.quit().is_ok();
        (asked && self.wait(within)) || self.process.kill()
    }

    /// Kills it; whether it is gone.
    pub fn kill(&mut self) -> bool {
        self.process.kill()
    }

    /// The beginning of what it said on its standard error.
    pub fn said(&self) -> String {
        self.process.said()
    }
}

/// That who listens is the process of that identity.
fn expect_peer(qmp: &Qmp, identity: QemuIdentity, run: &RunDirectory) -> Result<(), QemuError> {
    let peer = qmp.peer();
    let pid = peer.pid.as_raw_nonzero().get().cast_unsigned();
    if (pid, peer.uid.as_raw()) == (identity.pid, identity.uid) {
        Ok(())
    } else {
        Err(QemuError::Stranger { place: run.qmp().display().to_string() })
    }
}
