//! The time between fork and exec of QEMU.
//!
//! QEMU, swtpm and passt are foreign programs, and cannot confine themselves as a worker does. So
//! this program is started first, in a process of its own. It drops the privileges that the foreign
//! program does not need, reports the result, and executes the foreign program:
//!
//! ```text
//! supervisor                          process
//!   starts it, puts it in the cgroup
//!   plan and open files     -->       limits, namespaces, root directory, user, capabilities
//!                           <--       what could not be had, or why it ends
//!   end of the socket       <--       exec
//! ```
//!
//! The foreign program has the process's id from the start, so it cannot be confused with another
//! process.

mod confine;
mod message;
mod process;
mod root;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_confine::{LeaseError, RUN_DIRECTORY, UidLease};
use thiserror::Error;

pub(crate) use self::confine::{GateFiles, Parts, become_program};
pub(crate) use self::message::{Become, Network, Plan, Root, Visible};
pub use self::process::{Kills, ProcessFiles, ProcessIdentity};
pub(crate) use self::process::{Process, launch, readable};

/// How this program is called to become another one. It must call
/// [`process_main`](crate::process_main) before anything else.
#[derive(Clone, Debug)]
pub struct Launcher {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launcher {
    /// The running program, with these arguments, even if another is installed in its place
    /// meanwhile.
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            arguments: arguments.into_iter().map(Into::into).collect(),
        }
    }
}

/// The isolation of a machine's processes.
#[derive(Clone, Debug)]
pub struct Isolation<'a> {
    /// The launcher that starts them.
    pub launcher: &'a Launcher,
    /// QEMU's user and group, which no other process has. `None` keeps those of this process.
    pub user: Option<(u32, u32)>,
    /// The lease of that user. QEMU keeps it open, so that the user is not reassigned while QEMU
    /// lives.
    pub lease: Option<BorrowedFd<'a>>,
    /// The directory of user leases for the processes beside QEMU ([`RUN_DIRECTORY`]). `None` gives
    /// them QEMU's user.
    pub users: Option<&'a Path>,
    /// The VM's cgroup (version 2).
    pub cgroup: Option<&'a Path>,
    /// The walls that are mandatory. Other missing walls become [`Shortfall`]s.
    pub must: &'a [Measure],
}

impl<'a> Isolation<'a> {
    /// The isolation that is possible as the calling user.
    pub fn of_caller(launcher: &'a Launcher) -> Self {
        Self { launcher, user: None, lease: None, users: None, cgroup: None, must: &[] }
    }

    /// The isolation of a process that the calling user starts for a machine that runs already, in
    /// the machine's cgroup.
    pub fn beside_machine(launcher: &'a Launcher, cgroup: Option<&'a Path>) -> Self {
        let users = rustix::process::geteuid().is_root().then_some(RUN_DIRECTORY.as_ref());
        Self { users, cgroup, ..Self::of_caller(launcher) }
    }

    /// A user for a process beside QEMU, so that an attacker who has taken over QEMU or that
    /// process cannot reach the other.
    pub(crate) fn user_beside(&self) -> Result<UserBeside, LaunchError> {
        match self.users {
            None => Ok(UserBeside { lease: None, shared: self.user }),
            Some(directory) => Ok(UserBeside { lease: Some(UidLease::take(directory)?), shared: None }),
        }
    }
}

/// The user of a process beside QEMU.
#[derive(Debug)]
pub(crate) struct UserBeside {
    lease: Option<UidLease>,
    shared: Option<(u32, u32)>,
}

impl UserBeside {
    /// The isolation of that process.
    pub fn isolation<'a>(&'a self, of_qemu: &Isolation<'a>) -> Isolation<'a> {
        match &self.lease {
            Some(lease) => {
                Isolation { user: Some(lease.user()), lease: Some(lease.as_fd()), ..of_qemu.clone() }
            }
            None => Isolation { user: self.shared, ..of_qemu.clone() },
        }
    }
}

/// A wall that may be unavailable, because of the kernel or the caller's privileges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// IPC, host name, mount and cgroup namespaces, and a network namespace unless the program
    /// needs the host's.
    Namespaces,
    /// A root directory with only programs and the machine's own files.
    OwnRoot,
    /// A user and group that no other process has.
    OwnUser,
    /// A cgroup without swap.
    NoSwap,
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Namespaces => "own namespaces",
            Self::OwnRoot => "a root directory of its own",
            Self::OwnUser => "a user of its own",
            Self::NoSwap => "memory that is never swapped out",
        })
    }
}

/// A wall that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shortfall {
    /// The wall.
    pub measure: Measure,
    /// The reason, and the next step.
    pub reason: String,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.measure, self.reason)
    }
}

/// Why a program was not started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// No user could be leased for it.
    #[error(transparent)]
    User(#[from] LeaseError),
    /// The program was called by a person, not by a supervisor.
    #[error("this command is for the supervisor of a VM, and does nothing without it")]
    NotLaunched,
    /// The process could not be started.
    #[error("cannot start a process for {program}: {error}")]
    Spawn {
        /// The program.
        program: String,
        /// The error.
        error: io::Error,
    },
    /// A step failed.
    #[error("{program} cannot be started: {step}: {reason}")]
    Step {
        /// The program.
        program: String,
        /// The step.
        step: String,
        /// The reason.
        reason: String,
    },
    /// A mandatory wall is missing.
    #[error("{program} must not run without {shortfall}")]
    Lacks {
        /// The program.
        program: String,
        /// The missing wall.
        shortfall: Shortfall,
    },
    /// The process ended before it became the program.
    #[error("the process that was to become {program} has ended: {said}")]
    Ended {
        /// The program.
        program: String,
        /// Its output on standard error.
        said: String,
    },
    /// The process does not answer.
    #[error("the process that was to become {program} has not done so within {within:?}")]
    Silent {
        /// The program.
        program: String,
        /// The timeout.
        within: std::time::Duration,
    },
}

/// Files for a program, at consecutive descriptor numbers.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<OwnedFd>);

/// The number of a program's first file. Below it are standard input, output and error, and the
/// socket of the launch, which closes at exec.
pub(crate) const FIRST_FILE: i32 = 4;

impl Files {
    /// Adds a file. Returns its number in the program.
    pub fn add(&mut self, file: OwnedFd) -> i32 {
        self.0.push(file);
        FIRST_FILE + i32::try_from(self.0.len() - 1).unwrap_or(i32::MAX)
    }

    /// All files, in the order of their numbers.
    pub fn as_slice(&self) -> &[OwnedFd] {
        &self.0
    }
}
