//! QEMU's process: started paused, confined, found again, ended.

mod hot_plug;
mod program;
mod run_directory;
mod socket;
mod start;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

pub use crate::launch::ProcessIdentity as QemuIdentity;

pub use self::hot_plug::{DeviceId, HotPlugError};
pub use self::program::{DEFAULT_PROGRAM, Findings, ProgramError, QemuProgram, VERSION_OLDEST, Version};
pub use self::run_directory::{RunDirectory, RunDirectoryError};
pub use self::socket::{connect_to, connect_within};
pub(crate) use self::start::connection;
pub use self::start::{LaunchedQemu, MachineFiles, MachineProcess, NewMonitor, give_disk_socket};
use crate::firmware::FirmwareError;
use crate::launch::{LaunchError, Process, Shortfall};
use crate::machine::SpecError;
use crate::monitor::{Monitor, MonitorProcess, NotGreeted};
use crate::network::{NetworkError, NetworkState};
use crate::qmp::QmpError;

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
    /// No monitor has come to speak with it.
    #[error("nobody can speak with QEMU: {why}")]
    Unheard {
        /// Of the last monitor.
        why: String,
    },
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

/// A running QEMU. Dropping it does nothing to the machine, which another supervisor can [take
/// over](Self::take_over).
#[derive(Debug)]
pub struct Qemu {
    process: Process,
    identity: QemuIdentity,
    monitor: Monitor,
    /// Its process, which ends with this, if we have started it.
    monitors_process: Option<MonitorProcess>,
    networks: Vec<NetworkState>,
    /// What serves its network cards, to be reaped: they end when QEMU does.
    companions: Vec<Process>,
}

impl Qemu {
    /// Who speaks with it.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The number of the monitor's process, if we have started it.
    pub fn monitor_process(&self) -> Option<u32> {
        self.monitors_process.as_ref().map(MonitorProcess::pid)
    }

    /// Has another monitor speak with it, after the former was lost: that at the other end of
    /// `connection`.
    ///
    /// # Errors
    /// If QEMU does not greet that one in time.
    pub fn replace_monitor(&self, connection: OwnedFd) -> Result<(), NotGreeted> {
        self.monitor.replace(connection, STARTS_WITHIN)
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
        if !self.monitor.status()?.running {
            // A guest that stands still would not see the button.
            self.monitor.cont()?;
        }
        self.monitor.press_power_button()?;
        Ok(self.wait(within))
    }

    /// Cuts the machine's power: QEMU is asked to end, and killed if it does not within that time.
    /// Whether it is gone.
    pub fn stop_now(&mut self, within: Duration) -> bool {
        let asked = self.monitor.quit().is_ok();
        (asked && self.wait(within)) || self.process.kill()
    }

    /// Kills it. That it is gone is seen as its end.
    pub fn send_kill(&self) {
        self.process.send_kill();
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

/// That its connection was given to another process, which speaks with it.
fn handed_over() -> QemuError {
    let error = io::Error::other("another process has its connection");
    QemuError::System { action: "speak with the monitor of QEMU", error }
}
