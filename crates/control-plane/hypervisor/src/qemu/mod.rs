//! The QEMU process: started paused, confined, adopted, ended.

mod hot_plug;
mod program;
mod socket;
mod start;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

pub use crate::launch::ProcessIdentity as QemuIdentity;

pub use self::hot_plug::{DeviceId, HotPlugError};
pub use self::program::{DEFAULT_PROGRAM, Findings, ProgramError, QemuProgram, VERSION_OLDEST};
pub use self::socket::{connect_to, connect_within};
pub use self::start::{
    LaunchedQemu, MachineFiles, MachineProcess, NewMonitor, give_disk_socket, start_agent_monitor,
};
use crate::firmware::FirmwareError;
use crate::launch::{LaunchError, Process, Shortfall};
use crate::machine::{RunDirectoryError, SpecError};
use crate::monitor::{Monitor, MonitorProcess, NotGreeted};
use crate::network::{NetworkError, NetworkState};
use crate::qmp::QmpError;

/// Timeout from QEMU's start to its QMP socket, which takes less than a second, and longer where
/// many start at once.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// Why a machine cannot be started or used.
#[derive(Debug, Error)]
pub enum QemuError {
    /// Its description is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its socket directory cannot be used.
    #[error(transparent)]
    RunDirectory(#[from] RunDirectoryError),
    /// A stale socket cannot be removed, or a disk's socket cannot be given to the VM's user.
    #[error("cannot prepare {path}: {error}")]
    Prepare {
        /// The socket.
        path: std::path::PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The process could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// QEMU exited because of an error in its arguments or resources.
    #[error("QEMU does not start: {said}")]
    Failed {
        /// Its output.
        said: String,
    },
    /// QEMU started, but does not answer.
    #[error("QEMU has not begun to listen within {within:?}: {said}")]
    Silent {
        /// The timeout.
        within: Duration,
        /// Its output on standard error.
        said: String,
    },
    /// A QMP command failed.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// No monitor could connect to it.
    #[error("nobody can speak with QEMU: {why}")]
    Unheard {
        /// The error of the last monitor.
        why: String,
    },
    /// The process has ended.
    #[error("QEMU {pid} has ended")]
    Ended {
        /// Its process id.
        pid: u32,
    },
    /// Another process has its process id or listens on its socket.
    #[error("what is at {place} is not the QEMU that was started")]
    Stranger {
        /// The process id or path.
        place: String,
    },
    /// A system call failed.
    #[error("cannot {action}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The error.
        error: io::Error,
    },
    /// KVM was requested, and does not work here.
    #[error("KVM does not work on this host: {0}")]
    NoKvm(String),
    /// UEFI was requested, and is not installed.
    #[error(transparent)]
    Firmware(#[from] FirmwareError),
    /// A network card cannot be connected.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// A running QEMU. Dropping this value does not affect the machine, which another supervisor can
/// [take over](Self::take_over).
#[derive(Debug)]
pub struct Qemu {
    process: Process,
    identity: QemuIdentity,
    monitor: Monitor,
    /// The process of its monitor, if this process started it. The monitor ends with this value.
    monitors_process: Option<MonitorProcess>,
    networks: Vec<NetworkState>,
    /// The processes of its network cards, to be reaped. They exit when QEMU does.
    companions: Vec<Process>,
}

impl Qemu {
    /// The monitor that speaks with it.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The process id of its monitor, if this process started it.
    pub fn monitor_process(&self) -> Option<u32> {
        self.monitors_process.as_ref().map(MonitorProcess::pid)
    }

    /// Switches to another monitor after the former one was lost: the one at the other end of
    /// `connection`.
    ///
    /// # Errors
    /// If QEMU does not greet it in time.
    pub fn replace_monitor(&self, connection: OwnedFd) -> Result<(), NotGreeted> {
        self.monitor.replace(connection, STARTS_WITHIN)
    }

    /// The identity to record, so that another supervisor can adopt it.
    pub fn identity(&self) -> QemuIdentity {
        self.identity
    }

    /// Its pidfd, which is readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// The walls that it lacks; known only to the supervisor that started it.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.process.shortfalls()
    }

    /// The networks of its cards; known only to the supervisor that started it.
    pub fn networks(&self) -> &[NetworkState] {
        &self.networks
    }

    /// Waits for its end. Returns whether it has ended.
    pub fn wait(&self, within: Duration) -> bool {
        self.process.wait(within)
    }

    /// Its exit status, if it has ended and this supervisor started it.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.companions.retain_mut(|companion| companion.status().is_none());
        self.process.status()
    }

    /// Presses the power button and waits for the machine to power off. Returns whether it has.
    pub fn stop_gracefully(&self, within: Duration) -> Result<bool, QemuError> {
        if !self.monitor.status()?.running {
            // A paused guest would not see the button.
            self.monitor.cont()?;
        }
        self.monitor.press_power_button()?;
        Ok(self.wait(within))
    }

    /// Cuts the machine's power: asks QEMU to exit, and kills it after the timeout. Returns whether
    /// it is gone.
    pub fn stop_now(&mut self, within: Duration) -> bool {
        let asked = self.monitor.quit().is_ok();
        (asked && self.wait(within)) || self.process.kill()
    }

    /// Sends SIGKILL without waiting.
    pub fn send_kill(&self) {
        self.process.send_kill();
    }

    /// Kills it. Returns whether it is gone.
    pub fn kill(&mut self) -> bool {
        self.process.kill()
    }

    /// The beginning of its standard error.
    pub fn said(&self) -> String {
        self.process.said()
    }
}

/// The error after its connection was given to another process.
fn handed_over() -> QemuError {
    let error = io::Error::other("another process has its connection");
    QemuError::System { action: "speak with the monitor of QEMU", error }
}
